"""Workloads that are drawn rather than recorded: lengths, shared-prefix trees, sessions. Pure but for chance.

Invariant: one seed, one workload; lengths and sharing do not depend on the times.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.workload import Workload, num_pieces

MADE_UP_PIECE_TOKENS = 16  # as fine as the smallest block of KV


@dataclass(frozen=True, slots=True)
class Lengths:
    """Whole numbers from `low` to `high`, each as likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse an empty range with ValueError."""
        if not 1 <= self.low <= self.high:
            raise ValueError(f"lengths from {self.low} to {self.high} are none: say N or LOW-HIGH, from 1 on")

    def __str__(self) -> str:
        """Return the text that `parse_lengths` reads."""
        return f"{self.low}" if self.low == self.high else f"{self.low}-{self.high}"

    @property
    def mean(self) -> float:
        """Their mean."""
        return (self.low + self.high) / 2

    def draw(self, chance: random.Random) -> int:
        """Return one of them."""
        return chance.randint(self.low, self.high)


def parse_lengths(text: str) -> Lengths:
    """Return the lengths that "512" or "256-1024" names; raises ValueError on anything else."""
    low, dash, high = text.partition("-")
    try:
        return Lengths(int(low), int(high) if dash else int(low))
    except ValueError as error:
        raise ValueError(f'{text!r} is no length such as "512" or "256-1024"') from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """Prompts that begin alike: each begins with a way from the root of a tree to one of its leaves, drawn evenly.

    The tree has `depth` levels below its root, and every node `branches` children: so `branches ** depth` prefixes,
    of which two share as many levels as their ways do. A way holds `share` of a prompt of mean length.
    """

    share: float
    depth: int = 1
    branches: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no tree with ValueError."""
        if not 0 <= self.share < 1:
            raise ValueError(f"a share of {self.share:g} is not 0 or more and below 1")
        if self.depth < 1 or self.branches < 1:
            raise ValueError(f"a tree of depth {self.depth} with {self.branches} branches is none")

    def pieces_per_level(self, mean_tokens: float, piece_tokens: int) -> int:
        """Return how many pieces a node holds."""
        return round(self.share * mean_tokens / (self.depth * piece_tokens))

    def way(self, chance: random.Random, per_level: int) -> Iterator[int]:
        """Yield the pieces of a way, from the root on. A node's are numbered by its place in its level and above."""
        node, first = 0, 0  # the place in the level; how many nodes are in the levels above
        for level in range(1, self.depth + 1):
            node = node * self.branches + chance.randrange(self.branches)
            yield from range((first + node) * per_level, (first + node + 1) * per_level)
            first += self.branches**level

    def num_nodes(self) -> int:
        """Return how many nodes hold pieces."""
        return sum(self.branches**level for level in range(1, self.depth + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What requests are like. A session has `turns` turns; those after the first add `later_input` tokens each.

    Between them pass `think_s` seconds on average, drawn exponentially. With a tree, `input` is what a prompt has on
    average with its prefix: the rest is as long as a draw of it leaves.
    """

    input: Lengths
    output: Lengths
    tree: PrefixTree = PrefixTree(share=0.0)
    turns: Lengths = Lengths(1, 1)
    later_input: Lengths = Lengths(64, 64)
    think_s: float = 0.0


def made_up(name: str, shape: Shape, *, num_arrivals: int, seed: int) -> Workload:
    """Return a workload of `num_arrivals`, all at 0 s: a closed loop's, or to be given times (`retimed`).

    Nothing but the tree is shared.

    Raises ValueError where the tree's share is none in whole pieces, or leaves nothing of a prompt.
    """

    _pieces_per_level(shape)  # what cannot be is said now

    def source() -> Iterator[Arrival]:
        draw = _Draw(shape, random.Random(f"{seed}/shape"))
        return (draw.arrival() for _ in range(num_arrivals))

    return Workload(name=name, source=source, piece_tokens=MADE_UP_PIECE_TOKENS, seed=seed)


def _pieces_per_level(shape: Shape) -> int:
    tree, mean = shape.tree, shape.input.mean
    found = tree.pieces_per_level(mean, MADE_UP_PIECE_TOKENS)
    shared = found * tree.depth * MADE_UP_PIECE_TOKENS
    if bool(found) != (tree.share > 0) or shared >= mean:
        raise ValueError(
            f"a prefix_share of {tree.share:g} of a mean prompt of {mean:g} tokens, over {tree.depth} levels, is "
            f"{shared} tokens in whole pieces of {MADE_UP_PIECE_TOKENS}: take longer prompts or another share"
        )
    return found


class _Draw:
    """Draws arrivals one after the other, and numbers the pieces that nobody shares."""

    def __init__(self, shape: Shape, chance: random.Random) -> None:
        self._shape = shape
        self._chance = chance
        self._per_level = _pieces_per_level(shape)
        self._next_piece = shape.tree.num_nodes() * self._per_level
        # Not 1 - share: a way is of whole pieces, and the mean is to be as asked all the same.
        self._own_share = 1 - self._per_level * shape.tree.depth * MADE_UP_PIECE_TOKENS / shape.input.mean

    def arrival(self) -> Arrival:
        """Return the next one."""
        shape, chance = self._shape, self._chance
        shared = tuple(shape.tree.way(chance, self._per_level))
        own_tokens = max(1, round(shape.input.draw(chance) * self._own_share))
        first = self._turn(shared, own_tokens, 0.0)
        later = (
            self._turn((), shape.later_input.draw(chance), self._think_s()) for _ in range(shape.turns.draw(chance) - 1)
        )
        return Arrival(at_s=0.0, turns=(first, *later))

    def _turn(self, shared: tuple[int, ...], own_tokens: int, think_s: float) -> Turn:
        begin = self._next_piece
        self._next_piece += num_pieces(own_tokens, MADE_UP_PIECE_TOKENS)
        return Turn(
            input_tokens=len(shared) * MADE_UP_PIECE_TOKENS + own_tokens,
            output_tokens=self._shape.output.draw(self._chance),
            pieces=(*shared, *range(begin, self._next_piece)),
            think_s=think_s,
        )

    def _think_s(self) -> float:
        return self._chance.expovariate(1 / self._shape.think_s) if self._shape.think_s else 0.0
