"""The pure part of placement: policies, index matching, admission and the retry budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.block_hash import INDEX_STRIDE, BlockHash, chain, is_indexed, root_hash
from pagewire.core.errors import Overloaded
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.admission import Admission, RetryBudget
from pagewire.router.policy import Demand, LeastLoaded, PodView, Policy, PrefixAffinity, RoundRobin
from pagewire.router.prefix_index import MAX_PROBES, held, probes

ROOT = root_hash(model_digest="m", kv_fingerprint="k")
B = 16


def pod(name: str, *, cached: int = 0, in_flight: int = 0, pending: int = 0, load: Load | None = None) -> PodView:
    return PodView(
        pod_id=name, address=f"{name}:1", role=Role.DECODE, load=load or Load(), in_flight=in_flight,
        pending_tokens=pending, cached_tokens=cached,
    )  # fmt: skip


def demand(num_tokens: int = 1000) -> Demand:
    return Demand(num_tokens=num_tokens, block_size=B)


@pytest.mark.parametrize("policy", [PrefixAffinity(), LeastLoaded(), RoundRobin()])
@given(
    loads=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 50), st.integers(0, 9000)), min_size=1, max_size=6),
    prefills=st.integers(0, 5),
)
def test_every_policy_places_on_what_it_was_given(
    policy: Policy, loads: list[tuple[int, int, int]], prefills: int
) -> None:
    decode = [pod(f"d{i}", cached=c, in_flight=n, pending=p) for i, (c, n, p) in enumerate(loads)]
    prefill = [pod(f"p{i}") for i in range(prefills)]
    placement = policy.place(demand(), decode, prefill)
    assert placement.decode in {each.pod_id for each in decode}
    names = [each.pod_id for each in placement.candidates]
    assert len(set(names)) == len(names) == min(3, prefills)
    assert set(names) <= {each.pod_id for each in prefill}
    if not prefill:
        assert placement.cached_tokens == next(e for e in decode if e.pod_id == placement.decode).cached_tokens


def test_affinity_follows_the_prefix_until_its_queue_costs_more() -> None:
    policy = PrefixAffinity()
    warm, cold = pod("p0", cached=960), pod("p1")
    placement = policy.place(demand(), [pod("d0")], [cold, warm])
    assert [each.pod_id for each in placement.candidates] == ["p0", "p1"]
    assert placement.cached_tokens == 960
    queued = pod("p0", cached=960, pending=2000)
    assert policy.place(demand(), [pod("d0")], [cold, queued]).candidates[0].pod_id == "p1"


def test_affinity_counts_what_pods_measured() -> None:
    slow = pod("p0", cached=500, load=Load(prefill_s_per_token=0.01))
    fast = pod("p1", load=Load(prefill_s_per_token=0.001))
    placement = PrefixAffinity().place(demand(), [pod("d0")], [slow, fast])
    assert placement.candidates[0].pod_id == "p1"
    busy = pod("p1", load=Load(prefill_s_per_token=0.001, waiting_tokens=9000))
    assert PrefixAffinity().place(demand(), [pod("d0")], [slow, busy]).candidates[0].pod_id == "p0"


def test_a_local_prompt_goes_where_it_is_cached_and_a_crowd_is_avoided() -> None:
    policy = PrefixAffinity()
    assert policy.place(demand(), [pod("d0"), pod("d1", cached=960)], []).decode == "d1"
    assert policy.place(demand(), [pod("d0"), pod("d1", cached=960, in_flight=20)], []).decode == "d0"


def test_a_pod_without_room_comes_last() -> None:
    full = pod("d0", load=Load(blocks_total=100, blocks_free=5))
    roomy = pod("d1", in_flight=30, load=Load(blocks_total=100, blocks_free=20, blocks_cached=60))
    for policy in (PrefixAffinity(), LeastLoaded()):
        assert policy.place(demand(), [full, roomy], []).decode == "d1"


def test_room_is_for_all_sequences() -> None:
    roomy = pod("d1", in_flight=30, load=Load(blocks_total=100, blocks_free=20))
    for num_sequences, decode in ((4, "d0"), (5, "d1")):
        tight = pod("d0", load=Load(blocks_total=100, blocks_free=8))
        asked = Demand(num_tokens=4 * B, block_size=B, num_sequences=num_sequences)
        for policy in (PrefixAffinity(), LeastLoaded()):
            assert policy.place(asked, [tight, roomy], []).decode == decode


def test_least_loaded_believes_the_higher_of_two_counts() -> None:
    theirs, ours = pod("d0", load=Load(num_running=5)), pod("d1", in_flight=4, cached=960)
    assert LeastLoaded().place(demand(), [theirs, ours], []).decode == "d1"


def test_round_robin_takes_turns() -> None:
    policy = RoundRobin()
    decode, prefill = [pod("d0"), pod("d1")], [pod("p0"), pod("p1"), pod("p2")]
    placed = [policy.place(demand(), decode, prefill) for _ in range(6)]
    assert [each.decode for each in placed] == ["d0", "d1"] * 3
    assert [each.candidates[0].pod_id for each in placed] == ["p0", "p1", "p2"] * 2


def hashes(num_tokens: int) -> list[BlockHash]:
    return chain(ROOT, list(range(num_tokens)), B)


@given(num_tokens=st.integers(0, 60_000))
def test_probes_are_indexed_few_and_reach_the_end(num_tokens: int) -> None:
    all_hashes = [BlockHash(i.to_bytes(16, "little")) for i in range(num_tokens // B)]
    asked = probes(all_hashes, num_tokens, B)
    depths = [probe.depth for probe in asked]
    assert depths == sorted(set(depths))
    assert len(asked) <= MAX_PROBES
    assert all(is_indexed(probe.depth) and probe.block_hash == all_hashes[probe.depth] for probe in asked)
    indexed = [depth for depth in range(len(all_hashes)) if is_indexed(depth)]
    assert (depths[-1:], depths[:1]) == (indexed[-1:], indexed[:1])


@given(cached_blocks=st.integers(0, 64), num_tokens=st.integers(1, 1100))
def test_what_is_held_is_matched_to_the_stride_and_never_beyond_what_may_hit(
    cached_blocks: int, num_tokens: int
) -> None:
    chain_ = hashes(num_tokens)
    there = {h for depth, h in enumerate(chain_[:cached_blocks]) if is_indexed(depth)}
    asked = probes(chain_, num_tokens, B)
    found = held(asked, [{"d0@1"} if p.block_hash in there else set() for p in asked], {"d0": "1"}, num_tokens, B)
    strides = min(cached_blocks, len(chain_)) // INDEX_STRIDE
    want = min(strides * INDEX_STRIDE * B, (num_tokens - 1) // B * B)
    assert found.tokens.get("d0", 0) == want
    assert found.stale == ()


def test_dead_incarnations_and_strangers_say_nothing() -> None:
    asked = probes(hashes(400), 400, B)
    answers = [{"d0@old", "d1@1", "gone@1", "nonsense"}, {"d0@1", "d1@1"}, {"d1@1"}]
    found = held(asked, answers, {"d0": "1", "d1": "1"}, 400, B)
    assert found.tokens == {"d1": 384}  # d0 misses the shallow block, so what it says of deeper ones is wrong
    assert found.stale == ((asked[0].block_hash, "d0@old"),)


def test_what_left_the_pool_for_host_memory_is_still_held() -> None:
    asked = probes(hashes(400), 400, B)
    answers: list[set[str]] = [{"d0@1", "d1@1+1"}, {"d0@1+1", "d1@1"}, {"d0@1+1", "d1@old+1"}]
    found = held(asked, answers, {"d0": "1", "d1": "1"}, 400, B)
    assert found.tokens == {"d0": 384, "d1": 256}
    assert found.on_host == {"d0": 256, "d1": 0}
    assert found.stale == ((asked[2].block_hash, "d1@old+1"),)


def test_admission_is_bounded_and_says_when_to_come_back() -> None:
    admission = Admission(2)
    admission.enter()
    admission.enter()
    with pytest.raises(Overloaded) as raised:
        admission.enter()
    assert 1.0 <= raised.value.retry_after_s <= 30.0
    assert admission.active == 2
    for _ in range(2):
        admission.leave(1000.0)
    assert admission.active == 0
    assert admission.retry_after_s() == 30.0
    with pytest.raises(ValueError):
        Admission(0)


def test_the_retry_budget_is_a_share_with_a_reserve() -> None:
    budget = RetryBudget(ratio=0.5, burst=2)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.spend()
    for _ in range(100):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]
