"""What is told of a cache: where a block is now, held against where it was said to be."""

from __future__ import annotations

import pytest
from engine_runs import ROOT

from pagewire.core.block_hash import chain
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.index_member import TIERS
from pagewire.engine.prefix_cache import HOST, POOL
from pagewire.engine.tier_news import TierNews

NAMES = chain(ROOT, range(9), 1)


def test_tiers_are_those_of_the_index() -> None:
    assert TIERS == (POOL, HOST)


@pytest.mark.parametrize("told", [None, POOL, HOST])
@pytest.mark.parametrize("now", [None, POOL, HOST])
def test_only_what_is_elsewhere_than_was_told_is_told(told: int | None, now: int | None) -> None:
    news = TierNews(1)
    news.note(NAMES[4], 4, told)
    stored, evicted = news.take(lambda name: now)
    block = {tier: (CachedBlock(block_hash=NAMES[4], depth=4, tier=tier),) for tier in (POOL, HOST)}
    assert stored == (block[now] if now is not None and now != told else ())
    assert evicted == (block[told] if told is not None and now is None else ())
    assert news.take(lambda name: now) == ((), ()), "it is told once"


def test_what_was_told_first_counts_however_often_it_changed_since() -> None:
    news = TierNews(1)
    for before in (POOL, HOST, None, POOL):
        news.note(NAMES[0], 0, before)
    assert news.take(lambda name: None) == ((), (CachedBlock(block_hash=NAMES[0], depth=0, tier=POOL),))


@pytest.mark.parametrize(("stride", "depths"), [(1, list(range(9))), (2, [1, 3, 5, 7]), (3, [2, 5, 8]), (9, [8])])
def test_of_so_many_blocks_the_last_is_told(stride: int, depths: list[int]) -> None:
    news = TierNews(stride)
    for depth, name in enumerate(NAMES):
        news.note(name, depth, None)
    stored, evicted = news.take(lambda name: POOL)
    assert [(block.block_hash, block.depth) for block in stored] == [(NAMES[depth], depth) for depth in depths]
    assert evicted == ()
