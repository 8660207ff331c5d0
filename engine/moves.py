"""The copies of whole blocks that the bookkeeping asks for, in the order in which they must be made.

Knows ids of blocks and of slots in host memory; knows no bytes. Invariant: made in their order, before anybody reads or
writes the blocks, they leave in every place what the bookkeeping says is there, however often a place was taken again.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from pagewire.engine.parked import Parked


class Way(Enum):
    """From where to where: out of the pool to host memory, into the pool from there, or within the pool."""

    OUT = auto()
    IN = auto()
    WITHIN = auto()


class Move(NamedTuple):
    """Copy one block; `source` and `target` are ids of blocks, or of slots on the side of host memory.

    `parked` says what lies in the slot from then on, where that is for whoever asks for its hash.
    """

    source: int
    target: int
    way: Way
    parked: Parked | None = None


class Moves:
    """What was asked for and is not taken yet."""

    def __init__(self) -> None:
        self._moves: list[Move] = []

    def ask(self, source: int, target: int, way: Way, parked: Parked | None = None) -> None:
        """Ask for a copy, behind those that were asked for before."""
        self._moves.append(Move(source, target, way, parked))

    def take(self) -> tuple[Move, ...]:
        """Return the copies to make, in their order; whoever asks makes them before anybody touches the blocks."""
        moves, self._moves = tuple(self._moves), []
        return moves
