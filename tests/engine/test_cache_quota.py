"""A tenant's quota of the cache, against its definition: over it, its own blocks go before anybody else's."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_runs import ROOT, assert_at_rest, engine, greedy, run_all, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.cache_quota import CacheQuota
from pagewire.core.errors import InvalidRequest
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.eviction_order import EvictionOrder
from pagewire.engine.owner import Owner, Owners
from pagewire.engine.prefix_cache import HOST, POOL

TinyModel = Callable[[str], Path]

CAPACITY = 8
SHARES = {"a": 0.0, "b": 0.25, "c": 0.5}


class Naive:
    """The definition, in lists: keys from the least recently used on, and the owners over their quota in turn."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys: list[tuple[str, str]] = []  # key, owner
        self.over: list[str] = []

    def judge(self) -> None:
        for owner, share in SHARES.items():
            is_over = sum(whose == owner for _, whose in self.keys) > int(share * self.capacity)
            if is_over != (owner in self.over):
                (self.over.append if is_over else self.over.remove)(owner)

    def add(self, key: str, owner: str) -> None:
        self.keys.append((key, owner))
        self.judge()

    def remove(self, key: str) -> str:
        (found,) = (each for each in self.keys if each[0] == key)
        self.keys.remove(found)
        self.judge()
        return found[1]

    def first(self) -> str:
        return next(key for key, owner in self.keys if not self.over or owner == self.over[0])


@settings(max_examples=400, deadline=None)
@given(moves=st.lists(st.tuples(st.sampled_from("arfrt"), st.integers(0, 11), st.sampled_from(["", *SHARES]))))
def test_the_order_is_that_of_its_definition(moves: list[tuple[str, int, str]]) -> None:
    owners = {name: Owner(name.encode(), share) for name, share in SHARES.items()}
    order: EvictionOrder[str] = EvictionOrder(CAPACITY)
    naive = Naive(CAPACITY)
    for move, number, owner in moves:
        key = str(number)
        if key not in order:
            order.add(key, owners.get(owner))
            naive.add(key, owner)
        elif move == "t":
            order.touch(key)
            entry = next(each for each in naive.keys if each[0] == key)
            naive.keys.remove(entry)
            naive.keys.append(entry)
        else:
            gone = order.first() if move == "f" else key
            order.remove(gone)
            naive.remove(gone)
        order.check()
        assert list(order) == [key for key, _ in naive.keys]
        assert order.num_over == len(naive.over)
        assert not naive.keys or order.first() == naive.first()


def quota(owner: str) -> CacheQuota | None:
    return CacheQuota(tag=owner.encode(), share=SHARES[owner]) if owner else None


def hashes(*tokens: int) -> list[BlockHash]:
    return chain(ROOT, tokens, 1)


def run(pool: BlockPool, names: list[BlockHash], asks: CacheQuota | None) -> int:
    """Hold a chain as a sequence does, and let it go; return how much of it was cached."""
    table = pool.claim(names)
    cached = len(table)
    table += pool.allocate(len(names) - cached)
    assert pool.register(table, names, 0, asks) == len(names)
    pool.release(table)
    pool.take_moves()
    pool.check()
    return cached


@settings(max_examples=300, deadline=None)
@given(uses=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", *SHARES])), max_size=80))
def test_both_tiers_keep_what_the_definition_keeps(uses: list[tuple[int, str]]) -> None:
    num_slots = 5
    pool, above, below = BlockPool(CAPACITY, num_slots), Naive(CAPACITY), Naive(num_slots)
    for number, owner in uses:
        key = f"{owner}{number}"
        (name,) = hashes(["", *SHARES].index(owner) * 100 + number)
        cached = bool(run(pool, [name], quota(owner)))
        tier = next((tier for tier in (above, below) if any(each == key for each, _ in tier.keys)), None)
        assert cached == (tier is not None)
        if tier is not None:
            tier.remove(key)
        if tier is not above and len(above.keys) == CAPACITY:
            gone = above.first()
            whose = above.remove(gone)
            if len(below.keys) == num_slots - 1:  # one is kept free for a swap
                below.remove(below.first())
            below.add(gone, whose)
        above.add(key, owner)
        expected = {POOL: len(above.keys), HOST: len(below.keys)}
        assert {POOL: pool.num_cached, HOST: pool.host.num_parked} == expected


@settings(max_examples=200, deadline=None)
@given(
    share=st.integers(0, 8).map(lambda eighths: eighths / 8),
    prompts=st.lists(st.integers(1, 6), min_size=1, max_size=40),
    num_slots=st.sampled_from([0, 6]),
)
def test_a_flood_costs_others_no_more_than_its_quota_and_what_runs(
    share: float, prompts: list[int], num_slots: int
) -> None:
    """Others' blocks that fit beside a tenant's quota and its longest prompt all stay, whatever it sends."""
    num_blocks = 16
    pool, flood = BlockPool(num_blocks, num_slots), CacheQuota(tag=b"flood", share=share)
    theirs = hashes(*range(max(0, num_blocks - int(share * num_blocks) - max(prompts))))
    run(pool, theirs, None)
    for number, length in enumerate(prompts):
        run(pool, hashes(*range(1000 * number + 1000, 1000 * number + 1000 + length)), flood)
        assert len(pool.match(theirs)) == len(theirs)


def test_without_a_quota_a_flood_takes_all() -> None:
    pool = BlockPool(16)
    theirs = hashes(1, 2, 3, 4)
    run(pool, theirs, None)
    for number in range(10):
        run(pool, hashes(*range(100 * number + 100, 100 * number + 104)), None)
    assert pool.match(theirs) == []
    assert (pool.cache.num_evicted, pool.cache.num_evicted_over) == (28, 0)


def test_what_nobody_else_wants_may_be_over_the_quota() -> None:
    pool, small = BlockPool(16), CacheQuota(tag=b"a", share=0.25)
    mine = hashes(*range(12))
    run(pool, mine, small)
    assert (len(pool.match(mine)), pool.cache.num_over) == (12, 1)
    held = pool.allocate(10)
    assert (len(pool.match(mine)), pool.cache.num_evicted_over) == (6, 6)
    held += pool.allocate(3)
    assert (len(pool.match(mine)), pool.cache.num_evicted_over, pool.cache.num_evicted) == (3, 8, 9)
    assert pool.cache.num_over == 0
    pool.release(held)
    pool.check()


def test_a_changed_quota_holds_for_what_is_cached_already() -> None:
    pool = BlockPool(16)
    mine, theirs = hashes(*range(8)), hashes(*range(50, 58))
    run(pool, mine, CacheQuota(tag=b"a", share=0.5))
    run(pool, theirs, None)
    assert pool.cache.num_over == 0
    run(pool, hashes(*range(8)), CacheQuota(tag=b"a", share=0.5))  # the most recently used now
    run(pool, [*hashes(99)], CacheQuota(tag=b"a", share=0.25))
    assert pool.cache.num_over == 1
    held = pool.allocate(4)
    assert (len(pool.match(mine)), len(pool.match(theirs))) == (4, 7)
    pool.release(held)


def test_nothing_is_remembered_of_a_tag_without_blocks() -> None:
    owners = Owners()
    kept = owners.of(CacheQuota(tag=b"kept", share=0.5))
    for number in range(100):
        owners.of(CacheQuota(tag=b"%d" % number, share=0.5))
    assert len(owners) == 1
    assert owners.of(CacheQuota(tag=b"kept", share=0.25)) is kept
    assert kept is not None
    assert kept.limit(10) == 2


@pytest.mark.parametrize("has_quota", [True, False])
def test_on_a_real_model_a_tenants_prompt_survives_anothers_flood(tiny: TinyModel, has_quota: bool) -> None:
    built = engine(tiny("llama"))
    chance = random.Random(3)
    theirs = [chance.randrange(256) for _ in range(100)]
    flood = CacheQuota(tag=b"flood", share=0.1) if has_quota else None
    run_all(built.loop, [spec("first", theirs, greedy(1))])
    num_blocks = built.scheduler.pool.num_blocks
    for number in range(2 * num_blocks // 6 + 1):
        prompt = [chance.randrange(256) for _ in range(100)]
        run_all(built.loop, [spec(f"flood {number}", prompt, greedy(1), cache_quota=flood)])
    heard = run_all(built.loop, [spec("again", theirs, greedy(1))])
    assert heard.ends["again"].cached_tokens == (96 if has_quota else 0)
    load = built.loop.load()
    assert load.blocks_evicted > 0
    assert (load.blocks_evicted_over_quota > 0) == has_quota
    assert_at_rest(built.loop)


@pytest.mark.parametrize("wrong", [CacheQuota(tag=b"", share=0.5), CacheQuota(tag=b"x" * 33, share=0.5)])
@pytest.mark.parametrize("share", [0.5, -0.1, 1.1, float("nan")])
def test_a_quota_that_is_none_is_refused_by_name(tiny: TinyModel, wrong: CacheQuota, share: float) -> None:
    built = engine(tiny("llama"))
    bad = wrong if share == 0.5 else CacheQuota(tag=b"a", share=share)
    with pytest.raises(InvalidRequest, match="cache_quota"):
        built.scheduler.add(spec("x", [1, 2, 3], greedy(1), cache_quota=bad))
