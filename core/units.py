"""Sizes as people write them: "512MiB", "1.5GiB", "4096"."""

from __future__ import annotations

import math
import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_bytes(text: str) -> int:
    """Return the bytes that `text` names: "1GiB" is 2**30, "1GB" is 10**9; raises ValueError on anything else."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f'{text!r} is not a size such as "512MiB", "1.5GiB" or "4096"')
    number, prefix, binary = match.groups()
    if binary and not prefix:
        raise ValueError(f'{text!r} is not a size such as "512MiB", "1.5GiB" or "4096"')
    scale: int = (1024 if binary else 1000) ** _POWERS[prefix.upper()]
    if math.isinf(size := float(number) * scale):
        raise ValueError(f"{text[:50]!r} is more than any memory")
    return round(size)


def format_bytes(num_bytes: int) -> str:
    """Return `num_bytes` for people: "1.5 GiB"."""
    value, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value == round(value) else f"{value:.1f} {unit}"
