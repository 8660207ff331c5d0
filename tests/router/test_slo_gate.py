"""The SLO gate on a made-up server with one queue: it refuses once its predictions prove right, and stops when not.

The server is a definition, not a model of ours: prompts are served one after another, each for a second, and a request
meets its objective when its turn comes in time. So it is known of each refused request whether it would have met it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from pagewire.core.clock import ManualClock
from pagewire.router.concurrency_limit import LATE as SOME
from pagewire.router.concurrency_limit import ROUND
from pagewire.router.prediction import Prediction
from pagewire.router.refusals import Reason, Refused
from pagewire.router.slo_gate import (
    BIAS,
    LEAST_NEAR,
    MEMORY_S,
    MOST_MARGIN,
    PROBE_EVERY,
    PROBE_S,
    READ_WITHIN,
    SAMPLES,
    VIOLATORS,
    Forecast,
    SloGate,
    SloJudge,
)

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
    gate_.admit(prediction, received_s=now_s, now_s=now_s, is_let_in=True)  # as others of its request are
    gate_.admit(Prediction(prefill_s=1.0, gap_s=0.5, tpot_s=0.05), received_s=now_s, now_s=now_s)
    assert not gate_.judges["tpot"].is_active(now_s + MEMORY_S + 2.0)


def taught(
    *, right: int = VIOLATORS, wrong: int = 0, predicted_s: float = 2 * LIMIT_S, actual_s: float = 2 * LIMIT_S
) -> SloJudge:
    """Return a judge that predicted so many misses, all at 0: those that were, and those that took far less."""
    judge = SloJudge(LIMIT_S)
    for number in range(right + wrong):
        judge.learn(predicted_s, actual_s if number < right else LIMIT_S / 2, 0.0)
    return judge


@pytest.mark.parametrize(
    ("right", "wrong", "is_active"),
    [
        (VIOLATORS - 1, 0, False),
        (VIOLATORS, 0, True),
        (9 * VIOLATORS // 10, VIOLATORS // 10, True),
        (9 * VIOLATORS // 10 - 1, VIOLATORS // 10 + 1, False),
    ],
)
def test_it_refuses_once_nine_of_ten_that_it_called_late_were_late(right: int, wrong: int, is_active: bool) -> None:
    assert taught(right=right, wrong=wrong).is_active(0.0) is is_active


@pytest.mark.parametrize(
    ("predicted", "actual", "is_right"),
    [
        (1.5, 1.0, True), (1.5, 0.75, True), (1.5, 0.7, False), (3.0, 1.0, False), (3.0, 1.1, True), (1.0, 1.0, False),
    ],
)  # fmt: skip
def test_whoever_was_in_time_was_rightly_called_late_unless_it_took_less_than_half_of_that(
    predicted: float, actual: float, is_right: bool
) -> None:
    judge = SloJudge(LIMIT_S)
    for _ in range(VIOLATORS):
        judge.learn(predicted * LIMIT_S, actual * LIMIT_S, 0.0)
        for _ in range(2):
            judge.learn(LIMIT_S / 100, LIMIT_S / 100, 0.0)  # most predictions are right
    assert judge.is_active(0.0) is is_right


@pytest.mark.parametrize(
    ("took", "is_active"),
    [(1.0, True), (1 / BIAS, True), (0.99 / BIAS, False), (MOST_MARGIN, True), (10 * MOST_MARGIN, True)],
)
def test_it_refuses_only_while_it_predicts_little_more_than_what_is(took: float, is_active: bool) -> None:
    judge = SloJudge(0.5)
    for _ in range(VIOLATORS):
        judge.learn(1.0, took, 0.0)
    assert judge.is_active(0.0) is is_active


def test_an_error_in_short_times_counts_as_one_in_long_times() -> None:
    for limit_s in (0.01, 10.0):
        judge = SloJudge(limit_s)
        for _ in range(VIOLATORS):
            judge.learn(5 * limit_s, 2.6 * limit_s, 0.0)
        assert not judge.is_active(0.0)


def test_what_nineteen_of_twenty_took_at_most_is_what_is_likely() -> None:
    judge = SloJudge(LIMIT_S)
    for took in (3.0, *[1.0] * 18, 2.0):
        judge.learn(LIMIT_S, took * LIMIT_S, 0.0)
    assert judge.refuses_from_s == LIMIT_S / 2


@pytest.mark.parametrize("took", [0.5, 1 / BIAS, 1.0, 2.0, MOST_MARGIN, 10.0])
def test_a_prediction_is_too_near_by_what_others_near_the_objective_took(took: float) -> None:
    judge = SloJudge(LIMIT_S)
    for _ in range(LEAST_NEAR - 1):
        judge.learn(LIMIT_S / 2, took * LIMIT_S / 2, 0.0)
        judge.learn(LIMIT_S / 100, LIMIT_S / 100, 0.0)  # far below it: says nothing
    assert judge.refuses_from_s == LIMIT_S
    judge.learn(LIMIT_S / 2, took * LIMIT_S / 2, 0.0)
    assert judge.refuses_from_s == pytest.approx(LIMIT_S / min(MOST_MARGIN, max(1 / BIAS, took)))


def test_the_oldest_of_what_it_goes_by_is_not_too_old() -> None:
    judge = SloJudge(LIMIT_S)
    for at_s in range(VIOLATORS):
        judge.learn(2 * LIMIT_S, 2 * LIMIT_S, float(at_s))
    assert judge.is_active(MEMORY_S)
    assert not judge.is_active(MEMORY_S + 0.1)


def test_a_probe_is_due_after_so_long_and_after_so_many() -> None:
    judge = SloJudge(LIMIT_S)
    assert judge.is_probe_due(0.0)
    judge.probed(0.0)
    assert [judge.is_probe_due(at_s) for at_s in (0.0, PROBE_S - 0.1, PROBE_S)] == [False, False, True]
    for number in range(1, PROBE_EVERY):
        assert not judge.is_probe_due(0.0)
        judge.refused()
        assert judge.is_probe_due(0.0) is (number == PROBE_EVERY - 1)


Arrivals = tuple[float, ...]  # when tokens came


@pytest.mark.parametrize(
    ("arrivals", "longest", "learned"),
    [
        ((8.0,), 1, [("ttft", False)]),
        ((8.0,), 5, [("ttft", False)]),  # all at once: nothing is known of the time between them
        ((8.0, 8.5), 1, [("ttft", False), ("gap", False)]),  # one token each of two answers
        ((8.0, 8.5), 2, [("ttft", False), ("gap", False), ("tpot", True)]),
        ((8.0, 9.5), 16, [("ttft", False), ("gap", True), ("tpot", False)]),
        ((10.0, 11.0, 19.0), 91, [("ttft", False), ("gap", False), ("tpot", False)]),  # each is just the objective
        ((10.5, 10.6, 20.0), 3, [("ttft", True), ("gap", False), ("tpot", True)]),
    ],
)
@pytest.mark.parametrize("predicted_miss", [False, True])
def test_what_became_of_a_request_is_told_by_objective(
    arrivals: Arrivals, longest: int, learned: list[tuple[str, bool]], predicted_miss: bool
) -> None:
    gate_, counts = gate(gap_s=1.0, tpot_s=0.1)
    prediction = Prediction(prefill_s=50.0, gap_s=50.0, tpot_s=50.0) if predicted_miss else Prediction()
    forecast = gate_.admit(prediction, received_s=5.0, now_s=5.0)
    for at_s in arrivals:
        forecast.tokens_came(at_s)
    forecast.finished(longest, arrivals[-1])
    forecast.given_up(50.0)  # after a token that says nothing
    assert counts.outcomes == Counter((slo, predicted_miss, is_miss) for slo, is_miss in learned)


def test_only_objectives_that_are_set_are_judged() -> None:
    counts = Counts()
    gate_ = SloGate(ttft_s=0.0, gap_s=0.5, tpot_s=0.0, may_refuse=True, tally=counts)
    assert list(gate_.judges) == ["gap"]
    forecast = gate_.admit(Prediction(prefill_s=50.0, tpot_s=50.0), received_s=0.0, now_s=0.0)
    for at_s in (100.0, 100.4, 100.8):
        forecast.tokens_came(at_s)
    forecast.finished(3, 100.8)
    gate_.admit(Prediction(), received_s=0.0, now_s=0.0).given_up(100.0)
    assert counts.outcomes == Counter({("gap", False, False): 1})


LATE = Prediction(queue_s=LIMIT_S, prefill_s=LIMIT_S, gap_s=1.0, tpot_s=1.0)


def ready(*, may_refuse: bool = True, came_s: float = 0.0) -> tuple[SloGate, Counts]:
    """Return a gate whose judges of TTFT and TPOT have learned, by requests of `came_s`, that `LATE` is right."""
    gate_, counts = gate(may_refuse=may_refuse, tpot_s=0.1)
    first_s = came_s + 2 * LIMIT_S
    for _ in range(VIOLATORS):
        forecast = gate_.admit(LATE, received_s=came_s, now_s=came_s)
        forecast.tokens_came(first_s)
        forecast.tokens_came(first_s + 1.0)
        forecast.finished(2, first_s + 1.0)
    return gate_, counts


def refusal(gate_: SloGate, prediction: Prediction, *, now_s: float) -> Refused:
    with pytest.raises(Refused) as raised:
        gate_.admit(prediction, received_s=now_s, now_s=now_s)
    return raised.value


@pytest.mark.parametrize("may_refuse", [False, True])
def test_it_says_of_each_objective_whether_it_refuses(may_refuse: bool) -> None:
    gate_, _ = ready(may_refuse=may_refuse)
    clock = ManualClock()
    assert {slo: gate_.is_active(slo, clock) for slo in gate_.judges} == {"ttft": may_refuse, "tpot": may_refuse}
    assert [fresh.is_active("ttft", clock) for fresh, _ in [gate()]] == [False]


def test_a_prediction_that_is_just_the_objective_is_no_miss() -> None:
    gate_, counts = ready()
    counts.outcomes.clear()
    just = Prediction(prefill_s=LIMIT_S)
    for _ in range(2):
        gate_.admit(just, received_s=0.0, now_s=0.0).tokens_came(LIMIT_S)
    assert counts.outcomes == Counter({("ttft", False, False): 2})
    assert not counts.probes


def test_who_would_miss_two_objectives_passes_when_both_want_to_know() -> None:
    gate_, counts = ready()
    gate_.admit(Prediction(tpot_s=1.0), received_s=0.0, now_s=0.0)  # a probe of TPOT alone
    assert counts.probes == {"tpot": 1}
    assert refusal(gate_, LATE, now_s=0.0).reason is Reason.SLO_TTFT  # the first of the two
    gate_.admit(Prediction(prefill_s=2 * LIMIT_S), received_s=0.0, now_s=0.0)
    assert counts.probes == {"tpot": 1, "ttft": 1}
    gate_.admit(LATE, received_s=PROBE_S, now_s=PROBE_S)
    assert counts.probes == {"tpot": 2, "ttft": 2}


@pytest.mark.parametrize(
    ("prediction", "retry_after_s"),
    [
        (Prediction(queue_s=20.0, prefill_s=1.0), 21.0 - LIMIT_S),  # when the queue will be short enough
        (Prediction(queue_s=3.0, prefill_s=20.0), 3.0),  # when it will be empty: its own work is no shorter later
        (Prediction(queue_s=20.0, tpot_s=1.0), 20.0 - LIMIT_S),
        (Prediction(queue_s=4.0, tpot_s=1.0), 1.0),  # nothing is known of when others end
    ],
)
def test_who_is_refused_is_told_when_the_queue_will_let_it_meet_its_objective(
    prediction: Prediction, retry_after_s: float
) -> None:
    gate_, _ = ready()
    gate_.admit(LATE, received_s=0.0, now_s=0.0)  # the probe of both
    assert refusal(gate_, prediction, now_s=0.0).retry_after_s == retry_after_s


def test_requests_that_are_given_up_teach_what_they_waited() -> None:
    gate_, counts = gate()
    slow = Prediction(prefill_s=2 * LIMIT_S)
    for _ in range(VIOLATORS):
        gate_.admit(slow, received_s=1000.0, now_s=1000.0).given_up(1000.0 + LIMIT_S)  # just in time
    assert not counts.outcomes
    for _ in range(VIOLATORS):
        gate_.admit(slow, received_s=1000.0, now_s=1000.0).given_up(1000.0 + 2 * LIMIT_S)
    assert gate_.judges["ttft"].is_active(1000.0 + 2 * LIMIT_S)
    assert not gate_.judges["ttft"].is_active(1000.0 + 2 * LIMIT_S + MEMORY_S + 1.0)


def test_callers_without_patience_do_not_prove_a_right_prediction_wrong() -> None:
    gate_, _ = gate()
    slow = Prediction(prefill_s=4 * LIMIT_S)
    for _ in range(VIOLATORS):
        gate_.admit(slow, received_s=1000.0, now_s=1000.0).given_up(1000.0 + 2 * LIMIT_S)
    judge = gate_.judges["ttft"]
    assert judge.is_active(1000.0 + 2 * LIMIT_S)
    assert judge.refuses_from_s == LIMIT_S


def test_a_margin_that_grew_in_a_bad_moment_is_given_up_when_it_is_over() -> None:
    gate_, _ = gate()
    judge = gate_.judges["ttft"]
    for _ in range(LEAST_NEAR):  # all was late at once
        judge.learn(0.05 * LIMIT_S, 1.2 * LIMIT_S, 0.0)
    assert judge.refuses_from_s == LIMIT_S / MOST_MARGIN
    refused, now_s = 0, 0.0
    for number in range(4000):
        now_s += 0.4
        took_s = (0.3 if number % 4 == 0 else 0.05) * LIMIT_S  # right, and in time
        try:
            forecast = gate_.admit(Prediction(prefill_s=took_s), received_s=now_s, now_s=now_s)
        except Refused:
            refused += 1
        else:
            forecast.tokens_came(now_s + took_s)
    assert judge.refuses_from_s == LIMIT_S
    assert refused <= 1000 * 0.6  # it took so long to fill the record with what passes as probes, and no longer


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


def test_whoever_is_let_in_tells_the_limit_how_long_it_was_in_and_in_shadow_mode_there_is_none() -> None:
    for may_refuse in (True, False):
        gate_, _ = gate(may_refuse=may_refuse, tpot_s=0.1)
        for number in range(3):
            place = gate_.enter(100.0)
            forecast = gate_.admit(LATE, received_s=99.0, now_s=100.0, place=place)
            # A quarter of the objective is for what came before, whether it took that long or not.
            first_s = 100.0 + (1 - READ_WITHIN) * LIMIT_S * (1.0 if number == 0 else 1.001)
            gate_.places.serve(place, first_s)
            forecast.tokens_came(first_s)
            gate_.places.leave(place, 110.0)
        assert {limit.most for limit in gate_.places.limits.values()} == {math.inf}
        place = gate_.enter(200.0)
        forecast = gate_.admit(LATE, received_s=200.0, now_s=200.0, place=place)
        gate_.places.serve(place, 200.1)
        forecast.tokens_came(200.1)
        forecast.tokens_came(200.2)
        forecast.finished(11, 202.0)  # 0.19 s for each token after the first
        assert (gate_.places.inside.most < math.inf) == may_refuse
        assert gate_.places.waiting.most == math.inf


def test_it_is_pressed_while_some_of_the_latest_were_late_or_refused() -> None:
    clock = ManualClock(0.0)
    gate_, _ = gate()
    for late in range(SOME):
        assert not gate_.is_pressed(clock)
        gate_.admit(Prediction(), received_s=0.0, now_s=0.0).tokens_came(LIMIT_S + 1e-6)
        gate_.admit(Prediction(), received_s=0.0, now_s=0.0).tokens_came(LIMIT_S)
        assert gate_.is_pressed(clock) == (late + 1 == SOME)
    for _ in range(ROUND):
        gate_.admit(Prediction(), received_s=0.0, now_s=0.0).tokens_came(LIMIT_S)
    assert not gate_.is_pressed(clock)
    gate_.places.inside.most = 1
    gate_.enter(0.0)
    for _ in range(SOME):
        assert not gate_.is_pressed(clock)
        with pytest.raises(Refused):
            gate_.enter(0.0)
    assert gate_.is_pressed(clock)
    for kept in (
        gate(may_refuse=False)[0],
        SloGate(ttft_s=0.0, gap_s=1.0, tpot_s=0.0, may_refuse=True, tally=Counts()),
    ):
        for _ in range(ROUND):
            kept.admit(Prediction(), received_s=0.0, now_s=0.0).tokens_came(2 * LIMIT_S)
        assert not kept.is_pressed(clock)


def test_who_is_refused_by_a_prediction_counts_as_pressing() -> None:
    clock = ManualClock(0.0)
    gate_, _ = gate(gap_s=1.0)
    gate_.judges["ttft"] = taught()
    gate_.judges["ttft"].probed(0.0)
    for _ in range(SOME):
        with pytest.raises(Refused):
            gate_.admit(LATE, received_s=0.0, now_s=0.0)
    assert sum(gate_.recent) == SOME
    assert gate_.is_pressed(clock)


def test_it_is_pressed_while_its_judge_refuses_and_one_without_a_ttft_never() -> None:
    clock = ManualClock(0.0)
    gate_, _ = gate()
    gate_.judges["ttft"] = taught()
    assert gate_.is_pressed(clock)
    other = SloGate(ttft_s=0.0, gap_s=1.0, tpot_s=0.0, may_refuse=True, tally=Counts())
    for at_s in range(ROUND):
        other.enter(float(at_s))
    assert {limit.most for limit in other.places.limits.values()} == {math.inf}
    assert not other.is_pressed(clock)


@pytest.mark.parametrize(
    ("predicted", "actual", "counts"),
    [(0.5, 0.2, True), (0.4, 0.2, False), (0.4, 0.49, False), (0.1, 0.5, True), (0.1, 0.6, True)],
)
def test_who_took_half_of_the_limit_or_was_to_take_it_is_near_it(predicted: float, actual: float, counts: bool) -> None:
    judge = SloJudge(LIMIT_S)
    for _ in range(LEAST_NEAR):
        judge.learn(predicted * LIMIT_S, actual * LIMIT_S, 0.0)
    assert (judge.refuses_from_s != LIMIT_S) == counts


def test_without_a_place_both_who_asks_and_who_enters_are_refused_and_noted() -> None:
    found, _ = gate()
    found.check(0.0)
    found.places.waiting.most = 0
    for ask in (found.check, found.enter):
        with pytest.raises(Refused) as raised:
            ask(0.0)
        assert raised.value.reason is Reason.SLO_CONCURRENCY
    assert list(found.recent) == [True, True]


@pytest.mark.parametrize(("slo", "which"), [("ttft", "waiting"), ("gap", "inside"), ("tpot", "inside")])
def test_once_a_limit_holds_the_crowd_no_margin_above_1_is_kept(slo: str, which: str) -> None:
    found, _ = gate(gap_s=1.0, tpot_s=1.0)
    judge = found.judges[slo]
    for _ in range(SAMPLES):
        judge.learn(judge.limit_s, 1.25 * judge.limit_s, 0.0)
    assert judge.refuses_from_s == pytest.approx(judge.limit_s / 1.25)
    for name, limit in found.places.limits.items():
        limit.most = 100.0 if name == which else math.inf
    assert judge.refuses_from_s == judge.limit_s
    for _ in range(SAMPLES):
        judge.learn(judge.limit_s, 0.8 * judge.limit_s, 0.0)  # all come sooner than predicted: one below 1 is
    assert judge.refuses_from_s == pytest.approx(judge.limit_s / 0.8)
    for name, limit in found.places.limits.items():
        limit.most = math.inf if name == which else 100.0
    for _ in range(SAMPLES):
        judge.learn(judge.limit_s, 1.25 * judge.limit_s, 0.0)
    assert judge.refuses_from_s == pytest.approx(judge.limit_s / 1.25), "the other limit is of another crowd"


def test_who_was_in_time_cuts_nothing_however_late_it_is() -> None:
    found, _ = gate(tpot_s=0.1)
    for _ in range(ROUND):
        place = found.enter(1e3)
        forecast = found.admit(Prediction(), received_s=1e3, now_s=1e3, place=place)
        forecast.tokens_came(1e3 + 0.1)
        forecast.tokens_came(1e3 + 0.1)
        forecast.finished(11, 1e3 + 0.6)
    assert {limit.most for limit in found.places.limits.values()} == {math.inf}
