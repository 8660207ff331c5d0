"""Sizes as people write them."""

from __future__ import annotations

import pytest

from pagewire.core.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("4096", 4096), ("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("1GB", 10**9), ("2k", 2000), ("3B", 3)],
)
def test_parse(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 potato", "1iB", "0x10", "1e9", "nan"])
def test_what_is_not_a_size_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1 GiB"), (1 << 50, "1024 TiB")]
)
def test_format(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
