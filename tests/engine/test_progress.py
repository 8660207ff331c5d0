"""What is told of a computed grant, to the last field: tokens and scores, chunks for other pods, ends, and beams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest import mock

import pytest
from engine_runs import greedy, spec
from lone_sequences import commit, granted, small_scheduler, stepped, warm

from pagewire.core.engine_messages import ChunkDone, Join, SequenceEnd
from pagewire.core.messages import Role
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.sequence_spec import Branch, branches
from pagewire.core.token_record import TokenLogprobs, TokenRecord
from pagewire.engine import progress, reservation
from pagewire.engine.beam_search import Candidates
from pagewire.engine.drafter import PRIOR, RUN, Drafter
from pagewire.engine.group import Group
from pagewire.engine.progress import Progress
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.speculation import Speculation
from pagewire.engine.step import Computed
from pagewire.engine.step_meter import StepMeter


def scored(*tokens: int) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(token=token, logprob=-1.0, rank=1) for token in tokens)


def said(position: int, *tokens: int, index: int = 0, **more: Any) -> TokenRecord:
    return TokenRecord(request_id="r", index=index, position=position, tokens=tokens, **more)


GOES_ON = Progress(records=(said(0),))  # a search, whose beams have one token more


def ended(computed: int, cached: int = 0, fetched: int = 0, chunks: int = 1) -> SequenceEnd:
    return SequenceEnd(
        request_id="r", cached_tokens=cached, computed_tokens=computed, fetched_tokens=fetched, chunks=chunks
    )


def step(scheduler: Scheduler, **computed: Computed) -> Progress:
    """Compute the one grant of the next step; `computed` is by the index of the sequence, "i0" and so on."""
    grants = granted(scheduler)
    names = {f"i{draw.index}": name for grant in grants for name, draw in grant.draws().items()}
    found = {names.get(key, "r"): value for key, value in computed.items()}
    (done,) = commit(scheduler, grants, found)
    return done


def test_a_local_run_says_each_token_and_its_end() -> None:
    scheduler = small_scheduler()
    warm(scheduler, range(4))
    scheduler.add(spec("r", range(12), greedy(3)))
    assert step(scheduler) == Progress()  # 6 of the 8 that are not cached
    assert step(scheduler, i0=Computed(token=5)) == Progress(records=(said(0, 5),))
    assert scheduler.sequences["r"].output == [5]
    logprobs = TokenLogprobs(token=6, logprob=-0.5, rank=2)
    assert step(scheduler, i0=Computed(token=6, logprobs=logprobs)) == Progress(
        records=(said(1, 6, logprobs=(logprobs,)),)
    )
    assert step(scheduler, i0=Computed(token=7)) == Progress(
        records=(said(2, 7, finish_reason=FinishReason.LENGTH),), end=ended(8, cached=4, chunks=2)
    )
    assert (scheduler.sequences, scheduler.groups, scheduler.pool.num_held) == ({}, {}, 0)


def test_token_0_is_a_token() -> None:
    scheduler = small_scheduler()
    scheduler.add(spec("r", range(3), greedy(3)))
    assert step(scheduler, i0=Computed(token=0)) == Progress(records=(said(0, 0),))


def test_a_stop_token_ends_it_early() -> None:
    scheduler = small_scheduler(eos_token_ids=frozenset({9}))
    scheduler.add(spec("r", range(3), greedy(5, ignore_eos=False)))
    assert step(scheduler, i0=Computed(token=9)) == Progress(
        records=(said(0, 9, finish_reason=FinishReason.STOP),), end=ended(3)
    )


def test_what_was_out_before_is_computed_and_not_said_again() -> None:
    scheduler = small_scheduler()
    scheduler.add(spec("r", range(4), greedy(4, prompt_logprobs=1), output=(8, 9)))
    assert step(scheduler, i0=Computed(token=5, prompt_logprobs=scored(1, 2, 3))) == Progress(
        records=(said(2, 5, prompt_logprobs=scored(1, 2, 3)),)
    )
    assert step(scheduler, i0=Computed(token=6)).end == ended(6)


def test_scores_of_a_prompt_are_said_as_they_come() -> None:
    scheduler = small_scheduler()
    scheduler.add(spec("r", range(8), greedy(3, prompt_logprobs=0)))
    first = scored(1, 2, 3, 4, 5, 6)
    assert step(scheduler, r=Computed(prompt_logprobs=first)) == Progress(records=(said(0, prompt_logprobs=first),))
    assert scheduler.sequences["r"].num_scored == 6
    done = step(scheduler, i0=Computed(token=5, prompt_logprobs=scored(7)))
    assert done == Progress(records=(said(0, 5, prompt_logprobs=scored(7)),))
    assert scheduler.sequences["r"].num_scored == 7


def test_scores_stand_behind_what_was_out_in_the_sequence_that_they_are_of() -> None:
    scheduler = small_scheduler()
    scheduler.add(spec("r", range(8), greedy(9, prompt_logprobs=0), output=(8, 9), index=3))
    first = scored(1, 2, 3, 4, 5, 6)
    assert step(scheduler, r=Computed(prompt_logprobs=first)).records == (said(2, index=3, prompt_logprobs=first),)


def test_those_that_fork_say_their_own_and_end_together() -> None:
    scheduler = small_scheduler(eos_token_ids=frozenset({9}))
    scheduler.add(spec("r", range(5), greedy(2, ignore_eos=False), branches=branches(3)))
    done = step(scheduler, i0=Computed(token=5), i1=Computed(token=9), i2=Computed(token=7))
    assert done == Progress(
        records=(said(0, 5), said(0, 9, index=1, finish_reason=FinishReason.STOP), said(0, 7, index=2))
    )
    assert [each.name for each in scheduler.running] == ["r", "r\x1f2"]
    grants = granted(scheduler)
    first, last = commit(scheduler, grants)
    assert first == Progress(records=(said(1, 50, finish_reason=FinishReason.LENGTH),))
    assert last == Progress(records=(said(1, 50, index=2, finish_reason=FinishReason.LENGTH),), end=ended(5))


def test_computing_again_after_a_preemption_counts_and_a_decode_does_not() -> None:
    scheduler = small_scheduler()
    scheduler.add(spec("r", range(5), greedy(9)))
    stepped(scheduler, 3)
    group = scheduler.groups["r"]
    assert group.computed_tokens == 5
    scheduler._preempt(scheduler.running[0])
    stepped(scheduler, 1)
    assert group.computed_tokens == 6, "the first 4 were cached; behind them 1 had come with the request"


def test_a_request_that_never_ran_ends_with_nothing_cached() -> None:
    assert progress.end_of(Group(request_id="r")) == ended(0, chunks=0)


def test_layers_are_told_of_before_their_grant_is_done() -> None:
    scheduler = small_scheduler(role=Role.PREFILL)
    warm(scheduler, range(4))
    scheduler.add(spec("r", range(9), greedy(3)), first_block=1)
    (grant,) = granted(scheduler)
    sequence = scheduler.sequences["r"]
    assert progress.group_done(sequence, grant, 3) == ChunkDone(
        request_id="r", first_block=1, block_ids=tuple(sequence.block_table[1:3]), cached_tokens=4, computed_tokens=0,
        fetched_tokens=0, is_last=False, group=3,
    )  # fmt: skip
    sequence.group.cached_tokens, sequence.group.computed_tokens, sequence.group.fetched_tokens = None, 2, 5
    done = progress.group_done(sequence, grant, 0)
    assert (done.cached_tokens, done.computed_tokens, done.fetched_tokens, done.group) == (0, 2, 5, 0)


def chunk(
    first: int, blocks: Iterable[int], *, computed: int, is_last: bool, cached: int = 0, fetched: int = 0
) -> ChunkDone:
    return ChunkDone(
        request_id="r", first_block=first, block_ids=tuple(blocks), cached_tokens=cached, computed_tokens=computed,
        fetched_tokens=fetched, is_last=is_last,
    )  # fmt: skip


@pytest.mark.parametrize("first_block", [0, 1, 2, 3, 4, 6])
def test_a_prefill_pod_announces_each_block_once_and_the_unfilled_one_with_the_last(first_block: int) -> None:
    """Of 5 blocks: 6 tokens fill one, 12 fill three, 18 end in the fifth."""
    scheduler = small_scheduler(role=Role.PREFILL)
    scheduler.add(spec("r", range(18), greedy(3)), first_block=first_block)
    first, second = step(scheduler), step(scheduler)
    table = list(scheduler.sequences["r"].block_table)
    third = step(scheduler, i0=Computed(token=5))

    def told(computed: int, start: int, stop: int) -> Progress:
        start = max(start, first_block)
        return Progress(
            chunk=chunk(start, table[start:stop], computed=computed, is_last=False) if start < stop else None
        )

    start = max(3, first_block)
    assert first == told(6, 0, 1)
    assert second == told(12, 1, 3)
    assert third == Progress(records=(said(0, 5),), chunk=chunk(start, table[start:5], computed=18, is_last=True))
    sequence = scheduler.sequences["r"]
    assert (sequence.reported_blocks, sequence.output, scheduler.running) == (max(5, first_block), [5], [])


def test_what_a_prefill_pod_fetched_is_told_and_announced_with_the_rest() -> None:
    scheduler = small_scheduler(role=Role.PREFILL)
    warm(scheduler, range(4))
    reservation.reserve(scheduler, spec("r", range(14), greedy(3)))
    reservation.bind(scheduler, "r", 3)
    reservation.join(scheduler, Join(request_id="r", num_computed=9, output=()))
    done = step(scheduler, i0=Computed(token=5))
    table = scheduler.sequences["r"].block_table
    assert done.chunk == chunk(0, table, computed=5, is_last=True, cached=4, fetched=5)


@pytest.mark.parametrize(
    ("tokens", "goes_on"), [((5, 6, 7), True), ((9, 6, 9), True), ((9, 9, 7), True), ((9, 9, 9), False)]
)
def test_all_first_tokens_leave_together_and_nothing_ships_where_all_are_the_last(
    tokens: tuple[int, ...], goes_on: bool
) -> None:
    scheduler = small_scheduler(role=Role.PREFILL, eos_token_ids=frozenset({9}))
    scheduler.add(spec("r", range(5), greedy(4, ignore_eos=False), branches=branches(3)))
    done = step(scheduler, **{f"i{index}": Computed(token=token) for index, token in enumerate(tokens)})
    table = scheduler.sequences["r"].block_table
    reasons = [FinishReason.STOP if token == 9 else None for token in tokens]
    assert done == Progress(
        records=tuple(
            said(0, token, index=index, finish_reason=reason)
            for index, (token, reason) in enumerate(zip(tokens, reasons, strict=True))
        ),
        chunk=chunk(0, table if goes_on else [], computed=5, is_last=True),
        end=None if goes_on else ended(5),
    )
    assert scheduler.sequences["r"].output == [tokens[0]]


def test_a_first_token_has_its_place_behind_what_was_out() -> None:
    scheduler = small_scheduler(role=Role.PREFILL)
    scheduler.add(spec("r", range(3), greedy(3), output=(8, 9)))
    done = step(scheduler, i0=Computed(token=5))
    assert done.records == (said(2, 5, finish_reason=FinishReason.LENGTH),)
    assert done.end == ended(5)


# ------------------------------------------------------------------------------------------------------- what is cached


def test_full_blocks_are_known_as_soon_as_they_are_full() -> None:
    scheduler = small_scheduler(chunk_size=3)
    scheduler.add(spec("r", range(10), greedy(9)))
    for computed, full in ((3, 0), (6, 1), (9, 2), (10, 2), (11, 2), (12, 3)):
        stepped(scheduler)
        sequence = scheduler.sequences["r"]
        assert (sequence.num_computed, sequence.num_registered) == (computed, full)
        assert scheduler.pool.match(sequence.chain(full)) == list(sequence.block_table[:full])


def test_a_chain_whose_beginning_left_the_cache_stands_for_its_own_blocks() -> None:
    scheduler = small_scheduler(num_blocks=8)
    known = warm(scheduler, range(4))
    scheduler.add(spec("r", [*range(4), 7], greedy(20)))
    stepped(scheduler)
    sequence = scheduler.sequences["r"]
    assert list(sequence.block_table[:1]) == known
    other = small_scheduler(num_blocks=8)
    for name in ("a", "r"):  # both compute the same first block at once: r's own is not the one that is known
        other.add(spec(name, range(4), greedy(20 if name == "r" else 1)))
    stepped(other)
    ours = other.sequences["r"]
    assert (ours.num_registered, other.pool.match(ours.chain(1)) == list(ours.block_table[:1])) == (1, False)
    other.pool.release(other.pool.allocate(other.pool.num_available))
    assert other.pool.match(ours.chain(1)) == []
    stepped(other, 5)
    assert ours.num_registered == 2
    assert other.pool.match(ours.chain(2)) == list(ours.block_table[:2])


def test_behind_a_window_what_is_still_held_is_known() -> None:
    scheduler = small_scheduler(window=4)
    scheduler.add(spec("r", range(14), greedy(9)))
    stepped(scheduler, 3)
    sequence = scheduler.sequences["r"]
    assert (sequence.num_computed, sequence.num_registered, sequence.num_gone) == (14, 3, 2)
    scheduler.pool.release(scheduler.pool.allocate(scheduler.pool.num_available))  # the passed ones leave the cache
    assert scheduler.pool.match(sequence.chain(3)) == []
    stepped(scheduler, 3)
    assert sequence.num_computed == 17
    assert scheduler.pool.match(sequence.chain(4)) == []


# ---------------------------------------------------------------------------------------------------------------- beams


def heard(*tokens: tuple[int, float]) -> Computed:
    return Computed(
        candidates=Candidates(tokens=tuple(token for token, _ in tokens), logprobs=tuple(p for _, p in tokens))
    )


def searching(length: int = 5, max_tokens: int = 3, width: int = 2, **changes: Any) -> Scheduler:
    scheduler = small_scheduler()
    asked = SamplingParams(
        use_beam_search=True, beam_width=width, n=width, temperature=0.0, max_tokens=max_tokens, **changes
    )
    scheduler.add(spec("r", range(length), asked, branches=branches(width)))
    return scheduler


def outputs(scheduler: Scheduler) -> dict[int, list[int]]:
    return {each.index: each.output for each in scheduler.running}


def beam_step(scheduler: Scheduler, *computed: Computed) -> list[Progress]:
    """Compute the next step's grants with what each is told, in their order."""
    done = []
    for grant, each in zip(granted(scheduler), computed, strict=True):
        done += commit(scheduler, [grant], {grant.request_id: each})
    return done


def test_beams_fork_are_dropped_and_end_together() -> None:
    scheduler = searching()
    assert beam_step(scheduler, heard((5, -1.0), (6, -2.0), (7, -3.0))) == [GOES_ON]
    assert outputs(scheduler) == {0: [5], 1: [6]}
    # Both of the best go on from beam 1, which is dropped from 0.
    assert beam_step(scheduler, heard((1, -9.0), (2, -9.5)), heard((3, -0.1), (4, -0.2))) == [Progress(), GOES_ON]
    assert outputs(scheduler) == {0: [6, 4], 1: [6, 3]}
    assert [each.unforked for each in scheduler.running] == [(), ()]
    scheduler.pool.check()
    first, last = beam_step(scheduler, heard((1, -1.0), (2, -4.0)), heard((3, -0.5), (4, -5.0)))
    assert first == Progress()

    def found(index: int, total: float, *tokens: int) -> TokenRecord:
        more = {"finish_reason": FinishReason.LENGTH, "cumulative_logprob": total, "score": total / 3}
        return said(0, *tokens, index=index, **more)

    assert last == Progress(records=(found(0, -2.6, 6, 3, 3), found(1, -3.2, 6, 4, 1)), end=ended(5))
    assert (scheduler.sequences, scheduler.groups, scheduler.pool.num_held) == ({}, {}, 0)


def test_beams_that_may_yet_come_keep_their_places() -> None:
    scheduler = searching(width=3, max_tokens=5)
    beam_step(scheduler, heard((5, -1.0)))
    assert outputs(scheduler) == {0: [5]}
    assert scheduler.running[0].unforked == (Branch(index=1), Branch(index=2))
    beam_step(scheduler, heard((5, -1.0), (6, -2.0)))
    assert outputs(scheduler) == {0: [5, 5], 1: [5, 6]}
    assert [each.unforked for each in scheduler.running] == [(Branch(index=2),), ()]
    beam_step(scheduler, heard((1, -9.0)), heard((3, -0.1), (4, -0.2)))
    assert outputs(scheduler) == {0: [5, 5, 1], 1: [5, 6, 3], 2: [5, 6, 4]}
    assert [each.unforked for each in scheduler.running] == [()] * 3


def test_places_go_to_the_first_beam_that_is_left() -> None:
    scheduler = searching(max_tokens=5)
    beam_step(scheduler, heard((5, -1.0), (6, -2.0)))
    beam_step(scheduler, heard(), heard((3, -0.1)))
    assert outputs(scheduler) == {1: [6, 3]}
    assert [each.unforked for each in scheduler.running] == [(Branch(index=0),)]


def test_places_move_to_a_beam_that_comes_before_the_one_that_kept_them() -> None:
    scheduler = searching(width=3, max_tokens=8)
    beam_step(scheduler, heard((5, -1.0), (6, -2.0)))
    beam_step(scheduler, heard(), heard((3, -0.1)))
    assert [each.unforked for each in scheduler.running] == [(Branch(index=0), Branch(index=2))]
    beam_step(scheduler, heard((1, -0.1), (2, -0.2)))
    assert outputs(scheduler) == {0: [6, 3, 2], 1: [6, 3, 1]}
    beam_step(scheduler, heard((1, -0.1)), heard((2, -0.2)))
    assert {each.index: each.unforked for each in scheduler.running} == {0: (Branch(index=2),), 1: ()}


def test_a_search_without_any_token_is_the_callers_fault() -> None:
    scheduler = searching()
    (done,) = beam_step(scheduler, heard())
    assert done.records == ()
    assert done.end is not None
    assert done.end.error is not None
    assert (done.end.error.cause, done.end.error.field) == ("invalid_request", "sampling")
    assert scheduler.sequences == {}


def test_beams_say_the_scores_of_their_prompt_once() -> None:
    scheduler = searching(length=8, max_tokens=1, prompt_logprobs=0)
    first = scored(1, 2, 3, 4, 5, 6)
    assert beam_step(scheduler, Computed(prompt_logprobs=first)) == [
        Progress(records=(said(0, prompt_logprobs=first),))
    ]
    last = Computed(prompt_logprobs=scored(7), candidates=heard((5, -1.0), (6, -2.0)).candidates)
    (done,) = beam_step(scheduler, last)
    assert done.records[0] == said(0, prompt_logprobs=scored(7))
    assert [(each.index, each.tokens) for each in done.records[1:]] == [(0, (5,)), (1, (6,))]
    assert done.end == ended(8, chunks=2)


@pytest.mark.parametrize(
    ("drawn", "said_tokens", "right"),
    [
        ((7, 8, 9, 1), (7, 8, 9, 1), (3, False)),  # all of the draft, and what follows it
        ((7, 8, 4, 1), (7, 8, 4), (2, True)),
        ((4, 8, 9, 1), (4,), (0, True)),
        ((7, 6, 9, 1), (7, 6), (1, True)),  # 6 ends it, and is not what was drafted
    ],
)
def test_a_draft_is_said_as_far_as_it_is_what_is_drawn(
    drawn: tuple[int, ...], said_tokens: tuple[int, ...], right: tuple[int, bool]
) -> None:
    """Its KV is there up to the last token that was said, and the block that was for the rest is given back."""
    scheduler = small_scheduler(eos_token_ids=frozenset({6}))
    speculation = scheduler.speculation = Speculation(3, StepMeter())
    scheduler.add(spec("r", range(5), greedy(20, ignore_eos=False)))
    step(scheduler, i0=Computed(token=5))
    sequence = scheduler.sequences["r"]
    with mock.patch.object(speculation, "draft", return_value={sequence: (7, 8, 9)}):
        (grant,) = granted(scheduler)
    assert (grant.tokens, grant.start, len(grant.block_ids)) == ((5, 7, 8, 9), 5, 3)
    found = {name: Computed(token=token) for name, token in zip(grant.draws(), drawn, strict=True)}
    with mock.patch.object(speculation, "hear") as heard:
        (done,) = commit(scheduler, [grant], found)
    ends = FinishReason.STOP if 6 in said_tokens else None
    assert done.records == (said(1, *said_tokens, finish_reason=ends),)
    heard.assert_called_once_with(sequence, 3, right[0], has_wrong=right[1])
    if ends is None:
        assert sequence.output == [5, *said_tokens]
        assert sequence.num_computed == 5 + len(said_tokens)
        assert len(sequence.block_table) == -(-(6 + len(said_tokens)) // 4)
    else:
        assert (scheduler.sequences, scheduler.pool.num_held) == ({}, 0)


def test_an_end_within_a_draft_was_drafted_rightly() -> None:
    scheduler = small_scheduler()
    scheduler.speculation = speculation = Speculation(3, StepMeter())
    scheduler.add(spec("r", range(5), greedy(20, stop_token_ids=(8,))))
    step(scheduler, i0=Computed(token=5))
    sequence = scheduler.sequences["r"]
    sequence.drafter = Drafter(())
    with mock.patch.object(speculation, "draft", return_value={sequence: (7, 8, 9)}):
        (grant,) = granted(scheduler)
    found = {name: Computed(token=token) for name, token in zip(grant.draws(), (7, 8, 9, 1), strict=True)}
    (done,) = commit(scheduler, [grant], found)
    assert done.records == (said(1, 7, 8, finish_reason=FinishReason.STOP),)
    assert (speculation.num_drafted, speculation.num_accepted) == (3, 2)
    assert sequence.drafter.acceptance.of(RUN) > PRIOR
