"""What an engine tells of while a step computes is final: no bit of it changes, and nobody else's data is in it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import assert_at_rest, engine, greedy, run_all, run_until_idle, spec

from pagewire.core.engine_messages import Add, ChunkDone, Freed, StepDone
from pagewire.core.messages import Role
from pagewire.engine import assembly
from pagewire.engine.assembly import Engine
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig
from pagewire.engine.runner import OnGroup
from pagewire.engine.step import Computed, Step

TinyModel = Callable[[str], Path]

PROMPT = [(7 * i) % 256 for i in range(50)]
NUM_BLOCKS, TAIL = 4, 2  # 50 tokens in blocks of 16
SETTINGS: dict[str, Any] = {"chunk_size": 20, "layer_groups": 3}


def prefill(model: Path, **changes: Any) -> tuple[Engine, list[ChunkDone]]:
    """Return an engine and what it tells of groups."""
    built, told = engine(model, Role.PREFILL, **{**SETTINGS, **changes}), list[ChunkDone]()
    built.loop.on_group = lambda step: told.extend(step.chunks)
    return built, told


def test_what_is_told_of_is_final_and_holds_no_other_data(tiny: TinyModel) -> None:
    built = engine(tiny("llama"), Role.PREFILL, **SETTINGS)
    built.cache.pool.fill_(7.0)  # somebody else's
    copies: list[tuple[ChunkDone, torch.Tensor]] = []

    def tell(step: StepDone) -> None:
        (chunk,) = step.chunks
        assert chunk.group is not None
        copies.append((chunk, built.cache.pool[list(chunk.block_ids), chunk.group].clone()))

    built.loop.on_group = tell
    heard = run_all(built.loop, [spec("a", PROMPT, greedy(5))])
    assert [chunk.group for chunk, _ in copies] == [0, 1, 2]
    (last,) = [chunk for chunk in heard.chunks if chunk.is_last]
    for chunk, copy in copies:
        assert (chunk.first_block, chunk.block_ids) == (last.first_block, last.block_ids) == (2, last.block_ids)
        assert not chunk.is_last
        assert torch.equal(copy, built.cache.pool[list(chunk.block_ids), chunk.group])
        assert (copy[-1, :, :, TAIL:] == 0).all()
        assert (copy[-1, :, :, :TAIL] != 0).any()
        assert (copy[:-1] != 7).all()


@pytest.mark.parametrize("layer_groups", [1, 3])
def test_only_last_chunks_that_are_handed_off_are_told_of(tiny: TinyModel, layer_groups: int) -> None:
    expected = run_all(engine(tiny("llama")).loop, [spec("a", PROMPT, greedy(1))]).tokens
    built, told = prefill(tiny("llama"), layer_groups=layer_groups)
    heard = run_all(built.loop, [spec("a", PROMPT, greedy(5))])
    assert heard.tokens == expected
    assert [chunk.block_ids for chunk in heard.chunks if chunk.is_last] != [()]
    assert len(told) == (3 if layer_groups > 1 else 0)
    colocated, told = engine(tiny("llama"), **SETTINGS), list[ChunkDone]()
    colocated.loop.on_group = lambda step: told.extend(step.chunks)
    run_all(colocated.loop, [spec("a", PROMPT, greedy(5))])
    assert told == []


def test_no_groups_where_a_layer_is_not_computed_when_the_next_is_asked_for() -> None:
    asked: dict[str, Any] = {"model": "m", "role": Role.PREFILL, "device": "cuda"}
    for layer_groups in (0, 1):
        EngineConfig(**asked, layer_groups=layer_groups)
    with pytest.raises(ValueError, match="layer_groups 3: on device cuda layers are still being computed"):
        EngineConfig(**asked, layer_groups=3)


@pytest.mark.parametrize(("layer_groups", "spare_bytes", "groups"), [(0, 0, 3), (0, 1, 0), (3, 1, 3)])
def test_small_last_chunks_travel_whole_unless_groups_are_asked_for(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch, layer_groups: int, spare_bytes: int, groups: int
) -> None:
    block_bytes = engine(tiny("llama")).ready.layout.block_bytes
    monkeypatch.setattr(assembly, "LEAST_GROUPED_BYTES", 2 * block_bytes + spare_bytes)
    monkeypatch.setattr(assembly, "LONG_STEP_S", math.inf)
    built, told = prefill(tiny("llama"), layer_groups=layer_groups)
    assert built.ready.layer_groups == 3
    heard = run_all(built.loop, [spec("a", PROMPT, greedy(5))])
    assert len(told) == groups
    assert [len(chunk.block_ids) for chunk in heard.chunks if chunk.is_last] == [2]  # told of in groups or not


@pytest.mark.parametrize(("long_step_s", "groups"), [(1e-9, 3), (math.inf, 0)])
def test_small_last_chunks_of_long_steps_travel_in_groups(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch, long_step_s: float, groups: int
) -> None:
    """Steps are expected to take what those before took: of a first chunk nothing is known."""
    monkeypatch.setattr(assembly, "LEAST_GROUPED_BYTES", 1 << 40)
    monkeypatch.setattr(assembly, "LONG_STEP_S", long_step_s)
    built, told = prefill(tiny("llama"), layer_groups=0)
    run_all(built.loop, [spec("a", PROMPT, greedy(5))])
    assert [chunk.group for chunk in told] == [*range(groups)]


def test_what_was_cached_and_leaves_with_the_last_chunk_counts_too(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "LONG_STEP_S", math.inf)
    monkeypatch.setattr(assembly, "LEAST_GROUPED_BYTES", 3 * engine(tiny("llama")).ready.layout.block_bytes)
    built, told = prefill(tiny("llama"), layer_groups=0)
    for name in "ab":
        run_all(built.loop, [spec(name, PROMPT, greedy(5))])
    assert [(chunk.request_id, chunk.group, chunk.block_ids[NUM_BLOCKS - 1 :] != ()) for chunk in told] == [
        ("b", group, True) for group in (0, 1, 2)
    ]


def test_a_sequence_that_is_aborted_meanwhile_is_told_of_no_more(tiny: TinyModel) -> None:
    built, told = prefill(tiny("llama"), chunk_size=256)

    def tell(step: StepDone) -> None:
        told.extend(step.chunks)
        assert built.loop.abort("a") is None

    built.loop.on_group = tell
    for name, tokens in (("a", PROMPT), ("b", PROMPT[::-1])):
        built.loop.add(Add(spec=spec(name, tokens, greedy(5))))
    heard = run_until_idle(built.loop)
    assert [(chunk.request_id, chunk.group) for chunk in told] == [("a", 0), ("b", 0), ("b", 1), ("b", 2)]
    assert heard.tokens.keys() == {"b"}
    assert built.loop.take_freed() == (Freed(request_id="a"),)
    built.loop.release("b")
    assert_at_rest(built.loop)


def test_a_step_that_is_tried_again_tells_again(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    built, told = prefill(tiny("llama"), chunk_size=256)
    plain = built.runner.run

    def unlucky(step: Step, on_group: OnGroup) -> dict[str, Computed]:
        def tell(step: Step, group: int) -> None:
            on_group(step, group)
            if group == 1 and len(step.grants) > 1:
                raise RuntimeError("a bad batch")

        return plain(step, tell)

    monkeypatch.setattr(built.runner, "run", unlucky)
    heard = run_all(built.loop, [spec(name, PROMPT[at:], greedy(5)) for at, name in enumerate("ab")])
    assert heard.tokens.keys() == {"a", "b"}
    groups = [(chunk.request_id, chunk.group) for chunk in told]
    assert groups == [(name, group) for group in (0, 1) for name in "ab"] + [
        (name, group) for name in "ab" for group in (0, 1, 2)
    ]


@pytest.mark.parametrize(("order", "groups"), [("layer_outer", 3), ("head_outer", 1)])
def test_a_block_travels_in_as_many_parts_as_suit_its_layout(tiny: TinyModel, order: str, groups: int) -> None:
    built = engine(tiny("llama"), Role.PREFILL, kv_order=order)  # of three layers
    assert built.ready.layer_groups == groups


@pytest.mark.parametrize("changes", [{"layer_groups": 2}, {"kv_order": "head_outer"}])
def test_groups_that_are_no_equal_spans_are_refused(tiny: TinyModel, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="layer_groups"):
        prefill(tiny("llama"), **changes)


async def test_a_process_tells_of_groups_before_its_step_is_done(tiny: TinyModel) -> None:
    config = EngineConfig(
        model=str(tiny("llama")), role=Role.PREFILL, dtype="float32", kv_memory_bytes=4 << 20, max_model_len=256,
        **SETTINGS,
    )  # fmt: skip
    client = await EngineClient.start(config)
    try:
        chunks: asyncio.Queue[ChunkDone] = asyncio.Queue()

        def hear(step: StepDone) -> None:
            for chunk in step.chunks:
                chunks.put_nowait(chunk)

        client.on_step = hear
        client.add(Add(spec=spec("a", PROMPT, greedy(5))))
        async with asyncio.timeout(60.0):
            heard = [await chunks.get() for _ in range(6)]
        assert [(chunk.group, chunk.is_last) for chunk in heard[-4:]] == [
            (0, False),
            (1, False),
            (2, False),
            (None, True),
        ]
        assert {chunk.block_ids for chunk in heard[-4:]} == {heard[-1].block_ids}
    finally:
        await client.close()
