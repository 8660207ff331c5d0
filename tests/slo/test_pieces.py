"""Tokens of pieces: drawn from an id and a seed alone, of the ids that one may draw from."""

from __future__ import annotations

import pytest

from pagewire.slo.load.pieces import Vocabulary, parse_vocabulary, tokens_of, tokens_of_piece
from pagewire.slo.workloads.arrival import Turn

FEW = Vocabulary(low=3, high=6)


def test_a_piece_is_drawn_from_all_of_its_vocabulary_by_its_id_and_its_seed() -> None:
    drawn = {
        (piece, seed): tokens_of_piece(piece, 40, seed=seed, vocabulary=FEW) for piece in (1, 2) for seed in (1, 2)
    }
    assert len({*drawn.values()}) == 4
    assert {len(tokens) for tokens in drawn.values()} == {40}
    assert {token for tokens in drawn.values() for token in tokens} == {3, 4, 5}
    assert tokens_of_piece(1, 40, seed=1, vocabulary=FEW) == drawn[1, 1]
    assert tokens_of_piece(1, 7, seed=1, vocabulary=FEW) == drawn[1, 1][:7]
    assert tokens_of_piece(1, 0, seed=1, vocabulary=FEW) == ()


def test_a_turn_is_its_pieces_one_behind_the_other_the_last_one_cut_to_fit() -> None:
    turn = Turn(input_tokens=21, output_tokens=1, pieces=(4, 9, 4))
    tokens = tokens_of(turn, 8, seed=1, vocabulary=FEW)
    four, nine = (tokens_of_piece(piece, 8, seed=1, vocabulary=FEW) for piece in (4, 9))
    assert tokens == (*four, *nine, *four[:5])


@pytest.mark.parametrize(("low", "high"), [(-1, 5), (5, 5), (6, 5), (0, 0)])
def test_a_range_without_a_token_id_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="are none"):
        Vocabulary(low=low, high=high)


def test_a_range_begins_with_0_at_the_lowest() -> None:
    assert tokens_of_piece(1, 3, seed=1, vocabulary=Vocabulary(low=0, high=1)) == (0, 0, 0)
    assert parse_vocabulary("0-0") == Vocabulary(low=0, high=1)


def test_unless_told_ids_are_those_that_a_run_draws_from_unless_told() -> None:
    assert Vocabulary() == parse_vocabulary("100-29999")


def test_a_range_of_token_ids_holds_both_of_its_ends() -> None:
    assert parse_vocabulary("5-9") == Vocabulary(low=5, high=10)
    assert parse_vocabulary("7") == Vocabulary(low=7, high=8)
    with pytest.raises(ValueError, match="no range of token ids"):
        parse_vocabulary("many")


@pytest.mark.parametrize("text", ["", "a", "1-", "-5", "9-1", "1-2-3"])
def test_what_is_no_range_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is no range of token ids"):
        parse_vocabulary(text)
