"""Turns, arrivals and workloads: what may be asked and what may not, and how long a prompt is."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.workload import Workload, num_pieces

ONE = Turn(input_tokens=1, output_tokens=1, pieces=(7,))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input_tokens": 0}, "0 input and 1 output tokens"),
        ({"input_tokens": -1}, "-1 input and 1 output tokens"),
        ({"output_tokens": 0}, "1 input and 0 output tokens"),
        ({"output_tokens": -1}, "1 input and -1 output tokens"),
        ({"pieces": ()}, "either pieces or text"),
        ({"text": "a"}, "either pieces or text"),
        ({"think_s": -0.5}, "think_s"),
        ({"think_s": float("nan")}, "think_s"),
    ],
)
def test_a_turn_that_cannot_be_asked_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Turn(**{"input_tokens": 1, "output_tokens": 1, "pieces": (7,), **changed})


def test_the_least_that_can_be_asked_is_a_turn() -> None:
    assert (ONE.think_s, ONE.text) == (0.0, "")
    assert Turn(input_tokens=1, output_tokens=1, text="a", think_s=0.5).pieces == ()
    first = Arrival(at_s=0.0, turns=(ONE,))
    assert (first.at_s, first.priority, first.session, first.model) == (0.0, 0, "", "")
    assert Arrival(at_s=0.5, turns=(ONE,)).at_s == 0.5
    with pytest.raises(ValueError, match="not 0 or more"):
        Arrival(at_s=-0.5, turns=(ONE,))


def test_what_never_arrives_or_says_two_things_at_once_is_no_arrival() -> None:
    text, pieces = Turn(input_tokens=1, output_tokens=1, text="a"), Turn(input_tokens=1, output_tokens=1, pieces=(7,))
    assert Arrival(at_s=0.0, turns=(text, text)).turns == (text, text)
    for at_s in (-1e-9, float("nan")):
        with pytest.raises(ValueError, match="not 0 or more"):
            Arrival(at_s=at_s, turns=(text,))
    with pytest.raises(ValueError, match="no turns"):
        Arrival(at_s=0.0, turns=())
    with pytest.raises(ValueError, match="all texts or all pieces"):
        Arrival(at_s=0.0, turns=(text, pieces))


def test_a_prompt_is_all_that_was_said_before_and_what_its_turn_adds() -> None:
    turns = [Turn(input_tokens=tokens, output_tokens=tokens // 10, text="a") for tokens in (10, 200, 3000)]
    arrival = Arrival(at_s=0.0, turns=tuple(turns))
    assert [arrival.prompt_tokens(turn) for turn in range(3)] == [10, 10 + 1 + 200, 10 + 1 + 200 + 20 + 3000]


@pytest.mark.parametrize(("tokens", "pieces"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_pieces_cover_a_prompt(tokens: int, pieces: int) -> None:
    assert num_pieces(tokens, 16) == pieces


def workload(*arrivals: Arrival) -> Workload:
    return Workload(name="w", source=lambda: arrivals, piece_tokens=16)


def test_a_workload_is_gone_through_as_often_as_one_asks() -> None:
    made = workload(*(Arrival(at_s=at_s, turns=(ONE,)) for at_s in (0.0, 0.5, 0.5, 2.0)))
    assert [each.at_s for each in made] == [each.at_s for each in made] == [0.0, 0.5, 0.5, 2.0]
    assert (made.concurrency, made.seed, made.is_cut) == (0, 0, False)  # an open loop and all of it, unless told


def test_a_workload_of_a_recording_has_pieces_as_long_as_mooncakes() -> None:
    assert Workload(name="w", source=list).piece_tokens == 512


@pytest.mark.parametrize(("tokens", "pieces"), [(16, 2), (17, 1), (33, 2), (1, 2)])
def test_pieces_that_are_too_few_or_too_many_are_refused(tokens: int, pieces: int) -> None:
    wrong = Turn(input_tokens=tokens, output_tokens=1, pieces=(7,) * pieces)
    with pytest.raises(ValueError, match=f"w: {tokens} input tokens are not {pieces} pieces of 16 tokens"):
        [*workload(Arrival(at_s=0.0, turns=(ONE, wrong)))]


def test_of_a_text_no_pieces_are_asked() -> None:
    told = Arrival(at_s=0.0, turns=(Turn(input_tokens=500, output_tokens=1, text="a"),))
    assert [*workload(told)] == [told]


def test_time_does_not_go_back_in_a_workload() -> None:
    with pytest.raises(ValueError, match=r"w: an arrival at 0\.5 s comes after one at 0\.75 s"):
        [*workload(*(Arrival(at_s=at_s, turns=(ONE,)) for at_s in (0.25, 0.75, 0.5)))]
