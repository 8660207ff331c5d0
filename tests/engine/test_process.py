"""The engine process through its client, for real: frames, shared memory, and every way in which it ends."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest
from engine_runs import ROOT, Ears, greedy, spec
from reference import generate
from transformers import BloomConfig

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.engine_messages import Add, Bind, EngineMessage, Hold, Join, Keep, Ping, Reserve, StepDone
from pagewire.core.errors import EngineFailed, InvalidRequest
from pagewire.core.messages import Role
from pagewire.core.sampling import Grammar, GrammarKind, SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine import frames
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig

TinyModel = Callable[[str], Path]

PROMPT = [(7 * i) % 256 for i in range(50)]
NUM_TOKENS = 10
WAIT_S = 60.0


def config(model: Path, role: Role) -> EngineConfig:
    return EngineConfig(
        model=str(model), role=role, dtype="float32", chunk_size=20, kv_memory_bytes=4 << 20, max_model_len=256,
        threads=1,
    )  # fmt: skip


async def stop(pid: int) -> None:
    """Stops a process, and waits until it stands: until then it may still answer."""
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_an_engine_that_loads_ends_with_its_front() -> None:
    """A large model takes minutes, in which nobody reads the socket; here it takes for ever."""
    code = (
        "import sys, time\nfrom pagewire.engine import process\n"
        "process.assemble = lambda *_: (print('loads', flush=True), time.sleep(1000))\nprocess.main(sys.argv[1:])"
    )
    near, far = socket.socketpair()
    with far:
        told = (str(far.fileno()), "-1", config(Path("m"), Role.DECODE).to_json())
        loading = subprocess.Popen(
            [sys.executable, "-P", "-c", code, *told], pass_fds=[far.fileno()], stdout=subprocess.PIPE
        )
    try:
        assert loading.stdout is not None
        assert loading.stdout.readline() == b"loads\n"
        near.close()
        assert loading.wait(WAIT_S) == 0
    finally:
        loading.kill()
        loading.communicate()


@pytest.fixture
async def decode(tiny: TinyModel) -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(config(tiny("llama"), Role.DECODE))
    yield client
    await client.close()


async def test_a_prompt_prefilled_in_one_process_is_decoded_in_another(tiny: TinyModel, decode: EngineClient) -> None:
    prefill = await EngineClient.start(config(tiny("llama"), Role.PREFILL))
    try:
        from_prefill, from_decode = Ears(prefill), Ears(decode)
        assert prefill.ready == decode.ready
        assert prefill.ready.fingerprint.diff(decode.ready.fingerprint) == ""
        one = spec("a", PROMPT, greedy(NUM_TOKENS))
        reserved = await decode.reserve(Reserve(spec=one))
        assert (reserved.hit_blocks, reserved.error) == (0, None)
        prefill.add(Add(spec=one))
        heard = await from_prefill.until(lambda heard: any(chunk.is_last for chunk in heard.chunks))
        for chunk in heard.chunks:
            bound = await decode.bind(Bind(request_id="a", num_blocks=chunk.first_block + len(chunk.block_ids)))
            for source, target in zip(chunk.block_ids, bound.block_ids[chunk.first_block :], strict=True):
                decode.pool.write(target, prefill.pool.read(source))
        first = tuple(heard.tokens["a"])
        prefill.release("a")
        from_decode.heard.tokens["a"] = list(first)
        decode.join(Join(request_id="a", num_computed=len(PROMPT), output=first))
        done = await from_decode.until(lambda heard: "a" in heard.ends)
        assert done.tokens["a"] == generate(tiny("llama"), [PROMPT], NUM_TOKENS)[0]
        assert (done.ends["a"].cached_tokens, done.ends["a"].computed_tokens) == (0, 0)
    finally:
        await prefill.close()
    assert prefill.exit_code == 0


async def test_an_abort_returns_when_the_sequence_is_gone(tiny: TinyModel) -> None:
    long = dataclasses.replace(config(tiny("llama_long"), Role.DECODE), max_model_len=10_000, kv_memory_bytes=64 << 20)
    client = await EngineClient.start(long)
    ears = Ears(client)
    client.add(Add(spec=spec("a", PROMPT, greedy(9_000))))  # seconds, in which a busy machine lets us abort it
    await ears.until(lambda heard: len(heard.tokens.get("a", [])) >= 3)
    await client.abort("a")
    said = len(ears.heard.tokens["a"])
    await client.abort("a")
    client.add(Add(spec=spec("b", PROMPT, greedy(1))))
    await ears.until(lambda heard: "b" in heard.ends)
    assert len(ears.heard.tokens["a"]) == said
    assert "a" not in ears.heard.ends
    await client.close()


async def test_kept_blocks_are_held_for_others_until_released(decode: EngineClient) -> None:
    names = tuple(chain(ROOT, PROMPT, 16))
    reserved = await decode.reserve(Reserve(spec=spec("a", PROMPT, greedy(1))))
    assert reserved.error is None
    bound = await decode.bind(Bind(request_id="a", num_blocks=4))
    decode.keep(Keep(request_id="a", num_computed=len(PROMPT)))
    held = await decode.hold(Hold(request_id="h", hashes=names[1:]))
    assert held.block_ids == bound.block_ids[1:3]
    assert (await decode.hold(Hold(request_id="i", hashes=(ROOT,)))).block_ids == ()
    await decode.abort("a")
    again = await decode.reserve(Reserve(spec=spec("b", PROMPT, greedy(1))))
    assert again.hit_blocks == 3
    decode.release("h")
    await decode.abort("b")


async def test_a_front_that_goes_before_it_is_answered_is_no_failure(tiny: TinyModel) -> None:
    client = await EngineClient.start(config(tiny("llama"), Role.DECODE))
    await stop(client.pid)
    asked = asyncio.create_task(client.hold(Hold(request_id="h", hashes=(ROOT,))))
    await asyncio.sleep(0)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.1)  # until the socket is closed
    os.kill(client.pid, signal.SIGCONT)
    await closing
    assert client.exit_code == 0
    with pytest.raises(EngineFailed):
        await asked


async def test_what_no_frame_holds_is_refused_before_the_engine_reads_it(decode: EngineClient) -> None:
    many = (BlockHash(bytes(16)),) * (frames.MAX_FRAME_BYTES // 16)
    with pytest.raises(InvalidRequest, match="a Hold of"):
        await decode.hold(Hold(request_id="many", hashes=many))
    assert (await decode.hold(Hold(request_id="few", hashes=many[:2]))).block_ids == ()
    decode.release("few")


async def test_the_pool_refuses_what_is_outside(decode: EngineClient) -> None:
    size = decode.ready.layout.block_bytes
    assert len(decode.pool.read(0)) == size
    with pytest.raises(IndexError):
        decode.pool.read(decode.ready.num_blocks)
    with pytest.raises(IndexError):
        decode.pool.write(-1, memoryview(bytes(size)))
    with pytest.raises(ValueError, match=str(size)):
        decode.pool.write(0, memoryview(bytes(size - 1)))
    with pytest.raises(TypeError):
        decode.pool.read(0)[0] = 1


async def test_a_killed_process_fails_what_waits_and_fires_exited(tiny: TinyModel) -> None:
    client = await EngineClient.start(config(tiny("llama"), Role.DECODE))
    await stop(client.pid)
    waiting = asyncio.create_task(client.abort("a"))
    await asyncio.sleep(0)
    os.kill(client.pid, signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        await client.exited.wait()
        with pytest.raises(EngineFailed):
            await waiting
    assert client.exit_code == -signal.SIGKILL
    with pytest.raises(EngineFailed):
        client.add(Add(spec=spec("b", PROMPT, greedy(1))))
    await client.close()


async def test_an_engine_that_stands_still_is_ended(tiny: TinyModel) -> None:
    client = await EngineClient.start(dataclasses.replace(config(tiny("llama"), Role.DECODE), stall_s=3.0))
    await asyncio.sleep(4.0)  # pings are answered while there is nothing to do, on a busy machine too
    assert not client.exited.is_set()
    await stop(client.pid)
    with pytest.raises(EngineFailed):
        await client.reserve(Reserve(spec=spec("waits", PROMPT, greedy(4))))
    assert client.exited.is_set()
    assert client.exit_code == -signal.SIGKILL
    await client.close()


async def test_a_front_that_stood_still_itself_ends_no_engine(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is here, and the timer is looked at first."""
    client = await EngineClient.start(dataclasses.replace(config(tiny("llama"), Role.DECODE), stall_s=2.0))
    send, is_still = client._send, asyncio.Event()

    def stand_still() -> None:
        time.sleep(3.0)
        is_still.set()

    def send_and_stand_still(message: EngineMessage) -> None:
        send(message)
        if isinstance(message, Ping) and not is_still.is_set():
            asyncio.get_running_loop().call_soon(stand_still)

    monkeypatch.setattr(client, "_send", send_and_stand_still)
    async with asyncio.timeout(WAIT_S):
        await is_still.wait()
        held = await client.reserve(Reserve(spec=spec("serves on", PROMPT, greedy(4))))
    assert held.request_id == "serves on"
    assert not client.exited.is_set()
    await client.close()


async def test_an_engine_that_cannot_start_says_why_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EngineFailed, match=r"config\.json") as caught:
        await EngineClient.start(config(tmp_path, Role.DECODE))
    assert "\n" not in caught.value.message
    said = capfd.readouterr().err.splitlines()
    assert said == [], "the front says it; the engine need not"


async def test_a_model_of_the_general_path_runs_in_a_process(
    tiny: TinyModel, capfd: pytest.CaptureFixture[str]
) -> None:
    client = await EngineClient.start(config(tiny("gemma2"), Role.COLOCATED))
    ears = Ears(client)
    client.add(Add(spec=spec("a", PROMPT, greedy(NUM_TOKENS))))
    done = await ears.until(lambda heard: "a" in heard.ends)
    assert done.tokens["a"] == generate(tiny("gemma2"), [PROMPT], NUM_TOKENS)[0]
    await client.close()
    assert client.exit_code == 0
    assert "in float32, through the general path over transformers" in capfd.readouterr().err


async def test_it_logs_what_is_as_severe_as_was_asked_for(tiny: TinyModel, capfd: pytest.CaptureFixture[str]) -> None:
    told = config(tiny("llama"), Role.DECODE)
    for asked, says in ((told, True), (dataclasses.replace(told, log_level="warning"), False)):
        client = await EngineClient.start(asked)
        await client.close()
        assert ("KV pool" in capfd.readouterr().err) is says


async def test_a_model_that_no_path_computes_is_refused_in_one_line(tmp_path: Path) -> None:
    settings = BloomConfig(hidden_size=64, n_layer=2, n_head=4, architectures=["BloomForCausalLM"])
    settings.save_pretrained(tmp_path)
    with pytest.raises(EngineFailed, match=r"BloomForCausalLM is not supported: .*ALiBi") as caught:
        await EngineClient.start(config(tmp_path, Role.DECODE))
    assert "\n" not in caught.value.message


async def test_a_front_that_cannot_take_in_a_step_ends_its_engine_and_says_so(
    tiny: TinyModel, caplog: pytest.LogCaptureFixture
) -> None:
    client = await EngineClient.start(config(tiny("llama"), Role.DECODE))
    asked: list[asyncio.Task[object]] = []

    def broken(done: StepDone) -> None:
        if done.records:
            asked.append(asyncio.create_task(client.reserve(Reserve(spec=spec("b", PROMPT, greedy(4))))))
            raise LookupError("nobody knows this request")

    client.on_step = broken
    client.add(Add(spec=spec("a", PROMPT, greedy(200))))
    async with asyncio.timeout(WAIT_S):
        await client.exited.wait()
        with pytest.raises(EngineFailed, match="LookupError: nobody knows this request"):
            await asked[0]
    (told,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert told.exc_info is not None
    assert isinstance(told.exc_info[1], LookupError)
    await client.close()


def test_the_process_has_none_of_the_code_that_ships() -> None:
    """So no byte on its way between pods can take a turn of its interpreter."""
    code = "import sys, pagewire.engine.process; print(*(name for name in sys.modules if name.startswith('pagewire.')))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    assert "pagewire.engine.engine_loop" in loaded
    assert [name for name in loaded if name.startswith(("pagewire.kvtransfer", "pagewire.engine.exchange"))] == []


def test_settings_survive_the_border() -> None:
    asked = EngineConfig(model="/m", role=Role.PREFILL, block_size=64, threads=2)
    assert EngineConfig.from_json(asked.to_json()) == asked
    for bad in ({"dtype": "float16"}, {"block_size": 20}, {"chunk_size": -1}, {"threads": -1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            EngineConfig(model="/m", role=Role.PREFILL, **bad)  # type: ignore[arg-type]


async def test_a_grammar_is_compiled_beside_the_steps_and_a_bad_one_refused_by_its_field(decode: EngineClient) -> None:
    def guided(name: str, text: str) -> SequenceSpec:
        grammar = Grammar(kind=GrammarKind.REGEX, text=text, field="guided_regex")
        return spec(name, PROMPT, SamplingParams(max_tokens=200, grammar=grammar))

    ears = Ears(decode)
    decode.add(Add(spec=guided("bad", "((")))
    refused = await decode.reserve(Reserve(spec=guided("worse", "a{5,2}")))
    assert refused.error is not None
    assert (refused.error.cause, refused.error.field) == ("invalid_request", "guided_regex")
    granted = await decode.reserve(Reserve(spec=guided("good", "yes|no")))
    assert granted.error is None
    decode.join(Join(request_id="good", num_computed=0, output=()))
    heard = await ears.until(lambda heard: {"bad", "good"} <= set(heard.ends))
    error = heard.ends["bad"].error
    assert error is not None
    assert (error.cause, error.field) == ("invalid_request", "guided_regex")
    assert "bad" not in heard.tokens
    assert bytes(heard.tokens["good"][:-1]).decode() in ("yes", "no")
    await stop(decode.pid)  # until both commands are there: else the answer may be whole before the second
    decode.add(Add(spec=guided("gone", "[a-z]{200}")))
    aborting = asyncio.create_task(decode.abort("gone"))
    await asyncio.sleep(0)
    os.kill(decode.pid, signal.SIGCONT)
    await aborting
    decode.add(Add(spec=guided("last", "yes|no")))
    heard = await ears.until(lambda heard: "last" in heard.ends)
    assert "gone" not in heard.ends
