"""Finds the first stop string in a text that arrives in pieces, across their borders.

Pure; knows text only. Holds back just the longest end of the text that could still become a stop string. The stop
string that is complete first wins; of two that end together, the longer.

Invariant: how the text was cut into pieces changes neither what is found nor the text that is let through.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """Text that may go out, and the stop string that ended it, if one did."""

    text: str
    matched: str | None = None


class StopStrings:
    """The stop strings of one sequence."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def push(self, piece: str) -> Passed:
        """Take the next piece of text; after a match nothing more may be pushed."""
        if not self._stops:
            return Passed(text=piece)
        text, num_seen = self._held + piece, len(self._held)
        match = min(
            (
                (at + len(stop), at, stop)
                for stop in self._stops
                if (at := text.find(stop, max(0, num_seen + 1 - len(stop)))) >= 0
            ),
            default=None,
        )
        if match is not None:
            _, start, stop = match
            self._held = ""
            return Passed(text=text[:start], matched=stop)
        return Passed(text=self._hold(text))

    def push_free(self, piece: str) -> str:
        """Take a piece in which no stop string may end, though one may begin in it; return what may go out."""
        return self._hold(self._held + piece)

    def finish(self) -> str:
        """Return what was held back: the text is over, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _hold(self, text: str) -> str:
        keep = self._pending(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _pending(self, text: str) -> int:
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - size :]
            if any(len(stop) > size and stop.startswith(end) for stop in self._stops):
                return size
        return 0
