"""Host memory in a file: an engine finds what the one before it cached, and computes what it does not find."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_runs import ROOT, Ears, assert_at_rest, engine, greedy, run_all, spec
from reference import generate

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.engine_messages import Add, Hold
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Role
from pagewire.engine import LLM, hold
from pagewire.engine.assembly import Engine
from pagewire.engine.block_mover import BlockMover
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig
from pagewire.engine.moves import Move, Way

TinyModel = Callable[[str], Path]

BLOCK_BYTES = 16 * 768  # the tiny llama in fp32
NUM_TOKENS = 12
SLOTS = 64


def prompts() -> list[list[int]]:
    chance = random.Random(8)
    shared = [chance.randrange(256) for _ in range(40)]
    own = [[chance.randrange(256) for _ in range(length)] for length in (70, 33, 90, 16, 64)]
    return own + [shared + [chance.randrange(256) for _ in range(length)] for length in (1, 30, 60)]


def on(folder: Path, tiny: TinyModel, **changes: Any) -> Engine:
    settings: dict[str, Any] = {
        "kv_memory_bytes": 16 * BLOCK_BYTES, "host_kv_memory_bytes": SLOTS * BLOCK_BYTES, "host_kv_dir": str(folder),
        "max_model_len": 128,
    }  # fmt: skip
    return engine(tiny("llama"), **{**settings, **changes})


def run(built: Engine) -> tuple[list[list[int]], int]:
    """Return the tokens of all prompts, one after another, and how many of their tokens were cached."""
    tokens, cached = [], 0
    for i, prompt in enumerate(prompts()):
        heard = run_all(built.loop, [spec(str(i), prompt, greedy(NUM_TOKENS))])
        tokens.append(heard.tokens[str(i)])
        cached += heard.ends[str(i)].cached_tokens
    assert_at_rest(built.loop)
    return tokens, cached


def chains(first: list[list[int]]) -> set[BlockHash]:
    """Return the names of all full blocks of prompts and what was said to them, without the last token."""
    return {
        name for prompt, said in zip(prompts(), first, strict=True) for name in chain(ROOT, [*prompt, *said[:-1]], 16)
    }


def end(built: Engine) -> None:
    built.keep_cache()
    built.close()


MOST = sum((len(prompt) - 1) // 16 * 16 for prompt in prompts())


@pytest.mark.parametrize(
    "changes",
    [{}, {"kv_order": "head_outer"}, {"kv_dtype": "int8"}, {"kv_dtype": "fp8"}, {"tensor_parallel": 2}],
    ids=["plain", "head_outer", "int8", "fp8", "two ranks"],
)
def test_the_next_engine_computes_nothing_anew(tiny: TinyModel, tmp_path: Path, changes: dict[str, Any]) -> None:
    built = on(tmp_path, tiny, **changes)
    first, cached = run(built)
    if not changes:
        assert first == generate(tiny("llama"), prompts(), NUM_TOKENS)
    assert cached < MOST
    end(built)
    for _ in range(2):
        built = on(tmp_path, tiny, **changes)
        assert built.loop.load().blocks_cached == 0
        assert built.loop.load().blocks_host == len(chains(first))
        assert run(built) == (first, MOST)
        end(built)


def test_an_engine_that_was_not_asked_to_end_leaves_what_had_left_its_pool(tiny: TinyModel, tmp_path: Path) -> None:
    built = on(tmp_path, tiny)
    first, cached = run(built)
    built.close()  # of what the pool has, nobody kept anything
    tokens, again = run(on(tmp_path, tiny))
    assert tokens == first
    assert cached < again < MOST


def test_what_was_damaged_is_computed(tiny: TinyModel, tmp_path: Path) -> None:
    built = on(tmp_path, tiny)
    first, cached = run(built)
    end(built)
    assert built.file is not None
    data = bytearray(built.file.path.read_bytes())
    slots = [parked.slot for parked in built.file.blocks()]
    start = 2 * 4096  # header, records
    for slot in random.Random(1).sample(slots, len(slots) // 3):
        data[start + slot * BLOCK_BYTES + 5] ^= 4
    built.file.path.write_bytes(data)
    tokens, again = run(on(tmp_path, tiny))
    assert tokens == first
    assert cached <= again < MOST


def test_other_weights_find_nothing(tiny: TinyModel, tmp_path: Path) -> None:
    built = on(tmp_path, tiny)
    run(built)
    end(built)
    for changes in ({"weight_dtype": "fp8"}, {"kv_dtype": "int8"}, {"block_size": 32}, {"dtype": "bfloat16"}):
        other = on(tmp_path, tiny, **changes)
        assert other.loop.load().blocks_host == 0
        other.close()


def test_pinned_blocks_and_what_follows_them_are_kept(tiny: TinyModel, tmp_path: Path) -> None:
    built = on(tmp_path, tiny)
    prompt = prompts()[-1]
    first = run_all(built.loop, [spec("a", prompt, greedy(NUM_TOKENS))]).tokens["a"]
    pinned = hold.pin(built.scheduler, chain(ROOT, prompt, 16)[:2])
    assert len(pinned) == 2
    end(built)
    built = on(tmp_path, tiny)
    heard = run_all(built.loop, [spec("b", prompt, greedy(NUM_TOKENS))])
    assert (heard.tokens["b"], heard.ends["b"].cached_tokens) == (first, (len(prompt) - 1) // 16 * 16)


def test_llms_in_turn_share_a_folder(tiny: TinyModel, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "dtype": "float32", "kv_memory_bytes": "1MiB", "host_kv_memory_bytes": "1MiB", "max_model_len": 128,
        "host_kv_dir": str(tmp_path),
    }  # fmt: skip
    answers = []
    for known in (False, True):
        with LLM(tiny("llama"), **settings) as llm:
            answers.append([list(one.token_ids) for one in llm.generate(prompts(), greedy(NUM_TOKENS))])
            assert (llm.load().prompt_tokens_cached == MOST) == known
    assert answers[0] == answers[1] == generate(tiny("llama"), prompts(), NUM_TOKENS)


def test_what_an_llm_left_behind_a_failed_step_is_not_kept(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {
        "dtype": "float32", "kv_memory_bytes": 16 * BLOCK_BYTES, "host_kv_memory_bytes": SLOTS * BLOCK_BYTES,
        "max_model_len": 128, "host_kv_dir": str(tmp_path),
    }  # fmt: skip
    right = generate(tiny("llama"), prompts(), NUM_TOKENS)
    move = BlockMover.move

    def fail_once(mover: BlockMover, moves: Sequence[Move]) -> None:
        if moves[0].way is Way.IN:  # whose blocks are said to be in the pool by now
            monkeypatch.setattr(BlockMover, "move", move)
            raise MemoryError
        move(mover, moves)

    with LLM(tiny("llama"), **settings) as llm:
        llm.generate(prompts(), greedy(NUM_TOKENS))
        monkeypatch.setattr(BlockMover, "move", fail_once)
        with pytest.raises(MemoryError):
            llm.generate(prompts(), greedy(NUM_TOKENS))
        assert BlockMover.move is move
        with pytest.raises(EngineFailed, match="load it anew"):
            llm.generate(prompts(), greedy(NUM_TOKENS))
    with LLM(tiny("llama"), **settings) as llm:
        assert [list(one.token_ids) for one in llm.generate(prompts(), greedy(NUM_TOKENS))] == right


async def test_an_engine_whose_file_fails_it_is_told_of(
    tiny: TinyModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(
        model=str(tiny("llama")), role=Role.COLOCATED, dtype="float32", kv_memory_bytes=1 << 20,
        host_kv_memory_bytes=1 << 20, host_kv_dir=str(tmp_path), max_model_len=128,
    )  # fmt: skip
    client = await EngineClient.start(config)
    ears = Ears(client)
    client.add(Add(spec=spec("a", prompts()[2], greedy(NUM_TOKENS))))
    await ears.until(lambda heard: "a" in heard.ends)
    # As of a disk that fails: the pages that are written to at the end are not there.
    os.truncate(tmp_path / "blocks-0.kv", 0)
    await client.close()
    assert f"the engine process ended with signal {signal.SIGBUS.value} (Bus error)" in caplog.text


async def test_an_engine_that_a_signal_without_a_name_ended_is_gone(
    tiny: TinyModel, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(model=str(tiny("llama")), role=Role.COLOCATED, dtype="float32", max_model_len=128)
    client = await EngineClient.start(config)
    number = signal.SIGRTMIN + 5
    os.kill(client.pid, number)
    await asyncio.wait_for(client.exited.wait(), 30)
    assert f"the engine process ended with signal {int(number)}" in caplog.text
    await client.close()


def test_what_runs_when_the_front_is_gone_is_kept_as_far_as_it_is_computed(tiny: TinyModel, tmp_path: Path) -> None:
    prompt = prompts()[2]
    built = on(tmp_path, tiny)
    built.loop.add(Add(spec=spec("a", prompt, greedy(NUM_TOKENS))))
    built.loop.step()
    assert built.loop.hold(Hold(request_id="b", hashes=tuple(chain(ROOT, prompt, 16)[:2]))).block_ids
    end(built)
    heard = run_all(on(tmp_path, tiny).loop, [spec("a", prompt, greedy(NUM_TOKENS))])
    assert heard.ends["a"].cached_tokens == (len(prompt) - 1) // 16 * 16
    assert heard.tokens["a"] == generate(tiny("llama"), [prompt], NUM_TOKENS)[0]


async def test_an_engine_process_keeps_its_cache_when_its_front_goes(tiny: TinyModel, tmp_path: Path) -> None:
    config = EngineConfig(
        model=str(tiny("llama")), role=Role.COLOCATED, dtype="float32", kv_memory_bytes=1 << 20,
        host_kv_memory_bytes=1 << 20, host_kv_dir=str(tmp_path), max_model_len=128,
    )  # fmt: skip
    prompt = prompts()[2]
    for cached in (0, (len(prompt) - 1) // 16 * 16):
        client = await EngineClient.start(config)
        ears = Ears(client)
        client.add(Add(spec=spec("a", prompt, greedy(NUM_TOKENS))))
        heard = await ears.until(lambda heard: "a" in heard.ends)
        await client.close()
        assert client.exit_code == 0
        assert heard.ends["a"].cached_tokens == cached
        assert heard.tokens["a"] == generate(tiny("llama"), [prompt], NUM_TOKENS)[0]


async def test_engines_that_are_killed_at_any_moment_leave_nothing_wrong(tiny: TinyModel, tmp_path: Path) -> None:
    config = EngineConfig(
        model=str(tiny("llama")), role=Role.COLOCATED, dtype="float32", kv_memory_bytes=12 * BLOCK_BYTES,
        host_kv_memory_bytes=SLOTS * BLOCK_BYTES, host_kv_dir=str(tmp_path), max_model_len=128,
    )  # fmt: skip
    right = generate(tiny("llama"), prompts(), NUM_TOKENS)
    chance, num_cached = random.Random(4), 0
    for _ in range(6):
        client = await EngineClient.start(config)
        ears = Ears(client)
        names = [f"{turn} {i}" for turn in range(4) for i in chance.sample(range(len(right)), len(right))]
        for name in names:
            client.add(Add(spec=spec(name, prompts()[int(name[2:])], greedy(NUM_TOKENS))))
        # Its pool is smaller than two prompts: blocks come and go at every step.
        num_ends = chance.randrange(1, len(names))
        heard = await ears.until(lambda heard, most=num_ends: len(heard.ends) >= most)  # type: ignore[misc]
        os.kill(client.pid, signal.SIGKILL)
        await client.exited.wait()
        await client.close()
        for name, end in heard.ends.items():
            assert heard.tokens[name] == right[int(name[2:])]
            if name[0] == "0" and int(name[2:]) < 5:  # the first of its prompt here, which begins as no other does
                num_cached += end.cached_tokens
    assert num_cached > 0, "no engine found anything of the one before it"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host_kv_memory_bytes": 0}, "host_kv_dir .*: host_kv_memory says how large"),
        ({"prefix_caching": False}, "host_kv_dir .*: what would be kept is the prefix cache"),
        ({"host_kv_memory_bytes": BLOCK_BYTES}, "a file in host_kv_dir is of two blocks at least"),
        ({"host_kv_memory_bytes": 1 << 62}, "host_kv_dir .*: no file of .* bytes can lie there"),
    ],
)
def test_what_cannot_be_is_refused(tiny: TinyModel, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on(tmp_path, tiny, **changes)


def test_a_folder_that_is_none_is_refused(tiny: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"host_kv_dir .*/file: no file of \d+ bytes can lie there: .*"):
        on(tmp_path / "file", tiny)
