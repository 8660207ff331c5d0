"""Lives of blocks against a naive count of the pool under random use; of a sample, that it is one in so many."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import cycle, islice

import pytest
from engine_runs import ROOT

from pagewire.core.block_hash import chain
from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import BlockLife
from pagewire.engine.block_lives import BlockLives
from pagewire.engine.block_pool import BlockPool

NUM_BLOCKS = 24
RUNS = 4000


class Naive:
    """Looks at the whole pool around each move: what stood for a hash and does not, what was taken, who is held."""

    def __init__(self, pool: BlockPool, clock: ManualClock) -> None:
        self._pool = pool
        self._clock = clock
        self._taken_s: dict[int, float] = {}
        self._uses_s: dict[int, list[float]] = defaultdict(list)
        self.ended: list[BlockLife] = []

    def take(self, move: Callable[[], list[int]]) -> list[int]:
        """Make a move that takes blocks, and may evict."""
        before = self._idle()
        taken = move()
        for block_id in sorted((before - self._idle()) | {*taken}):
            self._end(block_id)
        self._taken_s.update(dict.fromkeys(taken, self._clock.now()))
        return taken

    def evict(self, move: Callable[[], int]) -> None:
        """Make a move that evicts."""
        before = self._idle()
        move()
        for block_id in before - self._idle():
            self._end(block_id)

    def use(self, block_ids: list[int]) -> None:
        """These blocks are held once more."""
        for block_id in block_ids:
            self._uses_s[block_id].append(self._clock.now())

    def _idle(self) -> set[int]:
        blocks = self._pool._blocks
        return {each.block_id for each in blocks if each.block_hash is not None and each.references == 0}

    def _end(self, block_id: int) -> None:
        taken_s, uses_s = self._taken_s.pop(block_id, None), self._uses_s.pop(block_id, [])
        if taken_s is None:
            return
        last = uses_s[-4:]
        gaps_s = tuple(last[i] - last[i - 1] for i in range(1, len(last)))
        now_s = self._clock.now()
        self.ended.append(BlockLife(lived_s=now_s - taken_s, idle_s=now_s - max([taken_s, *uses_s]), gaps_s=gaps_s))


class Use:
    """A pool in random use: chains come, hold what is cached, grow, go; idle blocks move out ahead of need."""

    def __init__(self, sample_every: int) -> None:
        self.clock = ManualClock()
        self.pool = BlockPool(NUM_BLOCKS, 4, lives=BlockLives(self.clock, sample_every))
        self.naive = Naive(self.pool, self.clock)
        self.lives: list[BlockLife] = []
        self._tables: list[list[int]] = []
        self._chance = random.Random(5)

    def run(self, moves: int) -> None:
        """Make so many moves, and hear of what ended after each."""
        for _ in range(moves):
            self.clock.advance(self._chance.choice((0.0, 0.25, 3.0)))
            self._chance.choice((self._come, self._come, self._go, self._offload))()
            self.pool.take_moves()
            self.lives += self.pool.drain_lives()
        self.pool.check()

    def _come(self) -> None:
        tokens = [self._chance.randrange(3) for _ in range(self._chance.randint(1, 6))]
        names = chain(ROOT, tokens, 1)
        hits = self.pool.match(names)
        if self.pool.num_unreferenced(hits) + len(names) + 1 - len(hits) > self.pool.num_available:
            return
        self.pool.share(hits)
        self.naive.use(hits)
        table = hits + self.naive.take(lambda: self.pool.allocate(len(names) + 1 - len(hits)))  # and an unfilled one
        self.pool.register(table, names)
        self._tables.append(table)

    def _go(self) -> None:
        if self._tables:
            self.pool.release(self._tables.pop(self._chance.randrange(len(self._tables))))

    def _offload(self) -> None:
        self.naive.evict(lambda: self.pool.offload(2, NUM_BLOCKS // 2))


def test_every_life_is_what_a_naive_look_at_the_pool_sees() -> None:
    use = Use(sample_every=1)
    use.run(RUNS)
    assert Counter(use.lives) == Counter(use.naive.ended)
    assert len(use.lives) > RUNS / 2
    assert {len(life.gaps_s) for life in use.lives} == {0, 1, 2, 3}
    assert any(life.idle_s < life.lived_s for life in use.lives)


def test_a_sample_is_of_those_lives() -> None:
    use = Use(sample_every=10)
    use.run(RUNS)
    assert Counter(use.lives) <= Counter(use.naive.ended)
    assert len(use.lives) == pytest.approx(len(use.naive.ended) / 10, rel=0.15)


@pytest.mark.parametrize("size", [1, 7, 50, 100, 333])
def test_one_in_so_many_is_followed_wherever_it_stands_among_what_is_taken_at_once(size: int) -> None:
    lives, blocks, taken = BlockLives(ManualClock(), 100), list(range(size)), 400_000
    for _ in range(taken // size):
        lives.taken(blocks)
    lives.lost(blocks)
    assert len(lives.drain()) == pytest.approx(taken / 100, rel=0.05)
    assert lives.drain() == ()
    where: Counter[int] = Counter()
    for _ in range(taken // size):
        lives.taken(blocks)
        where.update(lives._times.keys())
        lives.lost(blocks)
    halves = sum(count for place, count in where.items() if place < size // 2), sum(where.values())
    assert size == 1 or halves[0] / halves[1] == pytest.approx((size // 2) / size, abs=0.05)


@pytest.mark.parametrize("sizes", [(1,), (7,), (1000,), (2, 301, 1, 44)])
def test_what_is_followed_does_not_hang_on_how_many_are_taken_at_once(sizes: tuple[int, ...]) -> None:
    def followed(sizes: Iterable[int]) -> list[int]:
        lives, untaken = BlockLives(ManualClock(), 10), list(range(5000))
        for size in sizes:
            lives.taken(untaken[:size])
            del untaken[:size]
        found: list[int] = []
        for block_id in range(5000 - len(untaken)):
            lives.lost([block_id])
            if lives.drain():
                found.append(block_id)
        return found

    at_once = followed([5000])
    assert len(at_once) == pytest.approx(500, rel=0.1)
    assert followed(islice(cycle(sizes), 5000)) == at_once


def test_a_pool_that_follows_nothing_tells_nothing() -> None:
    pool = BlockPool(4)
    pool.release(pool.allocate(4))
    pool.allocate(4)
    assert pool.drain_lives() == ()
