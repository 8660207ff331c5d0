"""An idle engine rehearses while it expects a sequence, no more often than it should, and leaves no trace of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_runs import assert_at_rest, engine, greedy, run_all, spec
from made_up_engine import Rig

from pagewire.core.engine_messages import Add, Bind, Join, Reserve
from pagewire.engine.rehearsal import PATIENCE_S, REST_S, SHARE

TinyModel = Callable[[str], Path]

PROMPT = [(7 * i) % 256 for i in range(40)]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def idle(rig: Rig) -> list[float]:
    """Let the loop look for work until it would sleep; return when it rehearsed."""
    rig.model.rehearsals.clear()
    for _ in range(3):
        rig.loop.wait_for_work(0.0)
        assert rig.loop.step() is None or not rig.model.steps
    return list(rig.model.rehearsals)


def test_an_engine_that_expects_nobody_does_not_rehearse(rig: Rig) -> None:
    assert idle(rig) == []
    rig.model.clock.advance(100.0)
    assert idle(rig) == []


def test_one_that_expects_somebody_rehearses_soon_and_after_every_rest(rig: Rig) -> None:
    rig.model.clock.advance(5.0)
    rig.loop.reserve(Reserve(spec=spec("a", [1] * 20, greedy(2))))
    assert idle(rig) == []
    rig.model.clock.advance(PATIENCE_S)
    assert idle(rig) == [5.0 + PATIENCE_S]
    rig.model.clock.advance(REST_S / 2)
    assert idle(rig) == []
    rig.model.clock.advance(REST_S / 2)
    assert idle(rig) == [pytest.approx(5.0 + PATIENCE_S + REST_S)]
    rig.loop.abort("a")
    rig.model.clock.advance(REST_S)
    assert idle(rig) == []
    assert_at_rest(rig.loop)


def test_an_engine_whose_memory_stays_warm_does_not_rehearse(rig: Rig) -> None:
    rig.loop._rehearses = False
    rig.model.clock.advance(5.0)
    rig.loop.reserve(Reserve(spec=spec("a", [1] * 20, greedy(2))))
    rig.model.clock.advance(PATIENCE_S)
    assert idle(rig) == []
    rig.model.clock.advance(REST_S)
    assert idle(rig) == []


def test_a_long_rehearsal_is_rarer(rig: Rig) -> None:
    rig.model.rehearsal_s = 10.0 * SHARE
    rig.loop.reserve(Reserve(spec=spec("a", [1] * 20, greedy(2))))
    assert idle(rig) == []
    rig.model.clock.advance(PATIENCE_S)
    assert len(idle(rig)) == 1
    rig.model.clock.advance(9.9)
    assert idle(rig) == []
    rig.model.clock.advance(0.1)
    assert len(idle(rig)) == 1


def test_an_engine_that_just_stepped_is_warm(rig: Rig) -> None:
    rig.model.clock.advance(5.0)
    run_all(rig.loop, [spec("before", [1] * 20, greedy(2))])
    rig.loop.reserve(Reserve(spec=spec("a", [1] * 20, greedy(2))))
    rig.model.steps.clear()
    assert idle(rig) == []
    rig.model.clock.advance(REST_S)
    assert len(idle(rig)) == 1


def test_a_sequence_that_is_computed_here_does_not_wait_for_a_rehearsal(rig: Rig) -> None:
    for token, name in enumerate("ab", start=1):
        rig.model.clock.advance(5.0)
        rig.loop.reserve(Reserve(spec=spec(name, [token] * 20, greedy(2))))
        assert idle(rig) == []
        rig.model.clock.advance(PATIENCE_S / 2)
        rig.loop.bind(Bind(request_id=name, num_blocks=2))
        rig.loop.join(Join(request_id=name, num_computed=0, output=()))
        while rig.loop.wait_for_work(0.0) and rig.loop.step() is not None:
            assert rig.model.rehearsals == []
        assert rig.model.steps
        rig.model.steps.clear()


def test_what_joined_goes_first(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.loop.reserve(Reserve(spec=spec(name, [1] * 20, greedy(3))))
    rig.loop.bind(Bind(request_id="a", num_blocks=2))
    rig.loop.join(Join(request_id="a", num_computed=20, output=(1,)))
    while rig.loop.wait_for_work(0.0) and rig.loop.step() is not None:
        assert rig.model.rehearsals == []
    assert len(rig.model.steps) == 2


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_rehearsal_leaves_no_trace(tiny: TinyModel, name: str) -> None:
    built = engine(tiny(name))
    built.cache.pool.fill_(7.0)
    built.runner.rehearse()
    built.runner.rehearse(16)
    built.runner.rehearse(37, num_draws=2)
    assert (built.cache.pool == 7.0).all()

    built.cache.pool.zero_()
    alone = run_all(built.loop, [spec("alone", PROMPT, greedy(6))]).tokens["alone"]
    built = engine(tiny(name))
    built.loop.add(Add(spec=spec("a", PROMPT, greedy(6))))
    tokens: list[int] = []
    pool = torch.zeros_like(built.cache.pool)
    while (done := built.loop.step()) is not None:
        tokens += [token for record in done.records for token in record.tokens]
        pool.copy_(built.cache.pool)
        built.runner.rehearse()
        assert torch.equal(pool, built.cache.pool)
    assert tokens == alone
