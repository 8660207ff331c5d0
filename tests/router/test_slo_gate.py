"""The SLO gate on a made-up server with one queue: it refuses once its predictions prove right, and stops when not.

The server is a definition, not a model of ours: prompts are served one after another, each for a second, and a request
meets its objective when its turn comes in time. So it is known of each refused request whether it would have met it.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from pagewire.router.prediction import Prediction
from pagewire.router.refusals import Reason, Refused
from pagewire.router.slo_gate import MEMORY_S, PROBE_EVERY, PROBE_S, SAMPLES, VIOLATORS, Forecast, SloGate

LIMIT_S = 5.0


class Counts:
    """Counts what the gate tells."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, bool, bool]] = Counter()
        self.probes: Counter[str] = Counter()

    def slo_outcome(self, slo: str, *, predicted_miss: bool, actual_miss: bool) -> None:
        self.outcomes[slo, predicted_miss, actual_miss] += 1

    def slo_probe(self, slo: str) -> None:
        self.probes[slo] += 1


def gate(*, may_refuse: bool = True, gap_s: float = 0.0, tpot_s: float = 0.0) -> tuple[SloGate, Counts]:
    counts = Counts()
    return SloGate(ttft_s=LIMIT_S, gap_s=gap_s, tpot_s=tpot_s, may_refuse=may_refuse, tally=counts), counts


@dataclass
class World:
    """One server with a queue, a gate before it, and a predictor that errs by a factor."""

    gate: SloGate
    rate: float
    service_s: float = 1.0
    now_s: float = 0.0
    free_s: float = 0.0
    running: list[tuple[float, int, Forecast]] = field(default_factory=list)
    refused: list[tuple[float, bool]] = field(default_factory=list)  # when, and whether it would have met its SLO
    told: list[tuple[Reason, float]] = field(default_factory=list)
    served: int = 0
    in_time: int = 0
    noise: float = 0.0  # of predictions: the standard deviation of their logarithm
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def run(self, seconds: float, error: float) -> None:
        """Have requests come for a while, with predictions that are `error` times the truth."""
        end_s = self.now_s + seconds
        while True:
            at_s = self.now_s + self.random.expovariate(self.rate)
            while self.running and self.running[0][0] <= at_s:
                first_s, _, forecast = heapq.heappop(self.running)
                forecast.tokens_came(first_s)
            if at_s > end_s:
                self.now_s = end_s
                return
            self.now_s = at_s
            queue_s = max(0.0, self.free_s - at_s)
            ttft_s = queue_s + self.service_s
            said = error * self.random.lognormvariate(0.0, self.noise) if self.noise else error
            prediction = Prediction(queue_s=queue_s * said, prefill_s=self.service_s * said)
            try:
                forecast = self.gate.admit(prediction, received_s=at_s, now_s=at_s)
            except Refused as refusal:
                self.told.append((refusal.reason, refusal.retry_after_s))
                self.refused.append((at_s, ttft_s <= LIMIT_S))
            else:
                self.served += 1
                self.in_time += ttft_s <= LIMIT_S
                self.free_s = at_s + ttft_s
                heapq.heappush(self.running, (self.free_s, self.served, forecast))

    def wrongly_refused(self, since_s: float = 0.0) -> list[float]:
        return [at_s for at_s, was_fine in self.refused if was_fine and at_s >= since_s]


def test_in_shadow_mode_nothing_is_refused_and_everything_compared() -> None:
    shadow, counts = gate(may_refuse=False)
    world = World(shadow, rate=1.5)
    world.run(300.0, error=1.0)
    assert world.refused == []
    assert counts.outcomes["ttft", True, True] > 100
    assert counts.outcomes["ttft", True, False] == counts.outcomes["ttft", False, True] == 0


def test_a_right_predictor_keeps_those_that_are_served_within_the_slo() -> None:
    gate_, counts = gate()
    world = World(gate_, rate=1.5)
    world.run(1000.0, error=1.0)
    assert gate_.judges["ttft"].is_active(world.now_s)
    assert world.wrongly_refused() == []
    assert len(world.refused) > 300
    assert {reason for reason, _ in world.told} == {Reason.SLO_TTFT}
    assert all(1.0 <= retry_after_s <= 60.0 for _, retry_after_s in world.told)
    # Probes and what came before the gate was active miss; the rest meets its objective.
    assert counts.outcomes["ttft", False, True] == 0
    assert counts.outcomes["ttft", True, True] <= 3 * VIOLATORS + counts.probes["ttft"]


@pytest.mark.parametrize("rate", [1.2, 1.5, 2.0, 3.0])
@pytest.mark.parametrize(("error", "noise"), [(1.0, 0.05), (1.0, 0.1), (1.0, 0.2), (1.0, 0.3), (0.7, 0.1), (1.4, 0.1)])
def test_under_overload_a_predictor_that_errs_keeps_nearly_all_that_can_be_served_in_time(
    rate: float, error: float, noise: float
) -> None:
    gate_, _ = gate()
    service_s = LIMIT_S / 15
    world = World(gate_, rate=rate / service_s, service_s=service_s, noise=noise)
    world.run(10 * LIMIT_S, error=error)  # until it has learned
    before = world.in_time
    world.run(60 * LIMIT_S, error=error)
    assert world.in_time - before >= 0.9 * 60 * LIMIT_S / service_s


def test_whoever_is_likely_to_miss_by_what_others_took_near_the_limit_is_refused() -> None:
    gate_, _ = gate()
    judge = gate_.judges["ttft"]
    for number in range(SAMPLES):  # one in twelve takes half as long again as was said, the others a tenth longer
        judge.learn(0.6 * LIMIT_S, 0.6 * LIMIT_S * (1.5 if number % 12 == 0 else 1.1), 0.0)
    assert judge.refuses_from_s == pytest.approx(LIMIT_S / 1.5)
    for _ in range(SAMPLES):  # those far from the limit say nothing of it
        judge.learn(0.1 * LIMIT_S, 0.4 * LIMIT_S, 0.0)
    assert judge.refuses_from_s == pytest.approx(LIMIT_S / 1.5)
    for number in range(SAMPLES):  # one in 64 is less than what may miss
        judge.learn(LIMIT_S, LIMIT_S * (3.0 if number == 7 else 1.0), 0.0)
    assert judge.refuses_from_s == pytest.approx(LIMIT_S)


def test_a_predictor_that_is_three_times_too_slow_never_gets_to_refuse_what_would_be_fine() -> None:
    for rate in (0.3, 0.7, 0.9):
        gate_, _ = gate()
        world = World(gate_, rate=rate)
        world.run(3000.0, error=3.0)
        assert world.refused == []


def test_under_overload_a_wrong_predictor_stays_in_shadow_although_all_that_it_calls_late_is_late() -> None:
    gate_, counts = gate()
    world = World(gate_, rate=1.5)
    world.run(500.0, error=3.0)
    assert counts.outcomes["ttft", True, True] > VIOLATORS
    assert world.refused == []


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8, 3.0, 20.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_predictor_that_turns_wrong_is_found_out_within_the_bound(rate: float, seed: int) -> None:
    gate_, _ = gate()
    world = World(gate_, rate=1.5, random=random.Random(seed))
    world.run(400.0, error=1.0)
    assert gate_.judges["ttft"].is_active(world.now_s)
    # From now on the server is faster by far, and the predictor, which does not know, calls everything late.
    world.free_s = world.now_s
    world.rate, world.service_s = rate, 0.01
    turned_s = world.now_s
    world.run(2000.0, error=600.0)
    wrong = world.wrongly_refused(turned_s)
    assert len(wrong) <= 3 * PROBE_EVERY + rate * LIMIT_S
    if rate >= 3.0:
        assert all(at_s <= turned_s + 3 * PROBE_S + LIMIT_S for at_s in wrong)
    windows: list[float] = []  # of `PROBE_S` each, in which it refused wrongly
    for at_s in wrong:
        if not windows or at_s > windows[-1] + PROBE_S:
            windows.append(at_s)
    assert len(windows) <= 4


def test_each_objective_has_a_judge_and_a_refusal_names_it() -> None:
    gate_, _ = gate(gap_s=1.0, tpot_s=0.1)
    prediction = Prediction(prefill_s=1.0, gap_s=0.5, tpot_s=0.3)
    now_s = 0.0
    for _ in range(VIOLATORS):
        now_s += 1.0
        forecast = gate_.admit(prediction, received_s=now_s, now_s=now_s)
        for at_s in (1.0, 1.5, 1.8):
            forecast.tokens_came(now_s + at_s)
        forecast.finished(3, now_s + 1.6)
    assert [judge.is_active(now_s) for judge in gate_.judges.values()] == [False, False, True]
    gate_.admit(prediction, received_s=now_s, now_s=now_s)  # the first probe
    with pytest.raises(Refused) as raised:
        gate_.admit(prediction, received_s=now_s, now_s=now_s)
    assert raised.value.reason is Reason.SLO_TPOT
    gate_.admit(Prediction(prefill_s=1.0, gap_s=0.5, tpot_s=0.05), received_s=now_s, now_s=now_s)
    assert not gate_.judges["tpot"].is_active(now_s + MEMORY_S + 2.0)


def test_who_gives_up_before_its_objective_says_nothing_and_after_it_is_a_miss() -> None:
    gate_, counts = gate()
    slow = Prediction(prefill_s=2 * LIMIT_S)
    gate_.admit(slow, received_s=0.0, now_s=0.0).given_up(LIMIT_S - 1)
    assert not counts.outcomes
    gate_.admit(slow, received_s=0.0, now_s=0.0).given_up(LIMIT_S + 1)
    assert counts.outcomes == Counter({("ttft", True, True): 1})


def test_of_those_that_it_would_refuse_every_so_many_th_passes_to_be_looked_at() -> None:
    gate_, counts = gate()
    late_s = 2 * LIMIT_S
    slow = Prediction(prefill_s=late_s)
    for _ in range(VIOLATORS):
        gate_.admit(slow, received_s=0.0, now_s=0.0).tokens_came(late_s)
    passed = []
    for _ in range(3 * PROBE_EVERY):
        try:
            gate_.admit(slow, received_s=late_s, now_s=late_s)
        except Refused:
            passed.append(False)
        else:
            passed.append(True)
    assert passed == [number % PROBE_EVERY == 0 for number in range(3 * PROBE_EVERY)]
    assert counts.probes == {"ttft": 3}
