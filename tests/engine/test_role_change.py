"""An engine that changes its role: what runs is cut off, what is cached stays and is told anew, the new role holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_runs import ROOT, assert_at_rest, engine, greedy, run_all, spec

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.engine_messages import Add, ChunkDone, Hold, Reserve
from pagewire.core.messages import Role
from pagewire.core.token_record import TokenRecord
from pagewire.engine.engine_loop import EngineLoop

TinyModel = Callable[[str], Path]
PROMPT = [(i * i * 7 + i) % 256 for i in range(100)]


def told_of_change(loop: EngineLoop, role: Role) -> set[BlockHash]:
    """Change the role; return the hashes that the next word names as cached."""
    loop.become(role)
    assert loop.wait_for_work(0.0)
    done = loop.step()
    assert done is not None
    assert loop.take_became() == (role,)
    assert not done.evicted
    return {block.block_hash for block in done.stored}


def test_what_a_prefill_pod_computed_is_cached_for_the_decode_pod_that_it_becomes(tiny: TinyModel) -> None:
    alone = run_all(engine(tiny("llama")).loop, [spec("a", PROMPT, greedy(6))])
    built = engine(tiny("llama"), Role.PREFILL)
    loop = built.loop
    loop.add(Add(spec=spec("p", PROMPT, greedy(6))))
    stored = set()
    while (done := loop.step()) is not None:
        stored |= {block.block_hash for block in done.stored}
    loop.release("p")
    assert len(stored) == 6  # full blocks of 16
    assert told_of_change(loop, Role.DECODE) == stored
    again = run_all(loop, [spec("a", PROMPT, greedy(6))])
    assert again.tokens == alone.tokens
    assert again.ends["a"].cached_tokens == 96
    assert told_of_change(loop, Role.PREFILL) == stored
    loop.add(Add(spec=spec("q", PROMPT, greedy(6))))
    chunks: list[ChunkDone] = []
    records: list[TokenRecord] = []
    while (done := loop.step()) is not None:
        chunks += done.chunks
        records += done.records
    assert [record.position for record in records] == [0]  # it hands off again
    assert chunks[-1].is_last
    assert chunks[-1].cached_tokens == 96
    loop.release("q")
    assert_at_rest(loop)


def test_what_still_runs_or_is_held_is_cut_off(tiny: TinyModel) -> None:
    loop = engine(tiny("llama"), Role.DECODE, step_target_s=0.05, brownout=True).loop
    loop.add(Add(spec=spec("long", PROMPT, greedy(100))))
    loop.add(Add(spec=spec("other", PROMPT[::-1], greedy(100))))
    for _ in range(5):
        loop.step()
    hashes = sorted(told_of_change(loop, Role.COLOCATED))
    assert loop.load().num_running == 0
    first = next(each for each in hashes if loop.hold(Hold(request_id="held", hashes=(each,))).block_ids)
    assert first
    assert loop.load().blocks_held == 1
    told_of_change(loop, Role.PREFILL)
    assert_at_rest(loop)


def test_who_was_refused_room_before_keeps_nobody_from_a_hold(tiny: TinyModel) -> None:
    loop = engine(tiny("llama"), Role.DECODE).loop
    run_all(loop, [spec("a", PROMPT, greedy(1))])
    prompts = ([number, *PROMPT[1:]] for number in range(1, 256))
    while loop.reserve(Reserve(spec=spec(f"r{(tokens := next(prompts))[0]}", tokens, greedy(1)))).error is None:
        pass
    names = tuple(chain(ROOT, PROMPT, 16))
    assert loop.hold(Hold(request_id="h", hashes=names)).block_ids == ()
    hashes = told_of_change(loop, Role.PREFILL)
    assert set(names) & hashes
    assert loop.hold(Hold(request_id="h", hashes=names)).block_ids


def test_a_role_that_cannot_be_had_is_refused_where_it_is_asked_for(tiny: TinyModel) -> None:
    loop = engine(tiny("llama")).loop
    with pytest.raises(KeyError):
        loop.become(Role.ROUTER)
    assert loop.take_became() == ()
