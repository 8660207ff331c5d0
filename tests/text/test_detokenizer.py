"""The detokenizer over decoders that a line can state: what goes out when, that all of it is the text, and its bounds.

`test_tokenizer.py` has the same over real tokenizers.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.text.detokenizer import CODE_POINT, REPLACEMENT, WINDOW, Detokenizer

LONGEST = WINDOW + 4 * CODE_POINT  # tokens of a window at most, those of what is open among them
GARBAGE = st.sampled_from((0x41, 0x80, 0x9F, 0xC3, 0xE6, 0xF0, 0xFF))
WORDS = ("", "▁", "▁the", "a", "é", REPLACEMENT)


def of_bytes(ids: list[int]) -> str:
    """Decode as byte-level tokenizers do: here a token is a byte, or two of them."""
    return b"".join(bytes((i,)) if i < 256 else bytes((i // 256, i % 256)) for i in ids).decode(errors="replace")


def with_fallback(ids: list[int]) -> str:
    """Decode as SentencePiece does: runs of bytes as a whole, and without the space that the text begins with.

    A run that is no text is a replacement character for each byte. Behind the 256 bytes are WORDS.
    """
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


def streamed(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


@given(ids=st.lists(st.one_of(GARBAGE, st.sampled_from((0x41C3, 0xA941, 0xA9C3, 0xE69D))), max_size=150))
def test_all_is_out_but_a_code_point_that_is_open(ids: list[int]) -> None:
    """Whatever came before: what is behind a window's begin is told as if all were decoded at once."""
    kept: tuple[dict[int, str | None] | None, ...] = (None, {})
    for wholes in kept:
        detokenizer = Detokenizer(of_bytes, wholes=wholes)
        out = ""
        for count, token in enumerate(ids, start=1):
            out += detokenizer.push(token)
            text = of_bytes(ids[:count])
            assert out == (text[:-1] if text.endswith(REPLACEMENT) else text)
            assert len(detokenizer._ids) <= LONGEST
        assert out + detokenizer.finish() == of_bytes(ids)
        assert detokenizer.finish() == ""


@given(ids=st.lists(st.one_of(st.integers(257, 255 + len(WORDS)), st.sampled_from((0x41, 0xC3, 0xA9))), max_size=90))
def test_a_run_of_bytes_goes_out_once_it_is_over(ids: list[int]) -> None:
    detokenizer = Detokenizer(with_fallback, byte_ids=frozenset(range(256)))
    out = ""
    for count, token in enumerate(ids, start=1):
        piece = detokenizer.push(token)
        out += piece
        text = with_fallback(ids[:count])
        assert piece == "" if token < 256 else out == (text[:-1] if text.endswith(REPLACEMENT) else text)
    assert out + detokenizer.finish() == with_fallback(ids)


def test_after_its_end_a_stream_begins_anew() -> None:
    detokenizer = Detokenizer(of_bytes)
    assert streamed(detokenizer, [0x41, 0xC3]) == ["A", "", REPLACEMENT]
    assert streamed(detokenizer, [0xA9, 0x42]) == ["", f"{REPLACEMENT}B", ""]
    detokenizer = Detokenizer(with_fallback, byte_ids=frozenset(range(256)))
    assert streamed(detokenizer, [258, 259]) == ["the", "a", ""]
    assert streamed(detokenizer, [258]) == ["the", ""]


@pytest.mark.parametrize("wholes", [None, {}])
def test_silent_tokens_and_those_beyond_the_vocabulary_are_left_out(wholes: dict[int, str | None] | None) -> None:
    ids = [7, 0xC3, 7, 300, 0xA9, 299, 0x41, 1 << 40]
    detokenizer = Detokenizer(of_bytes, silent_ids={7}, num_ids=299, wholes=wholes)
    assert streamed(detokenizer, ids) == ["", "", "", "", "é", "", "A", "", ""]
    assert Detokenizer(of_bytes, silent_ids={7}, num_ids=299).whole(ids) == "éA"
    assert Detokenizer(of_bytes).whole([7, 0x41]) == "\x07A"
    assert Detokenizer(lambda ids: chr(ids[-1]) if ids else "").push(0x1F99C) == "🦜"


def test_what_a_whole_character_is_is_asked_once() -> None:
    asked: list[list[int]] = []

    def decode(ids: list[int]) -> str:
        asked.append(list(ids))
        return of_bytes(ids)

    wholes: dict[int, str | None] = {}
    first, second = (Detokenizer(decode, wholes=wholes) for _ in range(2))
    assert [first.push(i) for i in (0x41, 0x41, 0xC3, 0xA9, 0x41)] == ["A", "A", "", "é", "A"]
    assert wholes == {0x41: "A", 0xC3: None}
    assert asked == [[0x41], [0xC3], [0xC3], [0xC3, 0xA9]]
    asked.clear()
    assert [second.push(i) for i in (0x41, 0xC3, 0xA9)] == ["A", "", "é"]
    assert asked == [[0xC3], [0xC3, 0xA9]]


def test_what_may_go_on_stays_in_the_window() -> None:
    detokenizer = Detokenizer(of_bytes)
    assert streamed(detokenizer, [*[0x80] * 22, 0xF0, 0x9F, 0xA6, 0x9C])[-2:] == ["🦜", ""]
    # Nor is a window cut down to what is no text alone: it would be a beginning again, and lose the space behind it.
    for empty in (1, 2, 4, 8):
        detokenizer = Detokenizer(with_fallback, byte_ids=frozenset(range(256)))
        ids = [*[259] * (WINDOW + 1 - empty), *[256] * empty, 258]
        assert streamed(detokenizer, ids)[-2:] == [" the", ""]


@pytest.mark.parametrize(
    "ids",
    [
        *([0x41], [0xE6, 0x9D, 0xB1], [0x80], [0xE6], [0x41, 0x80], [0xF0, 0x9F, 0xA6, 0x9C]),
        *([0xA9C3], [0x80C3], [0x80E6], [0x9F, 0xA6, 0x9CF0], [0x9CF0, 0x9FA6], [0xA9, 0x80C3]),
    ],
)
def test_no_decode_is_of_more_than_a_window(ids: list[int]) -> None:
    """Though no token begins where a code point does."""
    sizes: list[int] = []

    def decode(ids: list[int]) -> str:
        sizes.append(len(ids))
        return of_bytes(ids)

    detokenizer = Detokenizer(decode)
    assert "".join(streamed(detokenizer, ids * 300)) == of_bytes(ids * 300)
    assert max(sizes) <= LONGEST
