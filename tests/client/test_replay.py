"""An answer that begins anew, held against what was handed out of it: together they are the answer, however cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.client.replay import Replay
from pagewire.client.results import Chunk, TokenLogprob, ToolCallPart
from pagewire.core.errors import RouterLost
from pagewire.core.sampling import FinishReason

STOP = FinishReason.STOP


def chunk(text: str = "", *token_ids: int, **others: Any) -> Chunk:
    return Chunk(text=text, token_ids=token_ids, **others)


def call(arguments: str, index: int = 0, name: str = "", id: str = "") -> tuple[ToolCallPart, ...]:
    return (ToolCallPart(index=index, id=id, name=name, arguments=arguments),)


def logprobs(*token_ids: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token_id=each, data=b"", logprob=-1.0, rank=1) for each in token_ids)


def test_what_nothing_was_handed_out_of_is_all_new() -> None:
    replay = Replay(())
    assert replay.is_over
    for new in (chunk("a", 1), chunk(tool_calls=call("{", name="f", id="i")), chunk(finish_reason=STOP)):
        assert replay.rest(new) == new
    assert replay.rest(chunk(index=1)) is None, "it says nothing"


def test_each_character_token_and_logprob_comes_once() -> None:
    replay = Replay([chunk("ab", 1, 2), chunk("c", 3)])
    assert not replay.is_over
    assert replay.rest(chunk("a", 1, logprobs=logprobs(1))) is None
    assert replay.rest(chunk("bc", 2, logprobs=logprobs(2))) is None
    assert not replay.is_over, "a token is still due"
    assert replay.rest(chunk("d", 3, 4, logprobs=logprobs(3, 4))) == chunk("d", 4, logprobs=logprobs(4))
    assert replay.is_over
    last = chunk("e", 5, finish_reason=STOP, stop="e")
    assert replay.rest(last) == last


@pytest.mark.parametrize(
    ("due", "given_"),
    [(chunk("a"), chunk("", 1)), (chunk("", 1), chunk("a")), (chunk(tool_calls=call("a")), chunk("a"))],
)
def test_all_of_an_answer_has_to_be_repeated(due: Chunk, given_: Chunk) -> None:
    replay = Replay([due, chunk("z", index=1)])
    assert not replay.is_over
    assert replay.rest(chunk("z", index=1)) is None
    assert not replay.is_over, "the other answer is"
    assert replay.rest(given_) == given_, "it is of another kind than what is due"
    assert not replay.is_over
    assert replay.rest(due) is None
    assert replay.is_over


def test_an_end_is_told_once_and_ends_its_answer_alone() -> None:
    replay = Replay([chunk("a", 1), chunk(finish_reason=STOP), chunk("b", 2, index=1)])
    assert replay.rest(chunk("a", 1, finish_reason=STOP)) is None
    assert replay.rest(chunk("b", 2, index=1)) is None
    end = chunk("c", 3, index=1, finish_reason=STOP)
    assert replay.rest(end) == end
    assert replay.rest(chunk(finish_reason=STOP)) is None
    for more in (chunk("b"), chunk("", 2), chunk(tool_calls=call("{", name="f"))):
        with pytest.raises(RouterLost):
            replay.rest(more)


def test_an_end_that_was_not_told_is_new_though_nothing_else_is() -> None:
    replay = Replay([chunk("ab", 1, 2)])
    assert replay.rest(chunk("ab", 1, 2, finish_reason=STOP, stop=2)) == chunk(finish_reason=STOP, stop=2)


@pytest.mark.parametrize(
    "other", [chunk("x", 1), chunk("a", 9), chunk("ax", 1), chunk("a", 1, 9), chunk("abx", 1, 9), chunk("", 2)]
)
def test_another_answer_is_none(other: Chunk) -> None:
    with pytest.raises(RouterLost, match="another's answer is not the one that it had begun"):
        Replay([chunk("ab", 1, 2)]).rest(other)


@pytest.mark.parametrize(
    "other",
    [
        call("{1", name="g", id="i"), call("{1", name="f", id="j"), call("{2", name="f", id="i"),
        call("[", name="f", id="i"), call("{12", name="f", id="i"),
    ],
)  # fmt: skip
def test_another_call_is_none(other: tuple[ToolCallPart, ...]) -> None:
    replay = Replay([chunk(tool_calls=call("{1", name="f", id="i")), chunk(tool_calls=call("}"))])
    with pytest.raises(RouterLost):
        replay.rest(chunk(tool_calls=other))


def test_calls_go_on_apart_from_each_other_and_from_the_text() -> None:
    one, two = {"name": "f", "id": "i"}, {"name": "g", "id": "j"}
    replay = Replay([
        chunk("a", 1, tool_calls=call("{1", 0, **one)), chunk(tool_calls=call("", 1, **two)),
        chunk(tool_calls=call(", 2", 0)),
    ])  # fmt: skip
    assert replay.rest(chunk("a", 1, tool_calls=call("{", 0, **one))) is None
    assert replay.rest(chunk(tool_calls=call("1,", 0))) is None
    assert not replay.is_over
    both = call(" 2}", 0) + call("[]", 1, **two)
    assert replay.rest(chunk("b", tool_calls=both)) == chunk("b", tool_calls=call("}", 0) + call("[]", 1))
    assert replay.is_over
    third = chunk(tool_calls=call("", 2, name="h", id="k"))
    assert replay.rest(third) == third
    assert replay.rest(chunk(tool_calls=call("]", 0))) == chunk(tool_calls=call("]", 0))


def test_reasoning_goes_on_apart_from_the_text() -> None:
    replay = Replay([chunk("c"), chunk(reasoning="ab")])
    assert replay.rest(chunk("c")) is None
    assert replay.rest(chunk(reasoning="a")) is None
    assert not replay.is_over
    replay = Replay([chunk(reasoning="ab"), chunk("c")])
    assert replay.rest(chunk(reasoning="a")) is None
    assert replay.rest(chunk(reasoning="b")) is None
    assert not replay.is_over
    assert replay.rest(chunk("cd", reasoning="e")) == chunk("d", reasoning="e")
    assert replay.is_over
    for other in (chunk(reasoning="x"), chunk(reasoning="bc"), chunk("d")):
        replay = Replay([chunk("c", reasoning="b", finish_reason=STOP)])
        with pytest.raises(RouterLost):
            replay.rest(other)


def cut(text: str, index: int, cuts: Iterable[int]) -> list[Chunk]:
    """Return a text's chunks: each character a token, and an argument of the one call; the last has the end."""
    found, start = [], 0
    for end in [*sorted({*cuts} & {*range(1, len(text))}), len(text)]:
        part = text[start:end]
        first = {"name": "f", "id": f"c{index}"} if not start else {}
        found.append(
            chunk(
                part, *map(ord, part), index=index, tool_calls=call(part, 0, **first), reasoning=part.upper(),
                finish_reason=STOP if end == len(text) else None,
            )
        )  # fmt: skip
        start = end
    return found


CUTS = st.lists(st.integers(1, 7), max_size=5)


@settings(max_examples=60)
@given(text=st.text("ab", min_size=1, max_size=8), cuts=st.tuples(CUTS, CUTS), lost_after=st.integers(0, 8))
def test_what_was_handed_out_and_the_rest_are_the_answer(
    text: str, cuts: tuple[list[int], list[int]], lost_after: int
) -> None:
    handed_out = cut(text, 3, cuts[0])[:lost_after]
    replay = Replay(handed_out)
    for each in cut(text, 3, cuts[1]):
        new = replay.rest(each)
        assert replay.is_over or new is None
        handed_out += [new] if new is not None else []
    assert replay.is_over
    assert "".join(each.text for each in handed_out) == text
    assert "".join(each.reasoning for each in handed_out) == text.upper()
    assert [token for each in handed_out for token in each.token_ids] == [*map(ord, text)]
    assert "".join(part.arguments for each in handed_out for part in each.tool_calls) == text
    assert [part.name for each in handed_out for part in each.tool_calls if part.name] == ["f"]
    assert [each.finish_reason for each in handed_out] == [None] * (len(handed_out) - 1) + [STOP]
