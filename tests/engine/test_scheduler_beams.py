"""Beams in a scheduler's steps: those that wait for others give way first.

Blocks hold 4 tokens; a step has 12, a chunk 6, a batch 4 sequences. Each draw is of token 50.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_runs import greedy, spec
from lone_sequences import add, asked, commit, granted, names, occupy, small_scheduler
from made_up_engine import IdleMover

from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Add, Join
from pagewire.core.errors import ErrorInfo
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import branches
from pagewire.engine import hold, progress, reservation, spec_check
from pagewire.engine.beam_search import Candidates
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.preemption import PreemptionMode
from pagewire.engine.runner import OnGroup
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence, State
from pagewire.engine.step import Computed, Grant, Step


def beam(*tokens: int) -> Computed:
    return Computed(candidates=Candidates(tokens=tokens, logprobs=tuple(-1.0 - place for place in range(len(tokens)))))


def search(scheduler: Scheduler, width: int = 2, **changes: Any) -> None:
    sampling = SamplingParams(use_beam_search=True, beam_width=width, temperature=0.0, max_tokens=8)
    scheduler.add(spec("s", [1] * 5, sampling, branches=branches(width), **changes), now_s=5.0)


def beam_steps(scheduler: Scheduler, count: int) -> list[list[str]]:
    """Take steps in which the first beam becomes all, and each goes on by itself then; return who computed."""
    seen = []
    for _ in range(count):
        grants = granted(scheduler)
        seen.append([each.request_id for each in grants])
        for grant in grants:
            told = Computed(token=50) if grant.draw is not None else Computed()
            if grant.draw is not None and grant.draw.num_candidates:
                told = beam(5) if grant.draw.position else beam(5, 6, 7, 8)
            commit(scheduler, [grant], dict.fromkeys(grant.draws(), told))
    return seen


def beams_wait(scheduler: Scheduler, num_free: int = 3, width: int = 2) -> None:
    """Let beams run in `num_free` blocks until some give theirs to the others, which then wait for them."""
    search(scheduler, width)
    occupy(scheduler, scheduler.pool.num_available - num_free)
    while not scheduler.num_preemptions:
        beam_steps(scheduler, 1)


def test_beams_that_wait_for_others_give_way_to_who_goes_first() -> None:
    scheduler = small_scheduler(12)
    beams_wait(scheduler)
    assert beam_steps(scheduler, 1) == [[]]
    add(scheduler, "p", 3, now_s=1.0)
    late = add(scheduler, "q", 2, now_s=9.0)
    assert beam_steps(scheduler, 1) == [["p"]]
    assert (names(scheduler.running), len(scheduler.waiting), scheduler.num_preemptions) == (["p"], 3, 2)
    assert late.state is State.WAITING, "nobody starts where somebody was just preempted"


def test_who_lacks_blocks_after_that_too_waits() -> None:
    scheduler = small_scheduler(12)
    beams_wait(scheduler)
    large = add(scheduler, "p", 13, now_s=1.0)
    assert beam_steps(scheduler, 1) == [[]]
    assert (large.state, list(large.block_table), scheduler.running) == (State.WAITING, [], [])


@pytest.mark.parametrize(("n", "starts"), [(2, True), (3, True), (4, False)])
def test_beams_that_wait_give_up_their_places_too(n: int, starts: bool) -> None:
    """One decodes, and two of three beams have a place: one more is left. Without the beams there are three."""
    scheduler = small_scheduler(24)
    reservation.reserve(scheduler, asked("o", 2), now_s=1.0)
    reservation.bind(scheduler, "o", 1)
    beams_wait(scheduler, num_free=6, width=3)
    reservation.join(scheduler, Join(request_id="o", num_computed=2, output=(50,)))
    assert beam_steps(scheduler, 1) == [["o"]]
    assert [bool(each.group.search) for each in scheduler.running] == [False, True, True]
    hold.release(scheduler, "hold 0")
    first = add(scheduler, "p", 3, now_s=2.0, branches=branches(n))
    assert beam_steps(scheduler, 1) == [["o", "p"] if starts else ["o"]]
    assert (first.state is State.RUNNING) is starts
    assert not any(each.group.search for each in scheduler.running)


def test_what_was_granted_to_beams_that_give_way_is_taken_back() -> None:
    """Of three beams the second computes its tokens anew, and the third waits, when somebody comes who goes first."""
    scheduler = small_scheduler(20, chunk_size=3)
    search(scheduler, 3)
    occupy(scheduler, scheduler.pool.num_available - 7)
    occupy(scheduler, 3)
    while not scheduler.num_preemptions:
        beam_steps(scheduler, 1)
    assert (len(scheduler.running), len(scheduler.waiting)) == (1, 2)
    occupy(scheduler, scheduler.pool.num_available)  # what the second had computed behind the prompt is gone
    hold.release(scheduler, "hold 1")
    (again,) = beam_steps(scheduler, 1)
    assert [scheduler.sequences[name].num_left for name in again] == [2]
    add(scheduler, "p", 3, now_s=1.0)
    assert beam_steps(scheduler, 1) == [["p"]]


def test_beams_that_wait_do_not_give_way_to_who_comes_later() -> None:
    scheduler = small_scheduler(12)
    beams_wait(scheduler)
    before = scheduler.num_preemptions
    add(scheduler, "p", 3, now_s=9.0)
    assert beam_steps(scheduler, 2) == [[], []]
    assert (len(scheduler.running), scheduler.num_preemptions) == (1, before)


def test_a_beam_that_waits_takes_the_blocks_of_who_joined_behind_it() -> None:
    for joins_s, has_blocks in ((9.0, True), (1.0, False)):
        scheduler = small_scheduler(16, max_num_seqs=2)
        search(scheduler)
        occupy(scheduler, 10)
        reservation.reserve(scheduler, asked("j", 8), now_s=joins_s)
        reservation.bind(scheduler, "j", 3)
        for _ in range(12):
            beam_steps(scheduler, 1)
            if scheduler.num_preemptions:
                break
        (waiting,) = scheduler.waiting
        reservation.join(scheduler, Join(request_id="j", num_computed=8, output=(50,)))
        granted(scheduler)
        assert (waiting.state is State.RUNNING) is has_blocks
        assert (scheduler.sequences["j"].state is State.RUNNING) is not has_blocks


def test_beams_hold_once_what_somebody_else_computes_beside_them() -> None:
    """Both lost the same prompt, and compute it anew in one step: the cache has the other's blocks."""
    scheduler = small_scheduler(
        25, Role.COLOCATED, max_num_batched_tokens=200, max_num_seqs=10, chunk_size=64, max_model_len=64
    )
    prompt = range(10, 46)
    for number, (length, max_tokens) in enumerate(((1, 45), (2, 28), (4, 45))):
        first = 50 + 10 * number
        scheduler.add(spec(f"older {number}", range(first, first + length), greedy(max_tokens)))
    for _ in range(3):
        any_step(scheduler)
    scheduler.add(spec("alike", prompt, greedy(19)))
    sampling = SamplingParams(n=4, use_beam_search=True, beam_width=4, max_tokens=11, temperature=0.0, ignore_eos=True)
    scheduler.add(spec("beams", prompt, sampling, branches=branches(4)))
    while any_step(scheduler):
        assert scheduler.stuck is None
    assert scheduler.num_preemptions > 4
    assert (list(scheduler.sequences), scheduler.pool.num_available) == ([], 25)


def test_a_beam_that_comes_back_with_all_its_kv_is_heard_again() -> None:
    """It is the last one back, and the others were heard while it had nothing: else nobody would let them go on."""
    scheduler = small_scheduler(24, Role.COLOCATED, num_slots=8, preemption=PreemptionMode.SWAP, chunk_size=1)
    search(scheduler)

    def beams() -> list[Sequence]:
        return sorted(scheduler.groups["s"].members, key=lambda each: each.index)

    def steps_until(condition: Callable[[], bool]) -> None:
        for _ in range(20):
            if condition():
                return
            beam_steps(scheduler, 1)
        pytest.fail("never")

    def preempt() -> tuple[Sequence, ...]:
        for each in beams():
            scheduler._preempt(each)
        return tuple(beams())

    steps_until(lambda: [each.num_tokens for each in beams()] == [11, 11])
    first, second = preempt()
    saved = first.tail_hash(first.num_saved)
    assert saved is not None
    scheduler.pool.cache.lost([scheduler.pool.host.discard(saved)])
    steps_until(lambda: second.num_computed == 11 > first.num_computed)
    preempt()
    assert second.num_saved == 11
    occupy(scheduler, scheduler.pool.num_available - 3)
    steps_until(lambda: first.num_computed == 11)
    assert (second.num_computed, second.num_saved) == (0, 11)
    hold.release(scheduler, "hold 0")
    beam_steps(scheduler, 12)
    assert not scheduler.groups
    assert scheduler.pool.num_held == 0


def any_step(scheduler: Scheduler) -> bool:
    """Take a step in which every beam has the same continuations; return whether somebody computed."""
    grants = granted(scheduler)
    for grant in grants:
        if grant.request_id in scheduler.sequences:
            progress.commit(scheduler, scheduler.sequences[grant.request_id], grant, same_for_all(grant))
    return bool(grants)


def same_for_all(grant: Grant) -> dict[str, Computed]:
    return {
        name: beam(*range(1, draw.num_candidates + 1)) if draw.num_candidates else Computed(token=50)
        for name, draw in grant.draws().items()
    }


class SameForAll:
    """A runner that has every beam go on alike."""

    num_recaptures = 0

    def run(self, step: Step, _on_group: OnGroup) -> dict[str, Computed]:
        found: dict[str, Computed] = {}
        for grant in step.grants:
            found |= same_for_all(grant)
        return found

    def rehearse(self) -> None:
        """There is nothing."""


def test_beams_that_wait_for_one_another_for_good_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """None should; if they do, whoever comes behind them has the pool again, and their caller an error."""
    monkeypatch.setattr(spec_check, "_check_beams", lambda *_arguments, **_more: None)
    scheduler = small_scheduler(7, Role.COLOCATED, max_num_batched_tokens=64, chunk_size=64)
    loop = EngineLoop(scheduler, SameForAll(), ManualClock(), IdleMover())
    sampling = SamplingParams(n=4, use_beam_search=True, beam_width=4, max_tokens=20, temperature=0.0, ignore_eos=True)
    loop.add(Add(spec=spec("beams", range(9), sampling, branches=branches(4))))
    loop.add(Add(spec=spec("behind", range(20, 30), greedy(3))))
    ends: dict[str, ErrorInfo | None] = {}
    for _ in range(60):
        done = loop.step()
        ends |= {end.request_id: end.error for end in done.ends} if done is not None else {}
    assert ends["behind"] is None
    assert ends["beams"] is not None
    assert ends["beams"].cause == "internal"
    loop.check()
    assert scheduler.pool.num_held == 0


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """Beams of which some hold what the others wait for, and nobody else is there."""
    monkeypatch.setattr(spec_check, "_check_beams", lambda *_arguments, **_more: None)
    scheduler = small_scheduler(7, Role.COLOCATED, max_num_batched_tokens=64, chunk_size=64)
    sampling = SamplingParams(n=4, use_beam_search=True, beam_width=4, max_tokens=20, temperature=0.0, ignore_eos=True)
    scheduler.add(spec("beams", range(9), sampling, branches=branches(4)))
    num_preempted = -1
    while any_step(scheduler) or scheduler.num_preemptions > num_preempted:
        num_preempted = scheduler.num_preemptions
    assert scheduler.running
    assert scheduler.waiting
    return scheduler


def test_beams_that_are_all_computed_and_were_not_heard_are_stuck() -> None:
    scheduler = small_scheduler(24, Role.COLOCATED)
    assert scheduler.stuck is None
    search(scheduler)
    beam_steps(scheduler, 3)
    assert not scheduler.waiting
    for each in scheduler.running:
        each.num_computed = each.num_tokens
    assert not granted(scheduler)
    assert scheduler.stuck is scheduler.groups["s"]


def test_beams_are_stuck_where_nobody_else_has_anything_to_give_back(stuck: Scheduler) -> None:
    group = stuck.waiting[0].group
    assert stuck.stuck is group
    scheduler, late = stuck, add(stuck, "late", 3)
    assert scheduler.stuck is group, "who waits too has nothing"
    late.state = State.HANDED_OFF
    assert scheduler.stuck is None, "what it holds will come back"
    late.state = State.WAITING
    scheduler.running.append(late)
    assert scheduler.stuck is group, "of those that run some are the request's"
    scheduler.running.remove(late)

    scheduler.joined.append(late)
    assert scheduler.stuck is None
    scheduler.joined.clear()
    scheduler.holds["h"] = []
    assert scheduler.stuck is None
    scheduler.holds.clear()
    scheduler.pool._reserved = 1
    assert scheduler.stuck is None
    scheduler.pool._reserved = 0
    scheduler._departing["gone"] = late
    assert scheduler.stuck is None
    scheduler._departing.clear()
    assert scheduler.stuck is group

    running, scheduler.running = scheduler.running, []
    assert scheduler.stuck is None, "nobody holds what they wait for"
    scheduler.running = running
    search, group.search = group.search, None
    assert scheduler.stuck is None, "no beams"
    group.search = search
    waiting = list(scheduler.waiting)
    scheduler.waiting.clear()
    assert scheduler.stuck is group, "of those that run nobody advances"
    scheduler.waiting.extend(waiting)


def test_beams_come_of_their_parents_candidates_and_of_no_fork() -> None:
    scheduler = small_scheduler(12)
    search(scheduler)
    (grant,) = granted(scheduler)
    assert scheduler.sequences["s"].unforked
    assert (grant.draw is not None, grant.forks) == (True, ())
