"""Stop strings: found across pieces, held back no longer than needed, whatever the pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.text.stop_strings import Passed, StopStrings


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, str | None]:
    finder = StopStrings(stops)
    out = ""
    for piece in pieces:
        passed = finder.push(piece)
        out += passed.text
        if passed.matched is not None:
            return out, passed.matched
    return out + finder.finish(), None


def expected(stops: tuple[str, ...], text: str, first_end: int = 0) -> tuple[str, str | None]:
    for end in range(first_end, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def test_a_stop_string_across_pieces_is_found_and_left_out() -> None:
    finder = StopStrings(("\n\nUser:",))
    assert finder.push("fine.\n") == Passed(text="fine.")
    assert finder.push("\nUs") == Passed(text="")
    assert finder.push("er: no") == Passed(text="", matched="\n\nUser:")


def test_only_what_could_still_match_is_held_back() -> None:
    finder = StopStrings(("END",))
    assert finder.push("the E") == Passed(text="the ")
    assert finder.push("a") == Passed(text="Ea")
    assert finder.push("EN") == Passed(text="")
    assert finder.finish() == "EN"
    assert finder.finish() == ""
    finder = StopStrings(("aabb",))
    assert finder.push("aa") == Passed(text="")
    assert finder.push("abb") == Passed(text="a", matched="aabb")


def test_after_a_match_nothing_is_held_back() -> None:
    finder = StopStrings(("END",))
    finder.push("EN")
    assert finder.push("D").matched == "END"
    assert finder.finish() == ""


@pytest.mark.parametrize(
    ("stops", "text", "want"),
    [
        (("b", "abc"), "xabc", ("xa", "b")),  # the first to be complete wins
        (("c", "abc"), "xabc", ("x", "abc")),  # of two that end together, the longer
        (("aab",), "aaab", ("a", "aab")),  # a failed start may hold a later one
        ((), "anything", ("anything", None)),
        (("é",), "café!", ("caf", "é")),
    ],
)
def test_which_one_wins(stops: tuple[str, ...], text: str, want: tuple[str, str | None]) -> None:
    assert run(stops, [text]) == want
    assert run(stops, list(text)) == want


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    pieces=st.lists(st.text("abc", max_size=5), max_size=10),
)
def test_pieces_change_nothing(stops: list[str], pieces: list[str]) -> None:
    assert run(tuple(stops), pieces) == expected(tuple(stops), "".join(pieces))


def test_what_is_complete_in_free_text_is_none_and_what_only_begins_in_it_is_one() -> None:
    finder = StopStrings(("BA",))
    assert finder.push_free("AB") == "A"
    assert finder.push_free("A") == "BA"
    assert finder.push_free("B") == ""
    assert finder.push("Ax") == Passed(text="", matched="BA")
    finder = StopStrings(("x", "abc"))
    assert finder.push_free("x") == "x", "nothing can come of it any more"
    finder = StopStrings(("ab", "abab"))
    assert finder.push_free("ab") == ""
    assert finder.push("c") == Passed(text="abc")


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    free=st.lists(st.text("abc", max_size=5), max_size=5),
    pieces=st.lists(st.text("abc", max_size=5), max_size=5),
)
def test_of_free_text_only_the_length_counts(stops: list[str], free: list[str], pieces: list[str]) -> None:
    finder = StopStrings(tuple(stops))
    out, matched = "".join([finder.push_free(piece) for piece in free]), None
    for piece in pieces:
        passed = finder.push(piece)
        out, matched = out + passed.text, passed.matched
        if matched is not None:
            break
    text = "".join((*free, *pieces))
    want = expected(tuple(stops), text, len("".join(free)) + 1)
    assert (out + finder.finish(), matched) == want
