"""Copying against computing: the plan is never worse than any other way, by brute force."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.kv_layout import KVLayout
from pagewire.core.messages import Source
from pagewire.engine.exchange.prefix_plan import PRIOR_S_PER_TOKEN, FetchMode, PrefixPlan, plan_prefix
from pagewire.kvtransfer.link_cost import LinkCost

LAYOUT = KVLayout(num_layers=2, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")


def source(num_tokens: int, name: str = "s") -> Source:
    return Source(pod_id=name, address="a", num_tokens=num_tokens)


def test_a_fast_link_is_used_and_the_last_token_is_computed() -> None:
    plan = plan_prefix(64, 1, [(source(64), LinkCost(rtt_s=0.0, s_per_byte=0.0))], LAYOUT, 1e-3)
    assert (plan.num_blocks, plan.source) == (3, source(64))
    assert plan.seconds == 16 * 1e-3


def test_a_slow_link_is_not() -> None:
    plan = plan_prefix(64, 0, [(source(64), LinkCost(rtt_s=1.0, s_per_byte=0.0))], LAYOUT, 1e-3)
    assert (plan.num_blocks, plan.source) == (0, None)


def test_what_is_here_is_not_fetched() -> None:
    plan = plan_prefix(64, 3, [(source(64), LinkCost(rtt_s=0.0, s_per_byte=0.0))], LAYOUT, 1e-3)
    assert (plan.num_blocks, plan.source) == (3, None)


def test_always_takes_the_longest_and_of_equals_the_cheapest_however_dear() -> None:
    dear, dearer = LinkCost(rtt_s=5.0, s_per_byte=0.0), LinkCost(rtt_s=9.0, s_per_byte=0.0)
    known = [(source(32, "short"), LinkCost()), (source(48, "dearer"), dearer), (source(48, "dear"), dear)]
    for sources in itertools.permutations(known):
        plan = plan_prefix(64, 0, sources, LAYOUT, 1e-3, FetchMode.ALWAYS)
        assert (plan.num_blocks, plan.source) == (3, source(48, "dear"))
        assert plan.seconds == 5.0 + 16 * 1e-3  # forced, and predicted as what it is


def test_only_what_is_not_here_is_copied() -> None:
    link = LinkCost(rtt_s=0.001, s_per_byte=1e-9)
    plan = plan_prefix(80, 1, [(source(64), link)], LAYOUT, 1e-3)
    assert plan == PrefixPlan(num_blocks=4, source=source(64), seconds=link.seconds(3 * LAYOUT.block_bytes) + 16 * 1e-3)


def test_of_equals_nothing_is_fetched_and_the_first_source_is_asked() -> None:
    tie = LinkCost(rtt_s=2.0, s_per_byte=0.0)  # as long as computing 32 tokens of 1/16 s each
    assert plan_prefix(33, 0, [(source(32), tie)], LAYOUT, 0.0625).source is None
    free = LinkCost(rtt_s=0.0, s_per_byte=0.0)
    for mode in (FetchMode.AUTO, FetchMode.ALWAYS):
        plan = plan_prefix(33, 0, [(source(32, "one"), free), (source(32, "two"), free)], LAYOUT, 1e-3, mode)
        assert plan.source == source(32, "one")


def test_a_pod_that_has_not_measured_itself_is_thought_faster_than_a_slow_link() -> None:
    assert plan_prefix(64, 0, [(source(64), LinkCost(rtt_s=1.0, s_per_byte=0.0))], LAYOUT, 0.0).source is None


def test_never_takes_nothing_however_cheap() -> None:
    free = LinkCost(rtt_s=0.0, s_per_byte=0.0)
    plan = plan_prefix(64, 1, [(source(64), free)], LAYOUT, 1e-3, FetchMode.NEVER)
    assert (plan.num_blocks, plan.source, plan.seconds) == (1, None, 48 * 1e-3)


@given(
    num_tokens=st.integers(1, 200),
    data=st.data(),
    s_per_token=st.sampled_from([0.0, 1e-4, 1e-2]),
)
def test_it_is_the_best_of_all(num_tokens: int, data: st.DataObject, s_per_token: float) -> None:
    most = (num_tokens - 1) // 16
    cached = data.draw(st.integers(0, most))
    sources = data.draw(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1), st.floats(0, 1e-3)), max_size=3))
    known = [
        (source(held, f"s{at}"), LinkCost(rtt_s=rtt, s_per_byte=rate)) for at, (held, rtt, rate) in enumerate(sources)
    ]
    plan = plan_prefix(num_tokens, cached, known, LAYOUT, s_per_token)
    cost = s_per_token or PRIOR_S_PER_TOKEN
    ways = [(num_tokens - cached * 16) * cost]
    for held, link in known:
        end = min(held.num_tokens // 16, most)
        if end > cached:
            ways.append(
                link.rtt_s + (end - cached) * LAYOUT.block_bytes * link.s_per_byte + (num_tokens - end * 16) * cost
            )
    assert plan.seconds == min(ways)
    assert cached <= plan.num_blocks <= max(cached, most)
    assert (plan.source is None) == (plan.num_blocks == cached)
