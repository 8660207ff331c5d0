"""A workload: arrivals in order of time, as often as one asks for them, and whether they wait for answers. Pure.

A workload is finite and can be gone through again: two players see the same arrivals. It holds no list of them, so that
a million cost no memory. Knows neither clock nor server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pagewire.slo.workloads.arrival import Arrival, Turn

PIECE_TOKENS = 512  # of a recording in Mooncake's format


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Arrivals by rising `at_s`.

    Open loop (`concurrency` 0): each arrival is asked at its `at_s`, whatever becomes of those before it. Closed loop:
    `concurrency` users go through the arrivals in order; each takes the next one when the last turn of its own was
    answered, and `at_s` says nothing. `piece_tokens` is the length of what an id in Turn.pieces stands for, in tokens.
    `source` begins anew with each call. `seed` is that of everything that was drawn, the tokens of pieces included.
    `is_cut`: more would have come, had whoever asks not wanted an end.
    """

    name: str
    source: Callable[[], Iterable[Arrival]]
    piece_tokens: int = PIECE_TOKENS
    concurrency: int = 0
    seed: int = 0
    is_cut: bool = False

    def __iter__(self) -> Iterator[Arrival]:
        """Yield the arrivals; raises ValueError at one out of order, or whose pieces do not cover its input tokens."""
        last_s = 0.0
        for arrival in self.source():
            if arrival.at_s < last_s:
                raise ValueError(f"{self.name}: an arrival at {arrival.at_s} s comes after one at {last_s} s")
            last_s = arrival.at_s
            for turn in arrival.turns:
                self._check(turn)
            yield arrival

    def _check(self, turn: Turn) -> None:
        if turn.pieces and len(turn.pieces) != num_pieces(turn.input_tokens, self.piece_tokens):
            raise ValueError(
                f"{self.name}: {turn.input_tokens} input tokens are not {len(turn.pieces)} pieces of "
                f"{self.piece_tokens} tokens"
            )


def num_pieces(input_tokens: int, piece_tokens: int) -> int:
    """Return how many pieces of `piece_tokens` cover `input_tokens`."""
    return -(-input_tokens // piece_tokens)
