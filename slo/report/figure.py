"""A figure: what it shows, how that is defined, the numbers behind it, and how they are drawn. Pure.

Invariant: what is drawn is in the rows; so who cannot see the picture misses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

T = TypeVar("T")
Cell = str | int | float | None
FEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`says` is what one sees in it, `definition` what that means; `draw` puts it on a canvas of `height_in` inches.

    `notes` tell what was left out.
    """

    slug: str
    title: str
    says: str
    definition: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    draw: Callable[[Canvas], None]
    height_in: float = 3.6
    notes: Sequence[str] = ()


def evenly(items: Sequence[T], most: int) -> Sequence[T]:
    """Return them all, or of more than `most` (2 or more) as many, evenly apart, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[place * (len(items) - 1) // (most - 1)] for place in range(most)]


def percent(share: float, digits: int = 1) -> str:
    """Return a share as people read it."""
    return f"{100 * share:.{digits}f} %"


def extremes(values: Mapping[str, float], told: Callable[[float], str]) -> str:
    """Return what each name has, or of more than FEW the least and the most alone."""
    if len(values) <= FEW:
        return ", ".join(f"{name} {told(value)}" for name, value in values.items())
    least, most = min(values, key=lambda name: values[name]), max(values, key=lambda name: values[name])
    return f"from {told(values[least])} ({least}) to {told(values[most])} ({most})"


def milliseconds(seconds: float | None) -> str:
    """Return a span in milliseconds, "" of none."""
    return "" if seconds is None else f"{1e3 * seconds:.1f}"
