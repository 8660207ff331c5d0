"""Room for a prompt that comes from elsewhere: what is promised, bound, kept and joined, to the block and the token."""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import ROOT, greedy, spec
from lone_sequences import granted, occupy, small_scheduler, stepped, warm

from pagewire.core.block_hash import chain
from pagewire.core.engine_messages import Join, Keep
from pagewire.core.errors import EngineFailed, InvalidRequest, Overloaded
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import Branch, SequenceSpec, branches
from pagewire.engine import hold, reservation
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence, State


def request(length: int = 14, **changes: Any) -> SequenceSpec:
    return spec("r", range(length), greedy(20), **changes)


def reserved(scheduler: Scheduler, length: int = 14, **changes: Any) -> Sequence:
    reservation.reserve(scheduler, request(length, **changes))
    return scheduler.sequences["r"]


def begun(*lengths: int) -> tuple[Branch, ...]:
    return tuple(Branch(index=number, output=(1,) * length) for number, length in enumerate(lengths, 1))


@pytest.mark.parametrize(
    ("asked", "role", "total"),
    [
        (request(12), Role.DECODE, 3 + 1),
        (request(14), Role.DECODE, 4 + 1),
        (request(14, output=(1, 2, 3)), Role.DECODE, 5 + 1),
        (request(14), Role.PREFILL, 4),
        (request(14, branches=branches(3)), Role.PREFILL, 4),
        # three full blocks for all; each has its unfilled one and one more
        (request(14, branches=branches(3)), Role.DECODE, 3 + 3 * 2),
        (request(14, output=(1,), branches=begun(5, 1)), Role.DECODE, 3 + 2 + 3 + 2),
    ],
)
def test_what_is_promised_is_what_the_request_needs(asked: SequenceSpec, role: Role, total: int) -> None:
    scheduler = small_scheduler(total, role)
    assert reservation.reserve(scheduler, asked, 2, 3.5) == 0
    sequence = scheduler.sequences["r"]
    assert (sequence.promised, scheduler.pool.num_reserved, scheduler.pool.num_held) == (total, total, 0)
    assert (sequence.state, sequence.reported_blocks, sequence.arrived_s) == (State.RESERVED, 2, 3.5)
    assert (sequence.num_computed, sequence.group.cached_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("length", "changes", "needed", "field"),
    [(16, {}, 5, "prompt"), (14, {}, 5, "prompt"), (16, {"branches": branches(2)}, 6, "n")],
)
def test_what_can_never_fit_is_refused(length: int, changes: dict[str, Any], needed: int, field: str) -> None:
    reservation.reserve(small_scheduler(needed), request(length, **changes))
    scheduler = small_scheduler(needed - 1)
    with pytest.raises(InvalidRequest) as caught:
        reservation.reserve(scheduler, request(length, **changes))
    assert caught.value.field == field
    assert not scheduler.sequences


def pinned(scheduler: Scheduler, num_blocks: int) -> None:
    warm(scheduler, range(100, 100 + 4 * num_blocks))
    held = hold.pin(scheduler, tuple(chain(ROOT, range(100, 100 + 4 * num_blocks), 4)))
    assert len(held) == num_blocks == scheduler.pool.num_pinned


@pytest.mark.parametrize("num_pinned", [0, 3])
def test_sequences_that_outgrow_the_pool_together_are_promised_what_it_can_ever_have(num_pinned: int) -> None:
    scheduler = small_scheduler(9 + num_pinned)
    if num_pinned:
        pinned(scheduler, num_pinned)
    # of 4 blocks each, with 3 in common: 4 + 1, and 3 times 3 + 1 behind them
    sequence = reserved(scheduler, 14, output=(1,), branches=begun(9, 9, 9))
    assert (sequence.promised, scheduler.pool.num_available) == (9, 0)


def test_what_is_pinned_is_waited_for_by_nobody() -> None:
    scheduler = small_scheduler(8)
    pinned(scheduler, 4)
    with pytest.raises(InvalidRequest, match="needs 5 blocks; the KV pool has 4") as caught:
        reservation.reserve(scheduler, request(14))
    assert caught.value.field == "prompt"
    assert reserved(scheduler, 12).promised == 4


def test_what_is_cached_is_pinned_and_the_rest_promised() -> None:
    scheduler = small_scheduler(5)
    blocks = warm(scheduler, range(8))
    assert reservation.reserve(scheduler, request()) == 2
    sequence = scheduler.sequences["r"]
    assert (list(sequence.block_table), sequence.promised, sequence.reported_blocks) == (blocks, 3, 0)
    assert (sequence.num_registered, sequence.num_computed, sequence.group.cached_tokens) == (2, 8, 8)
    assert (scheduler.pool.num_held, scheduler.pool.num_reserved) == (2, 3)
    assert sequence.arrived_s == 0.0


@pytest.mark.parametrize("is_held", [False, True])
def test_it_waits_where_a_block_is_missing(is_held: bool) -> None:
    """Of 7 blocks 2 are cached; it needs those and 3 more. Where others hold the 2 they cost nothing."""
    for taken, fits in ((2, True), (3, False)):
        scheduler = small_scheduler(7)
        blocks = warm(scheduler, range(8))
        if is_held:
            scheduler.pool.share(blocks)
            scheduler.holds["cached"] = blocks
        occupy(scheduler, taken)
        if fits:
            assert reservation.reserve(scheduler, request()) == 2
            continue
        with pytest.raises(Overloaded, match="needs 3 more blocks") as caught:
            reservation.reserve(scheduler, request())
        assert caught.value.retry_after_s > 0
        assert (scheduler.sequences, scheduler.pool.num_reserved) == ({}, 0)


def test_it_waits_behind_who_goes_first_and_lacks_blocks() -> None:
    scheduler = small_scheduler(12)
    occupy(scheduler, 6)
    scheduler.add(spec("first", [5] * 30, greedy(1)))
    assert stepped(scheduler) == [[]]
    with pytest.raises(Overloaded, match="goes first") as caught:
        reservation.reserve(scheduler, request(4))
    assert caught.value.retry_after_s > 0
    assert list(scheduler.sequences) == ["first"]


@pytest.mark.parametrize("goes_on", ["granted", "added", "aborted"])
@pytest.mark.parametrize("is_behind", [False, True])
def test_while_it_is_refused_no_hold_takes_what_it_may_wait_for(goes_on: str, is_behind: bool) -> None:
    """Whether it lacks blocks itself, or comes behind one in the engine that does."""
    scheduler = small_scheduler(12)
    warm(scheduler, range(8))
    names = chain(ROOT, range(8), 4)
    occupy(scheduler, 9)
    if is_behind:
        scheduler.add(spec("first", [5] * 30, greedy(1)))
        assert stepped(scheduler) == [[]]
    with pytest.raises(Overloaded):
        reservation.reserve(scheduler, request(14))
    scheduler.remove_request("first")
    assert hold.hold(scheduler, "h", names) == ()
    match goes_on:
        case "granted":
            hold.release(scheduler, "hold 0")
            reservation.reserve(scheduler, request(14))
        case "added":
            scheduler.add(request(14))
        case _:
            scheduler.remove_request("r")
    assert len(hold.hold(scheduler, "h", names)) == 2


def test_what_host_memory_has_comes_up_into_promised_blocks() -> None:
    scheduler = small_scheduler(6, num_slots=6)
    warm(scheduler, range(8))
    scheduler.pool.release(scheduler.pool.allocate(6))
    assert (scheduler.pool.num_cached, scheduler.pool.host.num_parked) == (0, 2)
    assert reservation.reserve(scheduler, request()) == 2
    sequence = scheduler.sequences["r"]
    assert (len(sequence.block_table), sequence.promised, scheduler.pool.num_reserved) == (2, 3, 3)
    assert (sequence.num_computed, sequence.num_registered) == (8, 2)


@pytest.mark.parametrize("bounds", [{"window": 4}, {"spills": True}])
def test_what_is_larger_than_the_pool_is_promised_nothing_where_it_may_come_in_parts(bounds: dict[str, Any]) -> None:
    scheduler = small_scheduler(6, num_slots=9, **bounds)
    assert reservation.reserve(scheduler, spec("fits", range(20), greedy(20)), now_s=1.0) == 0
    assert scheduler.pool.num_reserved == 6
    assert not reservation.comes_in_parts(scheduler.sequences["fits"])
    scheduler.remove(scheduler.sequences["fits"])
    warm(scheduler, range(8))
    assert reservation.reserve(scheduler, request(21), now_s=2.0) == 0
    sequence = scheduler.sequences["r"]
    assert (sequence.state, list(sequence.block_table), sequence.promised) == (State.RESERVED, [], 0)
    assert reservation.comes_in_parts(sequence)
    assert reservation.bind(scheduler, "r", 3) == ()
    scheduler.add(spec("later", range(50, 55), greedy(1)), now_s=3.0)
    assert reservation.join(scheduler, Join(request_id="r", num_computed=0, output=())) is sequence
    assert sequence.state is State.WAITING
    assert [each.name for each in scheduler.waiting] == ["r", "later"]
    assert not reservation.comes_in_parts(sequence)


def test_what_forks_does_not_come_in_parts() -> None:
    scheduler = small_scheduler(6, window=4)
    with pytest.raises(InvalidRequest):
        reservation.reserve(scheduler, request(21, branches=branches(2)))


def test_who_has_blocks_or_a_promise_does_not_come_in_parts() -> None:
    scheduler = small_scheduler(20)
    sequence = reserved(scheduler)
    assert not reservation.comes_in_parts(sequence)
    reservation.bind(scheduler, "r", 5)
    assert (sequence.promised, len(sequence.block_table)) == (0, 5)
    assert not reservation.comes_in_parts(sequence)


def test_blocks_are_bound_as_they_are_asked_for_and_never_more_than_promised() -> None:
    scheduler = small_scheduler(20)
    sequence = reserved(scheduler)
    for asked, bound in ((2, 2), (1, 2), (2, 2), (4, 4), (9, 5), (9, 5)):
        table = reservation.bind(scheduler, "r", asked)
        assert table == tuple(sequence.block_table)
        assert (len(table), sequence.promised, scheduler.pool.num_reserved) == (bound, 5 - bound, 5 - bound)
    assert len(set(sequence.block_table)) == 5


def test_only_who_is_reserved_is_bound_kept_and_joined() -> None:
    scheduler = small_scheduler(20)
    scheduler.add(spec("r", range(14), greedy(20)))
    stepped(scheduler)
    for name in ("r", "nobody"):
        assert reservation.bind(scheduler, name, 1) == ()
        assert reservation.keep(scheduler, Keep(request_id=name, num_computed=4)) is None
        assert reservation.join(scheduler, Join(request_id=name, num_computed=0, output=())) is None
    assert (len(scheduler.sequences["r"].block_table), scheduler.sequences["r"].num_computed) == (4, 6)


def test_what_is_kept_lies_in_bound_blocks_and_never_shrinks() -> None:
    scheduler = small_scheduler(20)
    sequence = reserved(scheduler)
    for num_blocks, said, computed in ((2, 5, 5), (2, 3, 5), (2, 9, 8), (4, 9, 9), (4, 13, 13), (4, 14, 13)):
        reservation.bind(scheduler, "r", num_blocks)
        assert reservation.keep(scheduler, Keep(request_id="r", num_computed=said)) is sequence
        assert sequence.num_computed == computed


@pytest.mark.parametrize(
    ("bound", "landed", "computed"),
    [(4, 8, 8), (4, 13, 13), (4, 14, 13), (3, 12, 12), (3, 13, None), (4, 15, None), (4, 7, None)],
)
def test_what_landed_is_no_less_than_was_cached_and_no_more_than_can_be(
    bound: int, landed: int, computed: int | None
) -> None:
    scheduler = small_scheduler(20)
    warm(scheduler, range(8))
    sequence = reserved(scheduler)
    reservation.bind(scheduler, "r", bound)
    message = Join(request_id="r", num_computed=landed, output=())
    if computed is None:
        with pytest.raises(EngineFailed, match=f"{landed} tokens are said to have landed; between 8 and"):
            reservation.join(scheduler, message)
        assert (scheduler.sequences, scheduler.pool.num_held, scheduler.pool.num_reserved) == ({}, 0, 0)
        return
    assert reservation.join(scheduler, message) is sequence
    assert (sequence.num_computed, sequence.group.fetched_tokens) == (computed, computed - 8)
    assert (sequence.state, scheduler.joined) == (State.JOINED, [sequence])
    assert (len(sequence.block_table), sequence.promised, scheduler.pool.num_reserved) == (4, 0, 0)
    assert (scheduler.num_prompt_tokens, scheduler.num_cached_tokens) == (14, 8)


def test_a_join_counts_what_was_cached_when_it_was_reserved_and_no_more() -> None:
    """What was bound since, and what was kept, did not come from the cache."""
    scheduler = small_scheduler(20)
    warm(scheduler, range(4))
    sequence = reserved(scheduler)
    scheduler.pool.pin(scheduler.pool.match(sequence.hit_chain()))
    reservation.bind(scheduler, "r", 4)
    reservation.keep(scheduler, Keep(request_id="r", num_computed=9))
    reservation.join(scheduler, Join(request_id="r", num_computed=5, output=()))
    counts = scheduler.num_prompt_tokens, scheduler.num_cached_tokens, scheduler.num_pinned_tokens
    assert counts == (14, 4, 4)
    assert (sequence.num_computed, sequence.group.fetched_tokens) == (9, 5)


def test_a_join_brings_tokens_and_blocks_for_them() -> None:
    scheduler = small_scheduler(20)
    sequence = reserved(scheduler)
    reservation.bind(scheduler, "r", 2)
    message = Join(request_id="r", num_computed=8, output=(1, 2, 3), index=2)
    assert reservation.join(scheduler, message) is sequence
    assert (sequence.output, sequence.index, len(sequence.block_table)) == ([1, 2, 3], 2, 5)
    assert sequence.group.fetched_tokens == 8
    assert granted(scheduler)[0].tokens == (*range(8, 14),)


@pytest.mark.parametrize(("output", "fits"), [((7, 8), True), ((7, 8, 9), True), ((7,), False), ((8, 8, 9), False)])
def test_a_join_goes_on_from_the_output_that_was_out(output: tuple[int, ...], fits: bool) -> None:
    scheduler = small_scheduler(20)
    sequence = reserved(scheduler, output=(7, 8))
    reservation.bind(scheduler, "r", 4)
    message = Join(request_id="r", num_computed=16, output=output)
    if fits:
        assert reservation.join(scheduler, message) is sequence
        assert sequence.output == list(output)
        assert sequence.num_computed == (16 if len(output) > 2 else 15)
        return
    with pytest.raises(EngineFailed, match="does not begin with"):
        reservation.join(scheduler, message)
    assert (scheduler.sequences, scheduler.pool.num_held, scheduler.pool.num_reserved) == ({}, 0, 0)


def test_those_that_join_with_it_fork_off() -> None:
    scheduler = small_scheduler(20)
    first = reserved(scheduler, branches=branches(2))
    reservation.bind(scheduler, "r", 4)
    reservation.join(scheduler, Join(request_id="r", num_computed=14, output=(5,), branches=begun(1)))
    assert [each.name for each in scheduler.joined] == ["r", "r\x1f1"]
    assert scheduler.sequences["r\x1f1"].block_table == first.block_table[:4]


def test_a_chain_of_another_root_is_not_hit() -> None:
    scheduler = small_scheduler(20)
    warm(scheduler, range(8))
    other = SequenceSpec(request_id="r", tokens=tuple(range(14)), sampling=greedy(2), root=type(ROOT)(b"x" * 16))
    assert reservation.reserve(scheduler, other) == 0
