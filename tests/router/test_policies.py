"""The other policies: what each promises, with fleets that show it; and slo beside round robin on a skewed trace."""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.policies.explained import MAX_OPTIONS
from pagewire.router.policies.least_loaded import LeastLoaded
from pagewire.router.policies.placement import Placement, Policy
from pagewire.router.policies.prefix_affinity import PrefixAffinity
from pagewire.router.policies.round_robin import RoundRobin
from pagewire.router.policies.slo import Slo
from pagewire.router.policies.two_choices import TwoChoices
from pagewire.router.policies.view import Demand, PodView
from pagewire.router.prediction import Targets

B = 16


def pod(name: str, *, in_flight: int = 0, pending: int = 0, load: Load | None = None) -> PodView:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    return PodView(
        pod_id=name, address=f"{name}:1", role=role, load=load or Load(), in_flight=in_flight, pending_tokens=pending
    )


def test_of_two_drawn_the_one_with_less_to_do_is_taken_and_a_seed_repeats_the_draws() -> None:
    decode = [pod(f"d{at}", in_flight=at) for at in range(8)]
    demand = Demand(num_tokens=100, block_size=B)

    def placed(seed: int) -> list[str]:
        policy = TwoChoices(random.Random(seed).randrange)
        return [policy.place(demand, decode, []).decode for _ in range(2000)]

    assert placed(1) == placed(1) != placed(2)
    counts = Counter(placed(1))
    # The k-th of n loses every draw with one of the k before it: it is taken with probability 2 (n-1-k) / (n (n-1)).
    assert counts["d7"] == 0
    for at in range(8):
        assert counts[f"d{at}"] / 2000 == pytest.approx(2 * (7 - at) / 56, abs=0.04)


def test_by_turns_a_request_goes_to_the_next_pods_and_the_ones_behind_them() -> None:
    decode, prefill = [pod("d0"), pod("d1")], [pod(f"p{at}") for at in range(4)]
    policy = RoundRobin()
    placed = [policy.place(Demand(num_tokens=9, block_size=B), decode, prefill) for _ in range(5)]
    assert [each.decode for each in placed] == ["d0", "d1", "d0", "d1", "d0"]
    assert [[each.pod_id for each in one.candidates] for one in placed] == [
        [f"p{(turn + behind) % 4}" for behind in range(3)] for turn in range(5)
    ]


def test_two_choices_draws_prefill_pods_as_well_and_names_others_behind_them() -> None:
    prefill = [pod(f"p{at}", pending=at * 100) for at in range(5)]
    policy = TwoChoices(random.Random(5).randrange)
    for _ in range(50):
        names = [
            each.pod_id for each in policy.place(Demand(num_tokens=9, block_size=B), [pod("d0")], prefill).candidates
        ]
        assert len(names) == len(set(names)) == 3
        assert names[0] < names[1]


@pytest.mark.parametrize(("busy", "holder_is_taken"), [(16, True), (17, False)])
def test_a_holder_is_passed_over_beyond_the_threshold(busy: int, holder_is_taken: bool) -> None:
    slow_prompt = Load(prefill_s_per_token=1.0)  # so that its cost alone would keep the holder
    decode = [pod("d0", in_flight=busy, load=slow_prompt), pod("d1", load=slow_prompt)]
    demand = Demand(num_tokens=1000, block_size=B, cached={"d0": 992})
    assert PrefixAffinity(threshold=16).place(demand, decode, []).decode == ("d0" if holder_is_taken else "d1")


def test_both_limits_must_be_exceeded_and_they_hold_for_prefill_pods_too() -> None:
    slow = Load(prefill_s_per_token=1.0)
    prefill = [pod("p0", in_flight=120, load=slow), pod("p1", in_flight=100, load=slow)]
    demand = Demand(num_tokens=1000, block_size=B, cached={"p0": 992})
    taken = [
        PrefixAffinity(threshold=16, ratio=ratio).place(demand, [pod("d0")], prefill).candidates[0].pod_id
        for ratio in (1.5, 1.1)
    ]
    assert taken == ["p0", "p1"]
    with pytest.raises(ValueError, match="no sense"):
        PrefixAffinity(ratio=0.5)


@pytest.mark.parametrize(
    ("policy", "why_decode", "why_prefill"),
    [
        (PrefixAffinity(), "its cost is", "its cost is"),
        (LeastLoaded(), "requests, the chosen one", "its queue is"),
        (RoundRobin(), "not its turn", "not its turn"),
        (TwoChoices(random.Random(1).randrange), "drawn", "drawn"),
        (Slo(Targets()), "TPOT is", "its TTFT is"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_policy_explains_itself(policy: Policy, why_decode: str, why_prefill: str) -> None:
    decode = [pod(f"d{at:02}", in_flight=9 * (at + 1)) for at in range(12)]
    prefill = [pod(f"p{at:02}", pending=9000 * at) for at in range(12)]
    asked = Demand(num_tokens=500, block_size=B, cached={"p00": 160, "d00": 32}, explain=True)
    placement = policy.place(asked, decode, prefill)
    first, *others = placement.options
    assert (first.decode, first.prefill, first.reason) == (placement.decode, placement.candidates[0].pod_id, "")
    assert first.prediction == placement.prediction
    assert first.cached_tokens == placement.cached_tokens
    assert len(others) == MAX_OPTIONS - 1
    assert all(other.reason for other in others)
    ttfts = [other.prediction.ttft_s for other in others]
    assert ttfts == sorted(ttfts)
    beside = [other for other in others if other.decode != first.decode]
    elsewhere = [other for other in others if other.decode == first.decode and other.prefill]
    assert any(why_decode in other.reason for other in beside)
    assert all(why_prefill in other.reason for other in elsewhere)
    silent = Demand(num_tokens=500, block_size=B)
    assert policy.place(silent, decode, prefill).options == ()


class Draws:
    """Numbers as they are to be drawn, and of how many each was."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = iter(numbers)
        self.of: list[int] = []

    def __call__(self, count: int) -> int:
        self.of.append(count)
        return next(self._numbers)


@pytest.mark.parametrize(
    ("draws", "decode", "builders"),
    [
        # The second is drawn among the others: from the first on, numbers stand for one place further.
        ((0, 0, 0, 0, 0), "d0", ["p0", "p1", "p2"]),
        ((3, 0, 0, 0, 0), "d0", ["p0", "p1", "p2"]),
        ((3, 2, 4, 3, 0), "d2", ["p3", "p4", "p0"]),
        ((2, 2, 2, 1, 2), "d2", ["p1", "p2", "p3"]),
        ((1, 0, 1, 1, 4), "d0", ["p1", "p2", "p4"]),
        ((1, 1, 3, 1, 3), "d1", ["p1", "p3", "p4"]),
    ],
)
def test_which_two_are_drawn_and_who_stands_behind_them(
    draws: tuple[int, ...], decode: str, builders: list[str]
) -> None:
    chance = Draws(*draws)
    pods = [pod(f"d{at}", in_flight=at) for at in range(4)], [pod(f"p{at}", pending=at) for at in range(5)]
    placed = TwoChoices(chance).place(Demand(num_tokens=9, block_size=B), *pods)
    assert (placed.decode, [each.pod_id for each in placed.candidates]) == (decode, builders)
    assert chance.of == [4, 3, 5, 4, 5]


def test_of_two_drawn_room_comes_first_and_of_two_builders_the_queue_then_requests_then_the_id() -> None:
    full = pod("d0", load=Load(blocks_total=9, blocks_free=1))
    asked = Demand(num_tokens=100, block_size=B)
    assert TwoChoices(Draws(0, 0)).place(asked, [full, pod("d1", in_flight=9)], []).decode == "d1"
    assert TwoChoices(Draws(1, 0)).place(asked, [pod("d0"), pod("d1")], []).decode == "d0"
    alone = pod("d0")
    for pair in (
        [pod("p1", in_flight=5), pod("p0", pending=1)],
        [pod("p1", in_flight=4), pod("p0", in_flight=5)],
        [pod("p1"), pod("p2")],
    ):
        for draws in ((0, 0, 0), (1, 0, 0)):
            assert TwoChoices(Draws(*draws)).place(asked, [alone], pair).candidates[0].pod_id == "p1"
    only = TwoChoices(Draws(0)).place(asked, [alone], [pod("p0")])  # of one nothing is drawn but who stands behind it
    assert [each.pod_id for each in only.candidates] == ["p0"]


def reasons(policy: Policy, demand: Demand, decode: list[PodView], prefill: list[PodView]) -> dict[str, str]:
    """Return why each option was not taken, by its pods."""
    options = policy.place(demand, decode, prefill).options
    return {f"{option.decode} {option.prefill}".strip(): option.reason for option in options}


EXPLAIN = Demand(num_tokens=100, block_size=B, explain=True)


def test_two_choices_say_who_was_not_drawn() -> None:
    decode, prefill = [pod(f"d{at}", in_flight=at) for at in range(3)], [pod(f"p{at}", pending=at) for at in range(4)]
    more = "it has more to do than the other one that was drawn"
    assert reasons(TwoChoices(Draws(0, 1, 1, 1, 0)), EXPLAIN, decode, prefill) == {
        "d0 p1": "", "d1 p1": "it was not drawn", "d2 p1": more, "d0 p0": "it was not drawn", "d0 p2": more,
        "d0 p3": "it was not drawn", "d0": "it was not drawn",
    }  # fmt: skip


def test_turns_say_so_of_everybody_else() -> None:
    found = reasons(RoundRobin(), EXPLAIN, [pod("d0"), pod("d1")], [pod("p0"), pod("p1"), pod("p2")])
    others = dict.fromkeys(["d1 p0", "d0 p1", "d0 p2", "d0"], "it was not its turn")
    assert found == {"d0 p0": "", **others}


def test_turns_stand_in_for_one_another_as_often_as_there_are_pods() -> None:
    policy, asked = RoundRobin(), Demand(num_tokens=9, block_size=B)
    assert policy.place(asked, [pod("d0")], []).candidates == ()
    two = [[each.pod_id for each in policy.place(asked, [pod("d0")], [pod("p0"), pod("p1")]).candidates] for _ in "ab"]
    assert two == [["p1", "p0"], ["p0", "p1"]]


def test_the_least_loaded_says_what_others_have_to_do() -> None:
    full = pod("d2", load=Load(blocks_total=9, blocks_free=1))
    decode = [pod("d0", in_flight=3), pod("d1", in_flight=2, pending=50), full]
    prefill = [pod("p0", pending=200), pod("p1"), pod("p2", pending=1)]
    assert reasons(LeastLoaded(), EXPLAIN, decode, prefill) == {
        "d1 p1": "", "d0 p1": "it has 3 requests, the chosen one 2", "d2 p1": "it has no room now",
        "d1 p0": "its queue is 0.0200 s", "d1 p2": "its queue is 0.0001 s", "d1": "its queue is 0.0050 s",
    }  # fmt: skip
    assert reasons(LeastLoaded(), EXPLAIN, decode, []) == {
        "d1": "", "d0": "it has 3 requests, the chosen one 2", "d2": "it has no room now",
    }  # fmt: skip


def test_the_least_loaded_goes_by_requests_to_decode_and_by_queues_to_prefill() -> None:
    asked = Demand(num_tokens=9, block_size=B)
    decode = [pod("d0", in_flight=2), pod("d1", in_flight=1, pending=9000), pod("d2", in_flight=1, pending=900)]
    prefill = [pod("p0", in_flight=3), pod("p1", pending=1), pod("p2", in_flight=2), pod("p3", in_flight=3)]
    placed = LeastLoaded().place(asked, decode, prefill)
    assert placed.decode == "d2"
    assert [each.pod_id for each in placed.candidates] == ["p2", "p0", "p3"]
    # A token in the queue is more than all requests that have none.
    crowded = [pod("p0", pending=1), pod("p1", in_flight=9999)]
    assert LeastLoaded().place(asked, decode, crowded).candidates[0].pod_id == "p1"


# ------------------------------------------------------------------------------------------------- under virtual time


@dataclass(slots=True)
class Pods:
    """Prefill pods that build prompts one after another, decode pods whose steps grow with their batch."""

    num_prefill: int
    num_decode: int
    free_at_s: dict[str, float] = field(default_factory=dict)
    running: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # ends, as a heap
    held: defaultdict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))  # prefix -> tokens

    TOKEN_S = 2e-4
    STEP_S = 0.01
    CROWD_S = 0.001

    def views(self, now_s: float) -> tuple[list[PodView], list[PodView]]:
        decode = []
        for at in range(self.num_decode):
            ends = self.running[f"d{at}"]
            while ends and ends[0] <= now_s:
                heapq.heappop(ends)
            load = Load(
                num_running=len(ends), step_s=self.STEP_S + self.CROWD_S * len(ends), step_sequences=len(ends),
                step_s_per_sequence=self.CROWD_S, prefill_s_per_token=self.TOKEN_S, link_rtt_s=0.001,
                link_s_per_token=1e-6,
            )  # fmt: skip
            decode.append(pod(f"d{at}", load=load))
        prefill = []
        for at in range(self.num_prefill):
            waits_s = max(0.0, self.free_at_s.get(f"p{at}", 0.0) - now_s)
            load = Load(
                waiting_tokens=round(waits_s / self.TOKEN_S), prefill_s_per_token=self.TOKEN_S, prefill_budget=512,
                link_rtt_s=0.001, link_s_per_token=1e-5,
            )  # fmt: skip
            prefill.append(pod(f"p{at}", load=load))
        return decode, prefill

    def run(self, now_s: float, placement: Placement, prompt: tuple[int, int, int], answer: int) -> tuple[float, float]:
        """Serve a request where it was placed; return its TTFT and TPOT."""
        prefix, shared, tokens = prompt
        builder, decode = placement.candidates[0].pod_id, placement.decode
        computed = tokens - self.held[builder].get(prefix, 0)
        begin_s = max(now_s, self.free_at_s.get(builder, 0.0))
        first_s = begin_s + computed * self.TOKEN_S
        self.free_at_s[builder] = first_s
        self.held[builder][prefix] = shared
        tpot_s = self.STEP_S + self.CROWD_S * (len(self.running[decode]) + 1)
        heapq.heappush(self.running[decode], first_s + answer * tpot_s)
        return first_s - now_s, tpot_s


def trace(count: int, seed: int) -> list[tuple[float, tuple[int, int, int], int]]:
    """Arrivals of prompts, most of them behind a few long prefixes, some of them very long."""
    chance, now_s, asked = random.Random(seed), 0.0, []
    for _ in range(count):
        now_s += chance.expovariate(8.0)
        prefix = min(int(chance.paretovariate(1.1)), 40)
        shared = B * (20 + 13 * prefix % 90)
        tokens = shared + chance.randrange(16, 3000 if chance.random() < 0.15 else 200)
        asked.append((now_s, (prefix, shared, tokens), chance.randrange(20, 400)))
    return asked


def attained(policy: Policy, asked: Sequence[tuple[float, tuple[int, int, int], int]], targets: Targets) -> float:
    """Return the share of requests within the targets of TTFT and TPOT."""
    pods, good = Pods(4, 4), 0
    for now_s, prompt, answer in asked:
        decode, prefill = pods.views(now_s)
        prefix, _, tokens = prompt
        cached = {name: held[prefix] for name, held in pods.held.items() if prefix in held}
        longest = sorted(cached.items(), key=lambda each: (-each[1], each[0]))[:3]
        demand = Demand(num_tokens=tokens, block_size=B, cached=cached, sources=tuple(longest), answer_tokens=200)
        placement = policy.place(demand, decode, prefill)
        ttft_s, tpot_s = pods.run(now_s, placement, prompt, answer)
        good += ttft_s <= targets.ttft_s and tpot_s <= targets.tpot_s
    return good / len(asked)


@pytest.mark.parametrize("seed", range(5))
def test_slo_keeps_more_promises_than_round_robin_on_a_skewed_trace(seed: int) -> None:
    targets = Targets(ttft_s=0.25, tpot_s=0.022)
    asked = trace(1500, seed)
    by_turns, by_slo = (attained(policy, asked, targets) for policy in (RoundRobin(), Slo(targets)))
    print(f"within the targets: round robin {by_turns:.3f}, slo {by_slo:.3f}, "
          f"prefix affinity {attained(PrefixAffinity(), asked, targets):.3f}, "
          f"least loaded {attained(LeastLoaded(), asked, targets):.3f}")  # fmt: skip
    assert by_slo > by_turns + 0.02
