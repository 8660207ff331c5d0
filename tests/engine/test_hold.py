"""Holds on a scheduler's pool: how much of a chain one gets, under which id, and what ends it."""

from __future__ import annotations

import pytest
from engine_runs import ROOT, greedy, spec

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.messages import Role
from pagewire.engine import hold
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler

B = 16
NAMES = chain(ROOT, range(4 * B), B)


def make(num_blocks: int, cached: list[BlockHash], num_host_slots: int = 0, *, spills: bool = False) -> Scheduler:
    """Return a scheduler whose pool caches a chain that nobody holds."""
    limits = Limits(
        max_num_batched_tokens=64, max_num_seqs=8, chunk_size=32, block_size=B, max_model_len=200, vocab_size=256,
        eos_token_ids=frozenset(), spills=spills,
    )  # fmt: skip
    scheduler = Scheduler(BlockPool(num_blocks, num_host_slots), limits, policy_of(Role.DECODE))
    table = scheduler.pool.allocate(len(cached))
    scheduler.pool.register(table, cached)
    scheduler.pool.release(table)
    return scheduler


def test_a_hold_is_held_until_its_end_and_ends_once() -> None:
    scheduler = make(6, NAMES)
    assert hold.hold(scheduler, "h", NAMES[1:3]) == (1, 2)
    assert (scheduler.pool.num_held, scheduler.pool.num_cached) == (2, 2)
    assert hold.release(scheduler, "h") is True
    assert hold.release(scheduler, "h") is False
    assert (scheduler.pool.num_held, scheduler.pool.num_cached) == (0, 4)
    assert scheduler.holds == {}


def test_an_id_that_names_something_gets_no_hold() -> None:
    scheduler = make(6, NAMES)
    scheduler.add(spec("a sequence", [1], greedy(1)))
    assert hold.hold(scheduler, "a hold", NAMES[:1]) == (0,)
    for name in ("a sequence", "a hold"):
        assert hold.hold(scheduler, name, NAMES[:2]) == ()
    assert (set(scheduler.holds), scheduler.pool.num_held) == ({"a hold"}, 1)


def test_what_nobody_caches_is_no_hold() -> None:
    scheduler = make(6, NAMES[:2])
    assert hold.hold(scheduler, "h", NAMES[2:]) == ()
    assert hold.hold(scheduler, "h", ()) == ()
    assert scheduler.holds == {}


@pytest.mark.parametrize(("promised", "held"), [(0, 4), (2, 4), (3, 3), (5, 1), (6, 0)])
def test_a_hold_goes_as_far_as_no_promise_is_broken(promised: int, held: int) -> None:
    scheduler = make(6, NAMES)
    scheduler.pool.reserve(promised)
    assert len(hold.hold(scheduler, "h", NAMES)) == held
    table = scheduler.pool.allocate_reserved(promised)
    assert len(table) == promised
    scheduler.pool.release(table)


@pytest.mark.parametrize("promised", [0, 1])
def test_a_hold_goes_on_with_copies_from_host_memory_where_all_of_the_pool_s_could_be_held(promised: int) -> None:
    scheduler = make(5, NAMES, num_host_slots=4)
    pool = scheduler.pool
    pool.release(pool.allocate(3))  # the last two of the chain go down
    assert (pool.match(NAMES), pool.host.num_parked) == ([0, 1], 2)
    pool.reserve(promised)
    assert len(hold.hold(scheduler, "h", NAMES)) == 4
    assert pool.host.num_parked == 2, "what is held of them are copies"
    pool.check()


def test_while_somebody_waits_for_blocks_a_hold_has_only_what_a_sequence_or_the_pod_keeps_anyway() -> None:
    scheduler = make(8, NAMES[:3], num_host_slots=4)
    pool = scheduler.pool
    pool.pin(pool.match(NAMES[:1]))
    scheduler.add(spec("runs", range(B * 2 + 1), greedy(20)))
    scheduler.schedule()
    assert hold.hold(scheduler, "before", NAMES[2:3]) == (2,)
    scheduler.add(spec("waits", [9] * 110, greedy(1)))
    scheduler.schedule()
    assert [each.name for each in scheduler.waiting] == ["waits"]
    assert hold.hold(scheduler, "of a hold", NAMES[2:3]) == ()
    assert hold.hold(scheduler, "of a sequence", NAMES) == (0, 1)
    scheduler.remove_request("runs")
    hold.release(scheduler, "of a sequence")
    assert hold.hold(scheduler, "for good", NAMES) == (0,), "nobody else keeps the second any more"
    scheduler.remove_request("waits")
    assert hold.hold(scheduler, "of anybody", NAMES) == (0, 1, 2)


def test_while_somebody_waits_for_blocks_nothing_is_copied_from_host_memory() -> None:
    scheduler = make(5, NAMES, num_host_slots=4)
    pool = scheduler.pool
    others = pool.allocate(3)
    assert pool.host.num_parked == 2
    scheduler.holds["others"] = others
    scheduler.add(spec("waits", [9] * 50, greedy(1)))
    assert scheduler.schedule() is None
    hold.release(scheduler, "others")
    assert hold.hold(scheduler, "h", NAMES) == hold.hold(scheduler, "h", NAMES[2:]) == ()
    assert scheduler.schedule() is not None
    assert len(hold.hold(scheduler, "h", NAMES[2:])) == 1


def test_nothing_is_held_beside_a_sequence_that_is_larger_than_the_pool() -> None:
    scheduler = make(5, NAMES[:2], num_host_slots=8, spills=True)
    scheduler.add(spec("large", [*range(2 * B), *[9] * 60], greedy(1)))
    assert scheduler.schedule() is not None
    assert (scheduler.pool.match(NAMES), hold.hold(scheduler, "h", NAMES)) == ([0, 1], ())
    scheduler.remove_request("large")
    assert hold.hold(scheduler, "h", NAMES) == (0, 1)


def test_pinned_blocks_stay_when_all_else_is_taken() -> None:
    scheduler = make(6, NAMES)
    pool = scheduler.pool
    assert hold.pin(scheduler, NAMES[:2]) == (0, 1)
    with_others = pool.allocate(4)
    assert (pool.match(NAMES), pool.num_pinned) == ([0, 1], 2)
    pool.release(with_others)
    pool.check()
