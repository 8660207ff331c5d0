"""One answer's text: what of its tokens goes out, what ends it, and what of the end stays in it."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.core.sampling import FinishReason
from pagewire.text.detokenizer import Detokenizer
from pagewire.text.text_stream import PLAIN, Piece, TextRules, TextStream

LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


def of_bytes(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


def stream(*stops: str, **told: Any) -> TextStream:
    return TextStream(Detokenizer(of_bytes), stops, **told)


def tokens(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def test_without_stop_strings_all_tokens_are_consumed_and_the_end_lets_out_what_was_held() -> None:
    text = stream()
    assert text.push(tokens("ab"), None) == Piece(text="ab", tokens=tokens("ab"))
    assert text.push((0xC3,), None) == Piece(text="", tokens=(0xC3,))
    assert text.push((), LENGTH) == Piece(text="\ufffd", tokens=())
    assert stream().push((0x41, 0xC3), LENGTH).text == "A\ufffd"


@pytest.mark.parametrize("stops", [(), ("never",)])
@pytest.mark.parametrize(
    ("reason", "with_stop", "said"),
    [(STOP, False, "ab"), (STOP, True, "ab!"), (LENGTH, False, "ab!"), (LENGTH, True, "ab!"), (None, False, "ab!")],
)
def test_the_token_that_a_stop_rule_matched_is_no_text_unless_it_is_to_stay(
    stops: tuple[str, ...], reason: FinishReason | None, with_stop: bool, said: str
) -> None:
    piece = stream(*stops, with_stop=with_stop).push(tokens("ab!"), reason)
    assert piece == Piece(text=said, tokens=tokens("ab!"))
    if reason is not None and not stops:
        assert stream(with_stop=with_stop).whole(tokens("ab!"), reason) == said


@pytest.mark.parametrize(("with_stop", "said"), [(False, "a"), (True, "aEND")])
def test_a_stop_string_ends_the_answer_and_what_is_behind_it_is_not_consumed(with_stop: bool, said: str) -> None:
    text = stream("END", with_stop=with_stop)
    assert text.push(tokens("aE"), None) == Piece(text="a", tokens=tokens("aE"))
    assert text.push(tokens("NDxy"), LENGTH) == Piece(text=said[1:], tokens=tokens("ND"), stop_text="END")
    whole = stream("END", with_stop=with_stop).push(tokens("aENDxy"), None)
    assert whole == Piece(text=said, tokens=tokens("aEND"), stop_text="END")


def test_the_beginning_of_a_stop_string_is_text_once_the_answer_is_over() -> None:
    text = stream("END")
    assert text.push(tokens("aEN"), None).text == "a"
    assert text.push((), LENGTH) == Piece(text="EN", tokens=())
    assert stream("END").push((*tokens("aEN"), 0xC3), LENGTH) == Piece(text="aEN\ufffd", tokens=(*tokens("aEN"), 0xC3))


@pytest.mark.parametrize(("with_stop", "said"), [(False, "a"), (True, "aN\ufffd")])
def test_a_stop_string_may_end_in_what_only_the_end_lets_out(with_stop: bool, said: str) -> None:
    ids = (*tokens("aN"), 0xC3)
    piece = stream("N\ufffd", with_stop=with_stop).push(ids, LENGTH)
    assert piece == Piece(text=said, tokens=ids, stop_text="N\ufffd")


def test_unless_told_otherwise_the_first_token_may_end_the_answer_and_the_end_is_left_out() -> None:
    assert stream("x").push(tokens("xa"), None) == Piece(text="", tokens=tokens("x"), stop_text="x")
    assert stream().push(tokens("ab"), STOP).text == "a"


@pytest.mark.parametrize(("min_tokens", "said"), [(0, ""), (1, "xa"), (2, "xa"), (3, "xax"), (4, "xaxx"), (9, "xaxx")])
def test_no_stop_string_is_found_in_the_first_tokens(min_tokens: int, said: str) -> None:
    piece = stream("x", min_tokens=min_tokens).push(tokens("xaxx"), LENGTH)
    is_found = said != "xaxx"
    consumed = tokens("xaxx")[: len(said) + is_found]
    assert piece == Piece(text=said, tokens=consumed, stop_text="x" if is_found else None)


@pytest.mark.parametrize(("min_tokens", "count"), [(0, 3), (2, 3), (3, 5), (4, 5), (5, 7), (6, 7), (7, 9), (9, 10)])
@pytest.mark.parametrize("with_stop", [False, True])
@pytest.mark.parametrize("size", [1, 3, 10])
def test_a_stop_string_may_begin_in_the_first_tokens_and_end_behind_them(
    min_tokens: int, count: int, with_stop: bool, size: int
) -> None:
    """So has vLLM it, and the text is the same in whatever parts it goes out."""
    ids, text = tokens("ABABABABAB"), stream("BA", min_tokens=min_tokens, with_stop=with_stop)
    parts = [ids[at : at + size] for at in range(0, len(ids), size)]
    pieces = []
    for number, part in enumerate(parts, start=1):
        pieces.append(text.push(part, LENGTH if number == len(parts) else None))
        if pieces[-1].stop_text is not None:
            break
    is_found = count < len(ids)
    assert sum(len(piece.tokens) for piece in pieces) == count
    assert "".join(piece.text for piece in pieces) == "ABABABABAB"[: count - 2 * (is_found and not with_stop)]
    assert pieces[-1].stop_text == ("BA" if is_found else None)


@pytest.mark.parametrize(("min_tokens", "stop_text"), [(0, "\ufffd"), (1, "\ufffd"), (2, None), (3, None)])
def test_what_the_end_lets_out_is_the_last_tokens_text(min_tokens: int, stop_text: str | None) -> None:
    assert stream("\ufffd", min_tokens=min_tokens).push((0x41, 0xC3), LENGTH).stop_text == stop_text


def test_who_has_stop_strings_has_to_be_looked_at() -> None:
    assert stream("x").has_stops
    assert not stream().has_stops


def test_an_answer_has_neither_its_special_tokens_nor_its_end_unless_asked_for() -> None:
    assert TextRules() == PLAIN == TextRules(with_special=False, with_stop=False, shown=frozenset())
