"""The rebalancer: what it never does, whatever loads do, and where it comes to in a cluster that is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pagewire.core.messages import Role
from pagewire.router.rebalance import PodLoad, Rebalancer, Rules, Shift

RULES = Rules(high=0.8, low=0.6, hold_s=15.0, cooldown_s=60.0, full_queue_s=2.0, full_sequences=64)
P, D = Role.PREFILL, Role.DECODE


def pod(pod_id: str, role: Role, load: float = 0.0, *, is_settled: bool = True) -> PodLoad:
    """Return a pod whose role's pressure is `load`, were it alone."""
    return PodLoad(
        pod_id=pod_id, role=role, queue_s=load * 2.0 if role is P else 0.0, kv_share=load if role is D else 0.0,
        num_sequences=0, is_settled=is_settled,
    )  # fmt: skip


def held(rebalancer: Rebalancer, pods: list[PodLoad], from_s: float, to_s: float) -> tuple[float, Shift] | None:
    """Show the same pods every second; return the first change and its time."""
    now_s = from_s
    while now_s <= to_s:
        shift = rebalancer.observe(pods, now_s)
        if shift is not None:
            return now_s, shift
        now_s += 1.0
    return None


BUSY_PREFILL = [pod("p0", P, 2.0), pod("d0", D, 0.3), pod("d1", D, 0.2)]


def test_a_role_that_stays_short_gets_the_least_burdened_pod_of_the_other() -> None:
    changed = held(Rebalancer(RULES, 0.0), BUSY_PREFILL, 100.0, 200.0)
    assert changed is not None
    assert changed[0] == 115.0
    assert (changed[1].pod_id, changed[1].role) == ("d1", P)
    assert "prefill pressure is 2.00, and decode pressure would be 0.50" in changed[1].why
    busy_decode = [pod("p0", P, 0.2), pod("p1", P, 0.1), pod("d0", D, 0.9)]
    changed = held(Rebalancer(RULES, 0.0), busy_decode, 100.0, 200.0)
    assert changed is not None
    assert (changed[1].pod_id, changed[1].role) == ("p1", D)


def test_sequences_count_where_kv_does_not() -> None:
    many = [pod("p0", P), pod("p1", P), replace(pod("d0", D, 0.1), num_sequences=60)]
    assert held(Rebalancer(RULES, 0.0), many, 100.0, 200.0) is not None
    assert held(Rebalancer(RULES, 0.0), [*many[:2], replace(many[2], num_sequences=40)], 100.0, 200.0) is None


@pytest.mark.parametrize(
    ("pods", "rules"),
    [
        ([pod("p0", P, 0.79), pod("d0", D), pod("d1", D)], RULES),  # not short
        ([pod("p0", P, 2.0), pod("d0", D, 0.31), pod("d1", D, 0.31)], RULES),  # nobody can spare one
        ([pod("p0", P, 2.0), pod("d0", D)], RULES),  # the last pod of a role
        ([pod("p0", P, 2.0)], RULES),
        (BUSY_PREFILL, replace(RULES, min_decode=2)),
        ([*BUSY_PREFILL, pod("d2", D, is_settled=False)], RULES),  # a pod drains or is away
        ([*BUSY_PREFILL, pod("p1", P, 2.0, is_settled=False)], RULES),
    ],
)
def test_nothing_is_changed(pods: list[PodLoad], rules: Rules) -> None:
    assert held(Rebalancer(rules, 0.0), pods, 100.0, 400.0) is None


def test_it_begins_with_a_cool_down_and_so_does_a_change_that_somebody_else_made() -> None:
    rebalancer = Rebalancer(RULES, 100.0)
    changed = held(rebalancer, BUSY_PREFILL, 100.0, 300.0)
    assert changed is not None
    assert changed[0] == 160.0
    rebalancer = Rebalancer(RULES, 0.0)
    assert held(rebalancer, BUSY_PREFILL, 100.0, 110.0) is None
    by_hand = [pod("p0", P, 2.0), pod("d0", P, 2.0), pod("d1", D, 0.1), pod("d2", D, 0.1)]
    changed = held(rebalancer, by_hand, 111.0, 300.0)
    assert changed is not None
    assert changed[0] == 171.0


@pytest.mark.parametrize(
    "wrong", [{"low": 0.8}, {"low": 0.0}, {"hold_s": -1.0}, {"min_decode": 0}, {"full_queue_s": 0.0}]
)
def test_rules_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(RULES, **wrong)


LOADS = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=6)
COUNTS = st.integers(1, 4)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 20.0), LOADS, st.booleans()), min_size=1, max_size=150), COUNTS, COUNTS, COUNTS,
    COUNTS,
)  # fmt: skip
def test_never_below_a_minimum_and_never_twice_within_the_cool_down(
    moments: list[tuple[float, list[float], bool]], prefill: int, decode: int, min_prefill: int, min_decode: int
) -> None:
    assume(prefill >= min_prefill and decode >= min_decode)
    rules = replace(RULES, min_prefill=min_prefill, min_decode=min_decode, hold_s=5.0, cooldown_s=30.0)
    rebalancer = Rebalancer(rules, 0.0)
    roles = {f"{number}": P if number < prefill else D for number in range(prefill + decode)}
    now_s, changed_s = 0.0, 0.0
    for step_s, loads, is_settled in moments:
        now_s += step_s
        pods = [
            pod(pod_id, role, loads[number % len(loads)], is_settled=is_settled or number > 0)
            for number, (pod_id, role) in enumerate(roles.items())
        ]
        shift = rebalancer.observe(pods, now_s)
        if shift is None:
            continue
        assert is_settled
        assert roles[shift.pod_id] is not shift.role
        assert now_s - changed_s >= rules.cooldown_s
        changed_s, roles[shift.pod_id] = now_s, shift.role
        counts = {role: sum(each is role for each in roles.values()) for role in (P, D)}
        assert counts[P] >= min_prefill
        assert counts[D] >= min_decode


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["prefill", "decode", "neither"]), st.floats(0.5, 14.0)), max_size=100),
    st.floats(0.2, 2.0),
)
def test_a_load_that_swings_faster_than_the_hold_time_changes_nothing(
    swings: list[tuple[str, float]], step_s: float
) -> None:
    rebalancer = Rebalancer(RULES, -1000.0)
    now_s, before = 0.0, ""
    for heavy, lasts_s in swings:
        if heavy == before:
            continue  # that would be one longer swing
        before = heavy
        pods = [pod(f"p{n}", P, 2.0 if heavy == "prefill" else 0.0) for n in range(3)]
        pods += [pod(f"d{n}", D, 1.0 if heavy == "decode" else 0.0) for n in range(3)]
        ends_s = now_s + lasts_s
        while now_s < ends_s:
            assert rebalancer.observe(pods, now_s) is None
            now_s += step_s


# ------------------------------------------------------------------------------------------------- a computed cluster


@dataclass(frozen=True)
class Mix:
    """What arrives each second, in pods' worth of it: of prefill work, and of decode KV that it keeps filled."""

    prefill: float
    decode: float


def simulate(mix: Mix, roles: dict[str, Role], for_s: float, now_s: float = 0.0) -> list[float]:
    """Let a fluid of prompts and answers run through the pods; return the times of changes. A change takes 5 s."""
    rebalancer, changes = Rebalancer(RULES, now_s), []
    queue_s = 0.0  # of all prefill pods together, in seconds of one of them
    draining: dict[str, float] = {}
    ends_s = now_s + for_s
    while now_s < ends_s:
        for pod_id in [pod_id for pod_id, until_s in draining.items() if until_s <= now_s]:
            del draining[pod_id]
        working = {role: [p for p, r in roles.items() if r is role and p not in draining] for role in (P, D)}
        queue_s = max(0.0, queue_s + mix.prefill - len(working[P]))
        # No more is decoded than prefill lets through.
        arriving = mix.decode * min(1.0, len(working[P]) / mix.prefill)
        shares = {P: queue_s / max(1, len(working[P])) / 2.0, D: min(1.0, arriving / max(1, len(working[D])))}
        pods = [pod(each, role, shares[role], is_settled=each not in draining) for each, role in roles.items()]
        shift = rebalancer.observe(pods, now_s)
        if shift is not None:
            changes.append(now_s)
            roles[shift.pod_id], draining[shift.pod_id] = shift.role, now_s + 5.0
        now_s += 1.0
    return changes


def serves(mix: Mix, prefill: int, total: int) -> bool:
    """True for a ratio under which prompts do not pile up and decode has the room that `low` asks for."""
    return mix.prefill <= 0.9 * prefill and mix.decode <= RULES.low * (total - prefill)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 10), st.floats(0.1, 8.0), st.floats(0.1, 8.0), st.data())
def test_after_a_step_in_the_mix_it_comes_to_a_ratio_that_serves_and_stays(
    total: int, prefill: float, decode: float, data: st.DataObject
) -> None:
    mix = Mix(prefill, decode)
    assume(any(serves(mix, number, total) for number in range(1, total)))
    assume(not 0.0 < prefill % 1.0 < 0.02)  # so little too much fills no queue within the hour
    begins = data.draw(st.integers(1, total - 1))
    roles = {f"{number}": P if number < begins else D for number in range(total)}
    changes = simulate(mix, roles, 3600.0)
    number = sum(role is P for role in roles.values())
    assert mix.prefill <= number
    assert mix.decode < RULES.high * (total - number)
    assert len(changes) <= total
    assert all(each < 1800.0 for each in changes)
