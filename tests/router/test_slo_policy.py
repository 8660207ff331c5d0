"""The slo policy against its definition: brute force over small fleets, and what must not matter to it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.fingerprint import Fingerprint
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.policies.arithmetic import build_s, build_times, places_of, predict
from pagewire.router.policies.least_loaded import LeastLoaded
from pagewire.router.policies.offers import SLACK_S, SLACK_SHARE, broken_by
from pagewire.router.policies.placement import Placement, Policy
from pagewire.router.policies.prefix_affinity import PrefixAffinity
from pagewire.router.policies.round_robin import RoundRobin
from pagewire.router.policies.slo import SHORTLIST, Slo
from pagewire.router.policies.two_choices import TwoChoices
from pagewire.router.policies.view import Demand, PodView
from pagewire.router.prediction import Correction, Factors, Prediction, Targets, Way
from pagewire.router.roster import Roster

B = 16
EPSILON = 1e-9
SERVES = Fingerprint(
    model_name="m", model_digest="d", tokenizer_digest="t", kv_fingerprint="k", kv_layout="l", block_size=B,
    hash_version=1, max_model_len=8192,
)  # fmt: skip


def views(role: Role, loads: Sequence[Load]) -> list[PodView]:
    return [
        PodView(pod_id=f"{role.value}{at}", address=f"a{at}", role=role, load=load, in_flight=at, key=f"{role}{at}@1#1")
        for at, load in enumerate(loads)
    ]


def load(chance: random.Random) -> Load:
    pick = chance.choice
    return Load(
        num_running=chance.randrange(20), num_waiting=chance.randrange(3), waiting_tokens=pick([0, 0, 300, 4000]),
        blocks_total=400, blocks_free=pick([400, 400, chance.randrange(400)]),
        prefill_s_per_token=pick([0.0, 1e-5, 1e-4, 1e-3]), step_s=pick([0.0, 0.005, 0.02, 0.05]),
        step_sequences=chance.uniform(0, 20), step_s_per_sequence=pick([0.0, 1e-4, 2e-3]),
        prefill_budget=pick([0, 128, 512]), link_rtt_s=pick([0.0, 0.0005, 0.01]),
        link_s_per_token=pick([0.0, 1e-6, 1e-4]),
    )  # fmt: skip


def factors(chance: random.Random) -> Factors:
    return Factors(**{field: chance.choice([0.25, 1.0, 1.0, 3.0]) for field in Factors.__dataclass_fields__})


Case = tuple[Demand, list[PodView], list[PodView], Targets]


def case_of(seed: int) -> Case:
    """Draw a case evenly: shrinking ones would seldom have two pods that are nearly as good."""
    chance = random.Random(seed)
    decode = views(Role.DECODE, [load(chance) for _ in range(chance.randrange(1, 6))])
    prefill = views(Role.PREFILL, [load(chance) for _ in range(chance.randrange(SHORTLIST + 1))])
    tokens = chance.randrange(1, 3000)
    holders = [pod.pod_id for pod in (*decode, *prefill) if chance.random() < 0.5]
    cached = {name: chance.randrange((tokens - 1) // B + 1) * B for name in holders}
    longest = sorted(cached.items(), key=lambda each: (-each[1], each[0]))[:3]
    demand = Demand(
        num_tokens=tokens,
        block_size=B,
        num_sequences=chance.randrange(1, 4),
        cached=cached,
        on_host={name: chance.randrange(count + 1) for name, count in cached.items() if chance.random() < 0.3},
        sources=tuple(each for each in longest if each[1]),
        may_be_local=bool(prefill) and chance.random() < 0.5,
        answer_tokens=chance.choice([1.0, 10.0, 128.0]),
        correction=Correction(local=factors(chance), remote=factors(chance)),
    )
    targets = Targets(gap_s=chance.choice([0.0, 0.001, 0.02, 0.1]), tpot_s=chance.choice([0.0, 0.001, 0.02, 0.1]))
    return demand, decode, prefill, targets


def cases() -> st.SearchStrategy[Case]:
    return st.integers(0, 2**32).map(case_of)


Choice = tuple[PodView, PodView | None, Prediction]


def choices(demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> list[Choice]:
    builders: list[PodView | None] = [*prefill]
    if demand.may_be_local or not prefill:
        builders.append(None)
    return [(pod, builder, predict(demand, pod, builder)) for pod in decode for builder in builders]


def broken(choice: Choice, demand: Demand, targets: Targets) -> float:
    pod, builder, predicted = choice
    return broken_by(targets, demand, pod, Way.LOCAL if builder is None else Way.REMOTE, predicted)


def chosen(placement: Placement, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Choice:
    pod = next(each for each in decode if each.pod_id == placement.decode)
    names = [each.pod_id for each in placement.candidates]
    builder = next(each for each in prefill if each.pod_id == names[0]) if names else None
    return pod, builder, placement.prediction


@settings(max_examples=1500, deadline=None)
@given(case=cases())
def test_it_takes_what_the_rule_leaves_of_all_options(
    case: Case,
) -> None:
    demand, decode, prefill, targets = case
    placement = Slo(targets).place(demand, decode, prefill)
    ours = chosen(placement, decode, prefill)
    every = choices(demand, decode, prefill)
    assert ours[:2] in [each[:2] for each in every]
    least = min(broken(each, demand, targets) for each in every)
    assert broken(ours, demand, targets) <= least + EPSILON

    # Of each decode pod the soonest option that breaks the targets least; of these, as soon as the soonest; the rest.
    kept = [each for each in every if broken(each, demand, targets) <= least + EPSILON]
    own_s = [each[2].ttft_s for each in kept if each[0] is ours[0]]
    assert ours[2].ttft_s <= min(own_s) + EPSILON
    soonest_s = min(each[2].ttft_s for each in kept)
    bound_s = soonest_s + max(SLACK_S, SLACK_SHARE * soonest_s)
    assert ours[2].ttft_s <= bound_s + EPSILON

    def rest_s(choice: Choice) -> float:
        return choice[2].gap_s + (demand.answer_tokens - 1) * choice[2].tpot_s

    for pod in decode:
        own = [each for each in kept if each[0] is pod]
        if own:
            soonest = min(own, key=lambda each: each[2].ttft_s)
            ties = [each for each in own if each[2].ttft_s <= soonest[2].ttft_s + EPSILON]
            if soonest[2].ttft_s <= bound_s - EPSILON:
                assert rest_s(ours) <= max(rest_s(each) for each in ties) + EPSILON


@given(case=cases())
def test_what_is_within_the_targets_is_taken_where_there_is_any(
    case: Case,
) -> None:
    demand, decode, prefill, targets = case
    _, _, predicted = chosen(Slo(targets).place(demand, decode, prefill), decode, prefill)
    within = [each for each in choices(demand, decode, prefill) if broken(each, demand, targets) == 0]
    if within:
        assert not targets.gap_s or predicted.gap_s <= targets.gap_s + EPSILON
        assert not targets.tpot_s or predicted.tpot_s <= targets.tpot_s + EPSILON


@given(case=cases(), seed=st.integers(0, 99))
def test_the_order_in_which_pods_are_met_changes_nothing_and_neither_does_asking_twice(case: Case, seed: int) -> None:
    demand, decode, prefill, targets = case
    shuffled = [*decode, *prefill]
    random.Random(seed).shuffle(shuffled)
    orders = ([*decode, *prefill], shuffled)

    def policies() -> list[Policy]:
        return [Slo(targets), PrefixAffinity(), LeastLoaded(), RoundRobin(), TwoChoices(random.Random(3).randrange)]

    for one, other, again in zip(policies(), policies(), policies(), strict=True):
        placed = []
        for policy, order in zip((one, other, again), (*orders, orders[0]), strict=True):
            roster = Roster()
            for view in order:
                roster.put(SERVES, view)
            placed.append([policy.place(demand, roster.decode(SERVES), roster.prefill(SERVES)) for _ in range(3)])
        assert placed[0] == placed[1] == placed[2]


@given(case=cases())
def test_all_sums_at_once_are_the_sums_one_by_one(case: Case) -> None:
    demand, decode, prefill, _ = case
    pods = [*decode, *prefill]
    assert build_times(demand, pods) == pytest.approx([build_s(demand, pod) for pod in pods], rel=1e-9, abs=1e-12)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(0, 30))
def test_who_holds_something_is_found_among_many_pods(seed: int, num_holders: int) -> None:
    chance = random.Random(seed)
    names = [f"d{at:03}" for at in range(300)]
    pods = [PodView(pod_id=name, address="a", role=Role.DECODE, load=load(chance)) for name in names]
    cached = dict.fromkeys([*chance.sample(names, num_holders), "a", "d1000", "z"], 4 * B)
    assert sorted(places_of(pods, cached)) == [at for at, name in enumerate(names) if name in cached]
    demand = Demand(num_tokens=1000, block_size=B, cached=cached)
    assert build_times(demand, pods) == [build_s(demand, pod) for pod in pods]


def test_a_longer_queue_of_the_holder_sends_a_prompt_elsewhere_and_a_gap_target_decides_between_decode_pods() -> None:
    prompt = Demand(num_tokens=1600, block_size=B, cached={"prefill0": 1520}, sources=(("prefill0", 1520),))
    fast = Load(prefill_s_per_token=1e-4, step_s=0.01, prefill_budget=512, link_rtt_s=0.001, link_s_per_token=5e-5)
    decode, prefill = views(Role.DECODE, [fast] * 2), views(Role.PREFILL, [fast] * 2)
    assert Slo(Targets()).place(prompt, decode, prefill).candidates[0].pod_id == "prefill0"
    busy = dataclasses.replace(fast, waiting_tokens=5000)
    queued = views(Role.PREFILL, [busy, fast])
    assert Slo(Targets()).place(prompt, decode, queued).candidates[0].pod_id == "prefill1"
    # The second decode pod is farther away: a promise of the gap leaves only the first, however many run there.
    far = dataclasses.replace(fast, link_s_per_token=9e-5)
    crowded = dataclasses.replace(fast, num_running=5, step_s_per_sequence=1e-3)
    apart = views(Role.DECODE, [crowded, far])
    assert Slo(Targets()).place(prompt, apart, prefill).decode == "decode1"
    assert Slo(Targets(gap_s=0.11)).place(prompt, apart, prefill).decode == "decode0"


def test_a_target_of_tpot_keeps_a_long_prompt_from_those_who_run() -> None:
    prompt = Demand(num_tokens=3000, block_size=B, may_be_local=True, answer_tokens=100)
    idle = Load(prefill_s_per_token=1e-4, step_s=0.01, prefill_budget=512, link_rtt_s=0.001, link_s_per_token=1e-6)
    running = dataclasses.replace(idle, num_running=3, step_sequences=3, step_s_per_sequence=1e-5)
    decode, prefill = views(Role.DECODE, [running]), views(Role.PREFILL, [idle])
    assert Slo(Targets()).place(prompt, decode, prefill).way is Way.LOCAL  # an exchange sooner
    assert Slo(Targets(tpot_s=0.012)).place(prompt, decode, prefill).way is Way.REMOTE
    alone = views(Role.DECODE, [idle])
    assert Slo(Targets(tpot_s=0.012)).place(prompt, alone, prefill).way is Way.LOCAL
    settled = dataclasses.replace(prompt, may_be_local=False)
    assert Slo(Targets()).place(settled, decode, prefill).way is None


def test_a_pod_without_room_is_as_late_as_its_room() -> None:
    prompt = Demand(num_tokens=1600, block_size=B, block_s=0.01)
    full, roomy = Load(blocks_total=200, blocks_free=1), Load(blocks_total=200, blocks_free=150, num_running=30)
    assert Slo(Targets()).place(prompt, views(Role.DECODE, [full, roomy]), []).decode == "decode1"


def test_where_the_prompt_must_go_is_settled_where_that_is_open_and_a_pool_is_large_enough() -> None:
    prompt = Demand(num_tokens=1600, block_size=B, may_be_local=True)  # 101 blocks
    near, far = Load(prefill_s_per_token=1e-4), Load(prefill_s_per_token=1e-3)

    def way(demand: Demand, here: Load, there: Load | None) -> Way | None:
        prefill = [] if there is None else views(Role.PREFILL, [there])
        return Slo(Targets()).place(demand, views(Role.DECODE, [here]), prefill).way

    assert way(prompt, near, far) is Way.LOCAL
    assert way(prompt, far, near) is Way.REMOTE
    assert way(prompt, near, None) is Way.LOCAL
    for blocks, expected in ((0, Way.REMOTE), (1, None), (100, None), (101, Way.REMOTE), (102, Way.REMOTE)):
        assert way(prompt, dataclasses.replace(far, blocks_total=blocks, blocks_free=blocks), near) is expected
    assert way(prompt, dataclasses.replace(near, blocks_total=1, blocks_free=1), None) is Way.LOCAL
    settled = dataclasses.replace(prompt, may_be_local=False)
    assert way(settled, far, near) is way(settled, near, None) is None


def reasons(targets: Targets, demand: Demand, decode: list[PodView], prefill: list[PodView]) -> dict[str, str]:
    options = Slo(targets).place(demand, decode, prefill).options
    return {f"{option.decode} {option.prefill}".strip(): option.reason for option in options}


def test_why_an_option_was_not_taken() -> None:
    prompt = Demand(num_tokens=1000, block_size=B, explain=True, answer_tokens=100)
    plain = Load(
        prefill_s_per_token=1e-3, step_s=0.02, prefill_budget=100, link_rtt_s=0.01, link_s_per_token=1e-5,
        step_s_per_sequence=0.01,
    )  # fmt: skip
    slow, crowded = dataclasses.replace(plain, prefill_s_per_token=2e-3), dataclasses.replace(plain, num_running=2)
    decode, prefill = views(Role.DECODE, [plain, crowded]), views(Role.PREFILL, [plain, slow])
    later = "its TTFT is 2.0110 s, the chosen one's 1.0110 s"
    worse = "as soon, but its TPOT is 0.0500 s and its gap 0.0610 s"
    assert reasons(Targets(), prompt, decode, prefill) == {
        "decode0 prefill0": "", "decode0 prefill1": later, "decode1 prefill0": worse,
        "decode0": "prompts go to prefill pods",
    }  # fmt: skip
    broken = "it breaks the targets of gap and TPOT by 100.0%, the chosen one by 20.0%"
    found = reasons(Targets(tpot_s=0.025), prompt, decode, prefill)
    assert (found["decode1 prefill0"], found["decode0 prefill1"]) == (broken, later)
    # Without prefill pods nothing goes there.
    assert reasons(Targets(), prompt, decode, []) == {
        "decode0": "", "decode1": "as soon, but its TPOT is 0.0500 s and its gap 0.0500 s",
    }  # fmt: skip
    # Open, it is compared like any other.
    quick = dataclasses.replace(prompt, may_be_local=True)
    found = reasons(Targets(), quick, views(Role.DECODE, [slow]), views(Role.PREFILL, [plain]))
    assert found == {"decode0 prefill0": "", "decode0": "its TTFT is 2.0010 s, the chosen one's 1.0110 s"}
    assert reasons(Targets(), quick, views(Role.DECODE, [plain]), views(Role.PREFILL, [slow])) == {
        "decode0": "", "decode0 prefill0": "its TTFT is 2.0110 s, the chosen one's 1.0010 s",
    }  # fmt: skip


def test_what_a_prompt_costs_those_that_run_is_among_the_reasons() -> None:
    """A prompt of a second stalls them by 10 ms a token: twice the target where it is computed on their pod."""
    prompt = Demand(num_tokens=1000, block_size=B, explain=True, answer_tokens=100, may_be_local=True)
    busy = Load(prefill_s_per_token=1e-3, step_s=0.009, num_running=1, step_sequences=1.0, step_s_per_sequence=0.001)
    decode, prefill = views(Role.DECODE, [busy]), views(Role.PREFILL, [busy])
    targets = Targets(tpot_s=0.01)
    assert reasons(targets, prompt, decode, prefill) == {
        "decode0 prefill0": "", "decode0": "it breaks the targets of gap and TPOT by 100.0%, the chosen one by 0.0%",
    }  # fmt: skip
    slower = dataclasses.replace(busy, prefill_s_per_token=3e-3)
    assert reasons(targets, prompt, views(Role.DECODE, [busy, slower]), []) == {
        "decode0": "", "decode1": "it breaks the targets of gap and TPOT by 300.0%, the chosen one by 100.0%",
    }  # fmt: skip


def test_the_chosen_builder_has_the_soonest_others_behind_it() -> None:
    """The first is the one of which the gap is kept; the others stand in by when they would be done."""
    prompt = Demand(num_tokens=1000, block_size=B)
    load = Load(prefill_s_per_token=1e-3, link_s_per_token=1e-4, link_rtt_s=0.001, step_s=0.01)
    builders = [dataclasses.replace(load, prefill_budget=budget, waiting_tokens=tokens)
                for budget, tokens in ((1000, 0), (1000, 20), (100, 30), (100, 10))]  # fmt: skip
    decode, prefill = views(Role.DECODE, [load]), views(Role.PREFILL, builders)
    names = [each.pod_id for each in Slo(Targets()).place(prompt, decode, prefill).candidates]
    assert names == ["prefill0", "prefill3", "prefill1"]
    names = [each.pod_id for each in Slo(Targets(gap_s=0.03)).place(prompt, decode, prefill).candidates]
    assert names == ["prefill3", "prefill0", "prefill1"]
    assert [each.pod_id for each in Slo(Targets()).place(prompt, decode, prefill[:1]).candidates] == ["prefill0"]
