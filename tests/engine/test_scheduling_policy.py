"""Ranks: what each policy prefers, and that nobody starves, whatever an adversary lets arrive and for however long."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from engine_runs import spec
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import MAX_PRIORITY
from pagewire.engine import progress
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.scheduling_policy import (
    S_PER_PRIORITY,
    FirstComeFirstServed,
    PolicyName,
    Priority,
    SchedulingPolicy,
    ShortestRemainingPrefill,
    policy_named,
)
from pagewire.engine.step import Computed

PRIORITIES = st.integers(-MAX_PRIORITY, MAX_PRIORITY)
LEFT = st.integers(1, 200_000)


@pytest.mark.parametrize("name", PolicyName)
@settings(max_examples=200, deadline=None)
@given(ours=st.tuples(PRIORITIES, LEFT), theirs=st.tuples(PRIORITIES, LEFT), later_s=st.floats(1e-6, 1e6))
def test_nobody_is_overtaken_by_who_comes_later_than_the_span(
    name: PolicyName, ours: tuple[int, int], theirs: tuple[int, int], later_s: float
) -> None:
    policy = policy_named(name)
    for priority, left in (ours, theirs):
        assert 0.0 <= policy.handicap_s(priority, left) <= policy.span_s
        assert policy.handicap_s(priority, left) >= policy.handicap_s(priority, 1), "it only falls while one runs"
    assert policy.handicap_s(*ours) < policy.span_s + later_s + policy.handicap_s(*theirs)


def test_what_each_policy_prefers() -> None:
    fcfs, priority, srpt = FirstComeFirstServed(), Priority(), ShortestRemainingPrefill()
    assert fcfs.handicap_s(-5, 10) == fcfs.handicap_s(5, 10_000)
    assert priority.handicap_s(1, 10_000) - priority.handicap_s(0, 10) == S_PER_PRIORITY
    assert priority.handicap_s(MAX_PRIORITY + 9, 1) == priority.span_s, "out of bounds is the nearest bound"
    assert srpt.handicap_s(5, 10) < srpt.handicap_s(-5, 11)
    with pytest.raises(ValueError, match="lottery"):
        policy_named("lottery")


@pytest.mark.parametrize("name", PolicyName)
def test_the_span_is_what_the_last_of_all_is_put_back_by(name: PolicyName) -> None:
    policy = policy_named(name)
    assert policy.span_s == pytest.approx(policy.handicap_s(MAX_PRIORITY, 1_000_000))


@dataclass(frozen=True, slots=True)
class Arrival:
    priority: int
    length: int
    max_tokens: int


ARRIVALS = st.builds(Arrival, st.sampled_from([-MAX_PRIORITY, 0, MAX_PRIORITY]), st.integers(1, 60), st.integers(1, 20))


def finished(scheduler: Scheduler, max_prefill_tokens: int | None = None) -> set[str]:
    """Run one step of a made-up model, and return who ended."""
    step = scheduler.schedule(max_prefill_tokens)
    ended = set()
    for grant in step.grants if step is not None else ():
        sequence = scheduler.sequences[grant.request_id]
        computed = Computed(token=7 if grant.draw is not None else None)
        done = progress.commit(scheduler, sequence, grant, {grant.request_id: computed})
        if done.end is not None:
            ended.add(grant.request_id)
    scheduler.pool.check()
    return ended


def scheduler_of(policy: SchedulingPolicy, num_blocks: int, max_num_seqs: int) -> Scheduler:
    limits = Limits(
        max_num_batched_tokens=32, max_num_seqs=max_num_seqs, chunk_size=16, block_size=16, max_model_len=100,
        vocab_size=100,
    )  # fmt: skip
    return Scheduler(BlockPool(num_blocks, 4), limits, policy_of(Role.DECODE), policy)


@pytest.mark.parametrize("name", PolicyName)
@settings(max_examples=25, deadline=None)
@given(
    before=st.lists(ARRIVALS, max_size=6),
    stream=st.lists(ARRIVALS, min_size=1, max_size=4),
    num_blocks=st.integers(8, 14),
    max_num_seqs=st.integers(1, 5),
    max_prefill=st.none() | st.integers(1, 16),
)
def test_the_least_wanted_ends_while_others_never_stop_arriving(
    name: PolicyName,
    before: list[Arrival],
    stream: list[Arrival],
    num_blocks: int,
    max_num_seqs: int,
    max_prefill: int | None,
) -> None:
    """An adversary sends something it likes better at every step, for ever."""
    policy = policy_named(name)
    scheduler = scheduler_of(policy, num_blocks, max_num_seqs)
    step_s = policy.span_s / 10 + 0.1
    arrived_s: dict[str, float] = {}

    def add(request: str, arrival: Arrival, now_s: float) -> None:
        sampling = SamplingParams(max_tokens=arrival.max_tokens, temperature=0.0)
        scheduler.add(spec(request, [5] * arrival.length, sampling, priority=arrival.priority), now_s=now_s)
        arrived_s[request] = now_s

    for number, arrival in enumerate(before):
        add(f"before {number}", arrival, 0.0)
    add("victim", Arrival(MAX_PRIORITY, 60, 30), 0.0)
    ended: set[str] = set()
    for number in range(4000):
        add(f"stream {number}", stream[number % len(stream)], (number + 1) * step_s)
        newly = finished(scheduler, max_prefill)
        if "victim" in newly:
            break
        ended |= newly
        started = {each.request_id for each in scheduler.running}
        if "victim" not in started | ended:
            assert all(arrived_s[each] <= policy.span_s + 1e-6 for each in started), "it was overtaken too late"
    else:
        raise AssertionError("the victim starves")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fcfs", ["long", "short", "urgent"]), ("priority", ["urgent", "long", "short"]), ("srpt", ["short", "urgent"])],
)
def test_slots_and_blocks_go_by_rank(name: str, expected: list[str]) -> None:
    scheduler = scheduler_of(policy_named(name), 12, 1)
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    for request, length, priority in (("long", 80, 0), ("short", 3, 0), ("urgent", 40, -1)):
        scheduler.add(spec(request, [1] * length, sampling, priority=priority), now_s=1.0)
    order = [request for _ in range(20) for request in sorted(finished(scheduler))]
    assert order[: len(expected)] == expected
    assert sorted(order) == ["long", "short", "urgent"]


def test_the_last_in_rank_is_preempted_and_not_the_newest() -> None:
    scheduler = scheduler_of(policy_named("priority"), 8, 4)
    for request, priority in (("low", 1), ("urgent", -1)):
        sampling = SamplingParams(max_tokens=60, temperature=0.0)
        scheduler.add(spec(request, [1] * 30, sampling, priority=priority), now_s=1.0)
    while not scheduler.num_preemptions:
        finished(scheduler)
    assert [each.request_id for each in scheduler.waiting] == ["low"]
