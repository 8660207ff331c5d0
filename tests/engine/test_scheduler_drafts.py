"""Drafted tokens in a scheduler's steps: whose they are, and which blocks they may have.

Blocks hold 4 tokens; a step has 12, a chunk 6, a batch 4 sequences. Each draw is of token 50.
"""

from __future__ import annotations

from typing import Any

import pytest
from lone_sequences import add, commit, granted, occupy, small_scheduler

from pagewire.core.messages import Role
from pagewire.engine.limits import Limits
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence
from pagewire.engine.speculation import Speculation
from pagewire.engine.step_meter import StepMeter


class AlwaysDrafts(Speculation):
    """Drafts as many tokens for each decode as a test says; remembers whom it was asked about, with what room."""

    def __init__(self, count: int) -> None:
        super().__init__(count, StepMeter())
        self.count = count
        self.asked: list[tuple[list[str], int]] = []

    def draft(self, decodes: list[Sequence], _limits: Limits, room: int) -> dict[Sequence, tuple[int, ...]]:
        self.asked.append(([each.name for each in decodes], room))
        return {each: tuple(range(90, 90 + self.count)) for each in decodes}


def drafting(count: int, num_blocks: int = 20, **bounds: Any) -> tuple[Scheduler, AlwaysDrafts]:
    scheduler = small_scheduler(num_blocks, Role.COLOCATED, **bounds)
    scheduler.speculation = speculation = AlwaysDrafts(count)
    return scheduler, speculation


def test_only_those_that_have_one_token_left_are_drafted_for() -> None:
    """Neither a chunk of one token, which what is left of the budget came to, nor one of more."""
    scheduler, speculation = drafting(0, max_num_batched_tokens=6)
    add(scheduler, "d", 3)
    commit(scheduler, granted(scheduler))
    add(scheduler, "p", 4)
    add(scheduler, "q", 9)
    counts = [(each.request_id, len(each.tokens)) for each in granted(scheduler)]
    assert counts == [("d", 1), ("p", 4), ("q", 1)]
    assert speculation.asked[-1] == (["d"], 0)


def test_a_pod_that_hands_off_drafts_nothing() -> None:
    """Whoever goes on elsewhere says one token here."""
    scheduler = small_scheduler(20, Role.PREFILL)
    scheduler.speculation = AlwaysDrafts(3)
    add(scheduler, "p", 1)
    (grant,) = granted(scheduler)
    assert (len(grant.tokens), grant.checks) == (1, ())


@pytest.mark.parametrize(
    ("num_computed", "drafted", "num_free", "kept", "blocks"),
    [
        (6, 1, 9, 1, 2),  # token 7 goes to the last slot of the block that is there
        (6, 2, 9, 2, 3),  # one more block
        (6, 6, 9, 6, 4),  # two more
        (6, 6, 1, 5, 3),  # as many tokens as there are slots in the blocks that are free
        (6, 6, 0, 1, 2),
    ],
)
def test_drafts_have_the_blocks_that_nobody_else_wants(
    num_computed: int, drafted: int, num_free: int, kept: int, blocks: int
) -> None:
    scheduler, _ = drafting(drafted)
    sequence = add(scheduler, "d", num_computed)
    commit(scheduler, granted(scheduler))
    occupy(scheduler, scheduler.pool.num_available - num_free)
    (grant,) = granted(scheduler)
    assert (len(grant.tokens) - 1, len(sequence.block_table)) == (kept, blocks)
    assert grant.tokens[1:] == tuple(range(90, 90 + kept))
    assert len(grant.checks) == kept


def test_what_is_promised_to_others_is_not_free_for_drafts() -> None:
    scheduler, _ = drafting(6)
    sequence = add(scheduler, "d", 6)
    commit(scheduler, granted(scheduler))
    scheduler.pool.reserve(scheduler.pool.num_available - 1)
    assert scheduler.pool.num_free > 3
    (grant,) = granted(scheduler)
    assert (len(grant.tokens) - 1, len(sequence.block_table)) == (5, 3)
    scheduler.pool.unreserve(scheduler.pool.num_reserved)


@pytest.mark.parametrize("num_right", [0, 1, 2, 6])
def test_blocks_of_drafts_that_were_wrong_are_given_back(num_right: int) -> None:
    """All but that of the last token, whether it is full or not."""
    scheduler, _ = drafting(0)
    sequence = add(scheduler, "d", 6)
    commit(scheduler, granted(scheduler))
    sequence.block_table.extend(scheduler.pool.allocate(2))  # as for 6 drafted tokens
    sequence.output.extend([50] * num_right)  # so that there are 7 + num_right tokens
    scheduler.trim(sequence)
    assert len(sequence.block_table) == scheduler.limits.num_blocks(7 + num_right)
    assert scheduler.pool.num_held == len(sequence.block_table)
