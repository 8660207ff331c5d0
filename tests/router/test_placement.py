"""The pure part of placement: policies and the retry budget."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.policies.arithmetic import predict
from pagewire.router.policies.least_loaded import LeastLoaded
from pagewire.router.policies.placement import Policy
from pagewire.router.policies.prefix_affinity import PrefixAffinity
from pagewire.router.policies.round_robin import RoundRobin
from pagewire.router.policies.slo import Slo
from pagewire.router.policies.two_choices import TwoChoices
from pagewire.router.policies.view import Demand, PodView
from pagewire.router.prediction import Targets
from pagewire.router.retry_budget import RetryBudget

B = 16


def pod(name: str, *, in_flight: int = 0, pending: int = 0, load: Load | None = None) -> PodView:
    return PodView(
        pod_id=name, address=f"{name}:1", role=Role.DECODE, load=load or Load(), in_flight=in_flight,
        pending_tokens=pending,
    )  # fmt: skip


def demand(num_tokens: int = 1000, **cached: int) -> Demand:
    return Demand(num_tokens=num_tokens, block_size=B, cached=cached)


def all_policies() -> list[Policy]:
    targets = Targets(gap_s=0.05, tpot_s=0.03)
    return [PrefixAffinity(), LeastLoaded(), RoundRobin(), TwoChoices(random.Random(1).randrange), Slo(targets)]


@pytest.mark.parametrize("policy", all_policies(), ids=lambda policy: type(policy).__name__)
@given(
    loads=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 50), st.integers(0, 9000)), min_size=1, max_size=6),
    prefills=st.integers(0, 5),
)
def test_every_policy_places_on_what_it_was_given(
    policy: Policy, loads: list[tuple[int, int, int]], prefills: int
) -> None:
    decode = [pod(f"d{i}", in_flight=n, pending=p) for i, (_, n, p) in enumerate(loads)]
    prefill = [pod(f"p{i}") for i in range(prefills)]
    cached = {f"d{i}": min(999, c) for i, (c, _, _) in enumerate(loads)}
    placement = policy.place(demand(**cached), decode, prefill)
    assert placement.decode in {each.pod_id for each in decode}
    names = [each.pod_id for each in placement.candidates]
    assert len(set(names)) == len(names) == min(3, prefills)
    assert set(names) <= {each.pod_id for each in prefill}
    if not prefill:
        assert placement.cached_tokens == cached[placement.decode]
    chosen = next(each for each in decode if each.pod_id == placement.decode)
    builder = next((each for each in prefill if names and each.pod_id == names[0]), None)
    assert placement.prediction == predict(demand(**cached), chosen, builder)


def test_affinity_follows_the_prefix_until_its_queue_costs_more() -> None:
    policy = PrefixAffinity()
    warm, cold = pod("p0"), pod("p1")
    placement = policy.place(demand(p0=960), [pod("d0")], [cold, warm])
    assert [each.pod_id for each in placement.candidates] == ["p0", "p1"]
    assert placement.cached_tokens == 960
    queued = pod("p0", pending=2000)
    assert policy.place(demand(p0=960), [pod("d0")], [cold, queued]).candidates[0].pod_id == "p1"


def test_affinity_counts_what_pods_measured() -> None:
    slow = pod("p0", load=Load(prefill_s_per_token=0.01))
    fast = pod("p1", load=Load(prefill_s_per_token=0.001))
    placement = PrefixAffinity().place(demand(p0=500), [pod("d0")], [slow, fast])
    assert placement.candidates[0].pod_id == "p1"
    busy = pod("p1", load=Load(prefill_s_per_token=0.001, waiting_tokens=9000))
    assert PrefixAffinity().place(demand(p0=500), [pod("d0")], [slow, busy]).candidates[0].pod_id == "p0"


def test_a_local_prompt_goes_where_it_is_cached_and_a_crowd_is_avoided() -> None:
    policy = PrefixAffinity()
    assert policy.place(demand(d1=960), [pod("d0"), pod("d1")], []).decode == "d1"
    assert policy.place(demand(d1=960), [pod("d0"), pod("d1", in_flight=20)], []).decode == "d0"


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
    theirs, ours = pod("d0", load=Load(num_running=5)), pod("d1", in_flight=4)
    assert LeastLoaded().place(demand(d1=960), [theirs, ours], []).decode == "d1"


def test_round_robin_takes_turns() -> None:
    policy = RoundRobin()
    decode, prefill = [pod("d0"), pod("d1")], [pod("p0"), pod("p1"), pod("p2")]
    placed = [policy.place(demand(), decode, prefill) for _ in range(6)]
    assert [each.decode for each in placed] == ["d0", "d1"] * 3
    assert [each.candidates[0].pod_id for each in placed] == ["p0", "p1", "p2"] * 2


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
