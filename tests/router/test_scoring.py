"""Log probabilities as pods report them become tokens that read as text."""

from __future__ import annotations

import pytest

from pagewire.core.token_record import TokenLogprobs
from pagewire.router.events import ScoredToken
from pagewire.router.scoring import scored, scored_prompt

REPORTED = TokenLogprobs(token=65, logprob=-2.0, rank=3, top_tokens=(66, 67), top_logprobs=(-0.5, -1.0))
SCORED = ScoredToken(
    token_id=65, data=b"A", logprob=-2.0, rank=3,
    top=(
        ScoredToken(token_id=66, data=b"B", logprob=-0.5, rank=1),
        ScoredToken(token_id=67, data=b"C", logprob=-1.0, rank=2),
    ),
)  # fmt: skip


def spelled(token: int) -> bytes:
    return bytes([token])


def test_each_token_has_its_bytes_and_the_likeliest_their_ranks() -> None:
    bare = TokenLogprobs(token=66, logprob=-1.0, rank=1)
    assert scored([REPORTED, bare], spelled) == (SCORED, ScoredToken(token_id=66, data=b"B", logprob=-1.0, rank=1))
    assert scored([], spelled) == ()


def test_the_first_token_of_a_prompt_has_neither_a_log_probability_nor_a_rank() -> None:
    first, *others = scored_prompt([68, 65], [REPORTED], spelled)
    assert first == ScoredToken(token_id=68, data=b"D", logprob=None, rank=0)
    assert others == [SCORED]
    (alone,) = scored_prompt([68], [], spelled)
    assert alone == first


def test_each_token_is_told_where_it_begins_if_that_is_known() -> None:
    reported = [REPORTED, TokenLogprobs(token=66, logprob=-1.0, rank=1)]
    assert [each.offset for each in scored(reported, spelled, [3, 5])] == [3, 5]
    assert [each.offset for each in scored(reported, spelled)] == [0, 0]
    assert [each.offset for each in scored_prompt([68, 65, 66], reported, spelled, [0, 2, 7])] == [0, 2, 7]
    assert [each.offset for each in scored_prompt([68, 65, 66], reported, spelled)] == [0, 0, 0]


def test_likeliest_tokens_without_as_many_log_probabilities_are_not_made_up() -> None:
    with pytest.raises(ValueError, match="shorter"):
        scored([TokenLogprobs(token=65, logprob=-2.0, rank=3, top_tokens=(66, 67), top_logprobs=(-0.5,))], spelled)
