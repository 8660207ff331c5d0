"""Where tokens begin in the text that they make, over decoders that a line can state.

Answers of a router, whole and streamed: tests/router/test_logprobs.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.text.detokenizer import REPLACEMENT, Detokenizer
from pagewire.text.token_places import TokenPlaces, places_within

GARBAGE = st.sampled_from((0x41, 0x80, 0x9F, 0xC3, 0xE6, 0xF0, 0xFF))
PAIRS = st.sampled_from((0x41C3, 0xA941, 0xA9C3, 0xE69D, 0x4142))
WORDS = ("", "▁", "▁the", "a", "é", REPLACEMENT)  # behind the 256 bytes
SPECIAL = 1000


def of_bytes(ids: list[int]) -> str:
    """Decode as byte-level tokenizers do: here a token is a byte, or two of them."""
    return b"".join(bytes((i,)) if i < 256 else bytes((i // 256, i % 256)) for i in ids).decode(errors="replace")


def with_fallback(ids: list[int]) -> str:
    """Decode as SentencePiece does: runs of bytes as a whole, and without the space that the text begins with."""
    text, run = "", b""
    for i in [*ids, 256]:
        if i < 256:
            run += bytes((i,))
            continue
        try:
            text += run.decode()
        except UnicodeDecodeError:
            text += REPLACEMENT * len(run)
        text, run = text + WORDS[i - 256], b""
    return text.replace("▁", " ").removeprefix(" ")


def byte_level(start: int = 0) -> TokenPlaces:
    return TokenPlaces(Detokenizer(of_bytes, silent_ids={SPECIAL}, wholes={}), lambda _: b"", start)


def of_runs() -> TokenPlaces:
    detokenizer = Detokenizer(with_fallback, silent_ids={SPECIAL}, byte_ids=frozenset(range(256)))
    return TokenPlaces(detokenizer, lambda token: bytes((token,)) if token < 256 else b"")


@given(ids=st.lists(st.one_of(GARBAGE, PAIRS), max_size=90), cut=st.integers(0, 90), start=st.integers(0, 9))
def test_a_token_begins_behind_the_characters_that_are_whole_before_it(ids: list[int], cut: int, start: int) -> None:
    places = byte_level(start)
    found = places.of(ids[:cut]) + places.of(ids[cut:])
    before = [of_bytes(ids[:place]) for place in range(len(ids))]
    assert found == [start + len(text) - text.endswith(REPLACEMENT) for text in before]
    assert places.finish() == start + len(of_bytes(ids))


@given(text=st.text(st.sampled_from("aé東🦜"), max_size=30), has_words=st.booleans())
def test_tokens_of_a_run_of_bytes_begin_where_their_characters_do(text: str, has_words: bool) -> None:
    ids, want = list[int](), list[int]()
    for place, char in enumerate(text):
        tokens = [256 + WORDS.index(char)] if has_words and char in WORDS else list(char.encode())
        ids += tokens
        want += [place] * len(tokens)
    places = of_runs()
    assert places.of(ids) == want
    assert places.finish() == len(text)


@given(ids=st.lists(st.one_of(GARBAGE, st.integers(257, 255 + len(WORDS))), max_size=90), cut=st.integers(0, 90))
def test_a_run_that_is_no_text_takes_no_place_beyond_it(ids: list[int], cut: int) -> None:
    places = of_runs()
    found = places.of(ids[:cut]) + places.of(ids[cut:])
    end = places.finish()
    assert end == len(with_fallback(ids))
    assert found == sorted(found)
    assert all(place <= end for place in found)
    for place in range(1, len(ids)):
        text = with_fallback(ids[:place])
        if ids[place - 1] >= 256 and not text.endswith(REPLACEMENT):
            assert found[place] == len(text)


def test_what_a_run_left_open_is_no_part_of_the_next_one() -> None:
    assert of_runs().of([0xC3, 259, 0xE6, 0x9D, 0xB1, 259]) == [0, 0, 2, 2, 2, 3]


def test_a_token_that_is_no_text_begins_where_the_next_one_does() -> None:
    assert byte_level().of([0x41, SPECIAL, 0xC3, SPECIAL, 0xA9, SPECIAL]) == [0, 1, 1, 1, 1, 2]
    assert of_runs().of([SPECIAL, 0xC3, SPECIAL, 0xA9, 259, SPECIAL]) == [0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("text", "ids", "found"),
    [
        ("AB", [0x41, 0x42], [0, 1]),
        ("AB", [0x4343, 0x41, 0x42], [0, 0, 1]),  # the first is not of it
        ("éB", [0x43, 0xC3, 0xA9, 0x42], [0, 0, 0, 1]),
        (f"A{REPLACEMENT}", [0x41, 0xC3], [0, 1]),
        ("ABC", [0x41, 0x42], [1, 2]),
    ],
)
def test_of_a_prompt_places_are_in_the_text_that_is_repeated(text: str, ids: list[int], found: list[int]) -> None:
    assert places_within(text, ids, byte_level()) == found
