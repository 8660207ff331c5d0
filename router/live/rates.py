"""How fast KV comes to pods, from totals that they count: differences of two loads of one pod, by its own clock.

Pure. Invariant: what is remembered is of pods that the latest call named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagewire.core.load import Load

MAX_GAP_S = 5.0  # between two loads: nobody looked for so long, and a mean over it is no speed of now


@dataclass(frozen=True, slots=True)
class _Known:
    load: Load
    rates: Mapping[str, float]  # bytes per second by source


class Rates:
    """Remembers the latest load of each pod."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def take(self, loads: Mapping[str, Load]) -> Mapping[str, Mapping[str, float]]:
        """Return bytes per second by pod and source, where two loads tell; `loads` are by incarnation and link."""
        self._known = {key: self._next(self._known.get(key), load) for key, load in loads.items()}
        return {key: known.rates for key, known in self._known.items()}

    @staticmethod
    def _next(known: _Known | None, load: Load) -> _Known:
        if known is None:
            return _Known(load, {})
        gap_s = load.at_s - known.load.at_s
        if gap_s == 0:
            return known
        if not 0 < gap_s <= MAX_GAP_S:
            return _Known(load, {})
        before = {inflow.source: inflow.num_bytes for inflow in known.load.inflows}
        # A source that was met in between began at nothing; one that was met anew began again.
        grown = {inflow.source: inflow.num_bytes - before.get(inflow.source, 0) for inflow in load.inflows}
        return _Known(load, {source: max(0, num_bytes) / gap_s for source, num_bytes in grown.items()})
