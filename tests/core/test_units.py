"""Sizes as people write them."""

from __future__ import annotations

import pytest

from pagewire.core.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0), ("4096", 4096), ("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("1GB", 10**9), ("2k", 2000), ("3B", 3),
        ("1KiB", 1 << 10), ("7MB", 7 * 10**6), ("2 tib", 2 << 40), ("0.5TB", 5 * 10**11), (" 0.25 KiB ", 256),
    ],
)  # fmt: skip
def test_parse(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 potato", "1iB", "0x10", "1e9", "nan"])
def test_what_is_not_a_size_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


def test_a_size_beyond_all_numbers_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^'9{50}' is more than any memory$"):
        parse_bytes("9" * 400)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (1025 << 10, "1.0 MiB"),
        (1 << 30, "1 GiB"), (3 << 40, "3 TiB"), (1 << 50, "1024 TiB"),
    ],
)  # fmt: skip
def test_format(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
