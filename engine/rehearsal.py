"""When an idle engine computes a token for nobody: while a sequence is on its way to it, and it has rested a while.

Memory that nobody touched for seconds is cold in more than the caches: what runs the machine takes pages back, moves
them, or maps them anew at the next touch, and the first step after a rest was seen to take two to ten times as long. A
decode pod rests exactly while the prompt of its next sequence is computed elsewhere, so it rehearses then, and that
first step is the hand-over's no longer. A sequence that is computed here comes first: its own prompt warms the memory
too, and would wait for the rehearsal. A GPU's memory does not grow cold so, and nobody rehearses there: a rehearsal,
launched kernel by kernel, was seen to hold the first token of a hand-over up by four milliseconds.

Invariants: an engine that expects nobody does not rehearse; one that does spends at most `SHARE` of its time on it.
"""

from __future__ import annotations

REST_S = 1.0  # after half a second nothing was seen to be cold, after three seconds much
SHARE = 0.05
PATIENCE_S = 0.02  # a sequence that is computed here joins within a few milliseconds of its reservation


class Rehearsal:
    """When the next rehearsal is due."""

    def __init__(self) -> None:
        self._due_s = 0.0
        self._expects_since_s: float | None = None

    def stepped(self, now_s: float) -> None:
        """A step ended: whatever it touched is warm."""
        self._due_s = now_s + REST_S

    def rehearsed(self, started_s: float, now_s: float) -> None:
        """A rehearsal ended."""
        self._due_s = now_s + max(REST_S, (now_s - started_s) / SHARE)

    def due_in_s(self, now_s: float, *, expects: bool) -> float | None:
        """Return how long the engine may rest yet, 0 when it is time; None while it `expects` nobody."""
        if not expects:
            self._expects_since_s = None
            return None
        if self._expects_since_s is None:
            self._expects_since_s = now_s
        return max(0.0, max(self._due_s, self._expects_since_s + PATIENCE_S) - now_s)
