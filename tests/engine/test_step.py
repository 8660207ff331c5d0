"""A step as a value: who draws after a grant, and how many tokens it computes."""

from __future__ import annotations

from engine_runs import greedy

from pagewire.engine.block import table_of
from pagewire.engine.step import AHEAD, Computed, Draw, Grant, Step


def drawing(index: int) -> Draw:
    return Draw(sampling=greedy(4), index=index, position=2)


def test_draws_are_named_by_request_and_by_index_behind_it() -> None:
    grant = Grant(
        request_id="r",
        tokens=(1, 2),
        start=0,
        block_ids=table_of((5,)),
        draw=drawing(3),
        forks=(drawing(4), drawing(5)),
    )
    assert grant.num_draws == 3
    assert grant.draws() == {"r": drawing(3), "r\x1f4": drawing(4), "r\x1f5": drawing(5)}
    assert (grant.seal, grant.scoring, grant.spilled) == (False, None, ())


def test_a_chunk_that_is_not_the_last_draws_nothing() -> None:
    chunk = Grant(request_id="r", tokens=(1, 2, 3), start=4, block_ids=table_of((5, 6)), draw=None)
    last = Grant(request_id="s", tokens=(1,), start=8, block_ids=table_of((7,)), draw=drawing(0))
    assert (chunk.num_draws, chunk.draws(), last.num_draws) == (0, {}, 1)
    assert Step(grants=(chunk, last)).num_tokens == 4


def test_of_a_draw_no_candidates_and_of_a_grant_nothing_is_asked_unless_said() -> None:
    assert drawing(0).num_candidates == 0
    assert Computed() == Computed(token=None, logprobs=None, prompt_logprobs=(), candidates=None)


def test_what_stands_for_a_token_to_come_is_none() -> None:
    assert AHEAD < 0
