"""What a load came to: figures in the order in which they are read, and what was promised of them.

A promise is kept on any machine or it is broken: tokens, blocks, what refusals say. An aim depends on a machine's pace,
so only a quiet one tells of it; tests look at promises alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Row:
    """One scenario. Figures have their unit in their names."""

    scenario: str
    figures: dict[str, Any] = field(default_factory=dict)
    promises: dict[str, bool] = field(default_factory=dict)
    aims: dict[str, bool] = field(default_factory=dict)

    @property
    def broken(self) -> list[str]:
        """The promises that were not kept."""
        return [what for what, is_kept in self.promises.items() if not is_kept]

    @property
    def missed(self) -> list[str]:
        """The aims that were not reached."""
        return [what for what, is_reached in self.aims.items() if not is_reached]

    def json(self) -> dict[str, Any]:
        """Return it as it is kept."""
        return asdict(self)


def milliseconds(seconds: Sequence[float], share: float) -> float:
    """Return the quantile at `share` in milliseconds, 0 of nothing; the largest but 1 in 100 where it is 0.99."""
    if not seconds:
        return 0.0
    ordered = sorted(seconds)
    if share == 0.5:
        return round(1e3 * statistics.median(ordered), 1)
    return round(1e3 * ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1)


def p50_p99(seconds: Iterable[float]) -> str:
    """Return the median and the 99th percentile in milliseconds, as a figure."""
    found = list(seconds)
    return f"{milliseconds(found, 0.5)}, {milliseconds(found, 0.99)}"
