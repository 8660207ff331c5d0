"""A page of the docs, a part of which is written from figures: what stands between two marks."""

from __future__ import annotations


def replaced(text: str, begin: str, end: str, part: str) -> str:
    """Return the page with `part` between the marks `begin` and `end`, in place of what stood there."""
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{part}\n{end}{tail}"
