"""The rebalancer: what it never does, whatever loads do, and where it comes to in a cluster that is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pagewire.core.messages import Role
from pagewire.router.config import RouterConfig
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"low": -0.1}, {"low": 0.0}, {"low": 0.8, "high": 0.8}, {"low": 0.9, "high": 0.8}, {"hold_s": -0.5},
        {"cooldown_s": -0.5}, {"full_queue_s": 0.0}, {"full_queue_s": -1.0}, {"full_queue_s": float("nan")},
        {"min_prefill": 0}, {"min_decode": 0}, {"full_sequences": 0},
    ],
)  # fmt: skip
def test_each_rule_has_its_bound(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Rules(**wrong)


def test_rules_at_their_bounds_are_taken_and_those_that_nobody_set_are_the_settings() -> None:
    least = Rules(
        low=0.01, high=0.02, hold_s=0.0, cooldown_s=0.0, full_queue_s=0.01, min_prefill=1, min_decode=1,
        full_sequences=1,
    )  # fmt: skip
    changed = Rebalancer(least, 0.0).observe([*BUSY_PREFILL[:1], pod("d0", D), pod("d1", D)], 0.0)
    assert changed is not None  # at once
    assert Rules() == RouterConfig(model=("m",), cluster_secret="s").rebalance_rules()


def test_each_role_has_its_own_minimum() -> None:
    rules = Rules(min_prefill=2, min_decode=3)
    assert (rules.fewest(P), rules.fewest(D)) == (2, 3)


def test_pressure_is_the_mean_of_a_roles_pods_over_what_counts_as_full() -> None:
    rebalancer = Rebalancer(replace(RULES, full_queue_s=4.0, full_sequences=8), 0.0)
    pods = [
        PodLoad(pod_id="p0", role=P, queue_s=1.0, kv_share=9.0, num_sequences=99),
        PodLoad(pod_id="p1", role=P, queue_s=2.0, kv_share=9.0, num_sequences=99),
        PodLoad(pod_id="d0", role=D, queue_s=9.0, kv_share=0.25, num_sequences=1),
        PodLoad(pod_id="d1", role=D, queue_s=9.0, kv_share=0.75, num_sequences=3),
    ]
    assert rebalancer.pressure(pods, P) == 1.5 / 4
    assert rebalancer.pressure(pods, D) == 0.5  # of the KV; of sequences a quarter
    assert rebalancer.pressure([*pods, replace(pods[3], num_sequences=26)], D) == 10 / 8


def loads(prefill: list[float], decode: list[float]) -> list[PodLoad]:
    return [
        *[pod(f"p{at}", P, load) for at, load in enumerate(prefill)],
        *[pod(f"d{at}", D, load) for at, load in enumerate(decode)],
    ]


@pytest.mark.parametrize(
    ("prefill", "decode", "rules", "changed"),
    [
        # short from `high` on, and the other may come to `low` and no further
        ([0.75], [0.25, 0.25], {}, ("d0", P)),
        ([0.74], [0.25, 0.25], {}, None),
        ([0.75], [0.25, 0.26], {}, None),
        ([0.25, 0.25], [0.75], {}, ("p0", D)),
        ([0.25, 0.25], [0.74], {}, None),
        ([0.25, 0.26], [0.75], {}, None),
        # three pods' load on two
        ([1.0], [0.25, 0.25, 0.5], {}, ("d0", P)),
        ([1.0], [0.25, 0.26, 0.5], {}, None),
        # the other keeps its minimum
        ([1.0], [0.0, 0.0, 0.0], {"min_decode": 2}, ("d0", P)),
        ([1.0], [0.0, 0.0, 0.0], {"min_decode": 3}, None),
        ([1.0], [0.0, 0.0, 0.0], {"min_prefill": 9}, ("d0", P)),
        ([0.0, 0.0, 0.0], [1.0], {"min_prefill": 2}, ("p0", D)),
        ([0.0, 0.0, 0.0], [1.0], {"min_prefill": 3}, None),
        # both short: nobody can spare one
        ([1.0, 1.0], [1.0, 1.0], {}, None),
        # nobody there
        ([], [1.0], {}, None),
        ([1.0, 1.0], [], {}, None),
        ([], [], {}, None),
    ],
)
def test_who_is_short_and_who_gives(
    prefill: list[float], decode: list[float], rules: dict[str, Any], changed: tuple[str, Role] | None
) -> None:
    exact = replace(RULES, high=0.75, low=0.5, hold_s=0.0, cooldown_s=0.0, **rules)
    shift = Rebalancer(exact, 0.0).observe(loads(prefill, decode), 0.0)
    assert (shift and (shift.pod_id, shift.role)) == changed


def test_the_giver_is_who_has_the_shortest_queue_then_the_least_kv_then_the_fewest_sequences_then_the_least_id() -> (
    None
):
    giver = PodLoad(pod_id="d5", role=D, queue_s=1.0, kv_share=0.1, num_sequences=3)
    others = [
        replace(giver, pod_id="d0", queue_s=1.1, kv_share=0.0, num_sequences=0),
        replace(giver, pod_id="d1", kv_share=0.2, num_sequences=0),
        replace(giver, pod_id="d2", num_sequences=4),
        replace(giver, pod_id="d6"),
        replace(giver, pod_id="p1", role=P, queue_s=2.0, kv_share=0.0),
    ]
    for pods in ([giver, *others], [*others, giver]):
        shift = Rebalancer(replace(RULES, hold_s=0.0, cooldown_s=0.0), 0.0).observe(pods, 0.0)
        assert shift is not None
        assert (shift.pod_id, shift.role) == ("d5", P)


def times(rebalancer: Rebalancer, moments: list[tuple[float, list[PodLoad]]]) -> list[float]:
    """Return when a change was ordered."""
    return [now_s for now_s, pods in moments if rebalancer.observe(pods, now_s) is not None]


def test_a_role_is_short_for_the_whole_time_without_a_gap_and_a_cool_down_ends_on_time() -> None:
    calm = [pod("p0", P, 0.1), *BUSY_PREFILL[1:]]
    busy = BUSY_PREFILL
    assert times(Rebalancer(RULES, 0.0), [(100.0, busy), (114.9, busy), (115.0, busy)]) == [115.0]
    gap = [(100.0, busy), (110.0, calm), (111.0, busy), (115.0, busy), (125.9, busy), (126.0, busy)]
    assert times(Rebalancer(RULES, 0.0), gap) == [126.0]
    # Short of the other role in between is a gap as well.
    other = [pod("p0", P), pod("d0", D, 1.0), pod("d1", D, 1.0), pod("p1", P)]
    with_p1 = [*busy, pod("p1", P, 2.0)]
    turns = [(100.0, with_p1), (110.0, other), (116.0, with_p1), (120.0, with_p1), (131.0, with_p1)]
    assert times(Rebalancer(RULES, 0.0), turns) == [131.0]
    # From the beginning, and from the change on, and what is held meanwhile counts.
    steady = [(second / 2, busy) for second in range(300)]
    assert times(Rebalancer(RULES, 0.0), steady) == [60.0, 120.0]
    # A cool-down that is shorter than the time it takes to be short: that begins again half a second after each.
    often = times(Rebalancer(replace(RULES, cooldown_s=10.0), 0.0), steady)
    assert often == [15.0 + 15.5 * at for at in range(9)]


def test_a_pod_that_somebody_else_changed_begins_a_cool_down_and_one_that_comes_or_goes_does_not() -> None:
    busy = BUSY_PREFILL
    moments = [(100.0, busy), (110.0, [*busy, pod("d2", D, 0.1)]), (112.0, busy), (115.0, busy)]
    assert times(Rebalancer(RULES, 0.0), moments) == [115.0]
    # Away while it was changed: known as it was when last seen.
    changed = [*busy, pod("d2", P, 2.0)]
    moments = [(100.0, [*busy, pod("d2", D)]), (105.0, busy), (110.0, changed), (169.9, changed), (170.0, changed)]
    assert times(Rebalancer(RULES, 0.0), moments) == [170.0]
    # Seen as changed once, and no more: what it orders itself is its own.
    moments += [(185.0, changed), (229.9, changed), (230.0, changed)]
    assert times(Rebalancer(RULES, 0.0), moments) == [170.0, 230.0]


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
