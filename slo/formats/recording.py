"""What recordings have in common: their first arrival is at 0, and prompts of which only the length is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from pagewire.slo.arrival import Arrival, Turn
from pagewire.slo.workload import PIECE_TOKENS, num_pieces


def from_zero(arrivals: Sequence[Arrival], file: str) -> Callable[[], Sequence[Arrival]]:
    """Return the source of a workload: by time, the first at 0. Raises ValueError where there are none."""
    if not arrivals:
        raise ValueError(f"{file} has no requests")
    begin_s = min(arrival.at_s for arrival in arrivals)
    ordered = sorted((replace(each, at_s=each.at_s - begin_s) for each in arrivals), key=attrgetter("at_s"))
    return lambda: ordered


class Unshared:
    """Makes requests of which lengths alone are known: no two prompts share a piece."""

    def __init__(self) -> None:
        self._next_piece = 0

    def arrival(self, at_s: float, input_tokens: int, output_tokens: int) -> Arrival:
        """Return the next one."""
        begin = self._next_piece
        self._next_piece += num_pieces(input_tokens, PIECE_TOKENS)
        pieces = tuple(range(begin, self._next_piece))
        return Arrival(at_s=at_s, turns=(Turn(input_tokens=input_tokens, output_tokens=output_tokens, pieces=pieces),))
