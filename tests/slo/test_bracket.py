"""Closing in on a rate, against made-up curves whose crossing is known, with and without chance in the way."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.slo.figures.summary import Attainment
from pagewire.slo.sweeps.bracket import Bracketing, Evidence, Listed, Search, Verdict, crossing

TARGETS = (0.9, 0.95, 0.99)
LOWEST, HIGHEST = 0.1, 500.0
MANY = 100_000  # requests of a probe that chance hardly blurs


def bracketing(**settings: object) -> Bracketing:
    told = {"targets": TARGETS, "first": 1.0, "lowest": LOWEST, "highest": HIGHEST, "precision": 0.1, "repeats": 2}
    return Bracketing(**{**told, **settings})  # type: ignore[arg-type]


def curve(crossing_rate: float, steepness: float) -> Callable[[float], float]:
    """Return an attainment that falls with the rate, and is 0.95 at `crossing_rate`."""
    return lambda rate: 1 / (1 + (0.05 / 0.95) * (rate / crossing_rate) ** steepness)


def rate_at(crossing_rate: float, steepness: float, target: float) -> float:
    """Return the rate at which that curve is `target`."""
    return float(crossing_rate * ((1 / target - 1) / (0.05 / 0.95)) ** (1 / steepness))


def search(
    asked: Search, probe: Callable[[float], Attainment], at_most: int = 1000
) -> tuple[Evidence, list[tuple[float, Verdict]]]:
    """Return the evidence of a whole search, and each rate with what was known of it for 0.95 when it was asked for."""
    evidence, asked_for = Evidence(), []
    while (rate := asked.next_rate(evidence)) is not None:
        known = evidence.verdict(rate, 0.95) if evidence.count(rate) else Verdict.UNRESOLVED
        asked_for.append((rate, known))
        evidence.tell(rate, probe(rate))
        assert len(asked_for) <= at_most
    return evidence, asked_for


def exactly(share_at: Callable[[float], float], total: int = MANY) -> Callable[[float], Attainment]:
    return lambda rate: Attainment(good=round(total * share_at(rate)), total=total)


def by_chance(share_at: Callable[[float], float], total: int, seed: int) -> Callable[[float], Attainment]:
    draw = random.Random(seed)

    def probe(rate: float) -> Attainment:
        share = share_at(rate)
        return Attainment(good=sum(draw.random() < share for _ in range(total)), total=total)

    return probe


crossings = st.floats(LOWEST * 4, HIGHEST / 4)
steep = st.floats(2.0, 12.0)


@given(crossings, steep, st.floats(LOWEST, HIGHEST), st.floats(0.02, 0.5))
@settings(deadline=None)
def test_without_chance_each_target_is_bracketed_within_the_precision(
    crossing_rate: float, steepness: float, first: float, precision: float
) -> None:
    evidence, _ = search(bracketing(first=first, precision=precision), exactly(curve(crossing_rate, steepness), 10**9))
    for target in TARGETS:
        at, truth = crossing(evidence, target), rate_at(crossing_rate, steepness, target)
        if not LOWEST < truth < HIGHEST:
            continue
        assert at.met is not None
        assert at.missed is not None
        assert at.met <= truth * (1 + 1e-6)
        assert at.missed >= truth * (1 - 1e-6)
        assert at.missed <= at.met * (1 + precision)


@given(crossings, steep, st.integers(5, 400), st.integers(1, 4), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_with_chance_it_ends_and_asks_again_only_where_that_may_help(
    crossing_rate: float, steepness: float, total: int, repeats: int, seed: int
) -> None:
    asked = bracketing(repeats=repeats, targets=(0.95,))
    evidence, asked_for = search(asked, by_chance(curve(crossing_rate, steepness), total, seed))
    rates = [rate for rate, _ in asked_for]
    assert all(LOWEST <= rate <= HIGHEST for rate in rates)
    assert all(known is Verdict.UNRESOLVED for _, known in asked_for), "what was resolved was probed again"
    assert max(map(rates.count, rates)) <= repeats
    assert len({*rates}) <= 4 + math.ceil(math.log2(HIGHEST / LOWEST)) + 8 * repeats
    at = crossing(evidence, 0.95)
    if at.met is not None and at.missed is not None:
        assert at.met < at.missed <= at.met * 1.1 * (1 + 1e-9)
    assert at.met is not None or at.missed == LOWEST
    assert at.missed is not None or at.met == HIGHEST
    for end in (at.met, at.missed):
        is_blurred = end is not None and evidence.verdict(end, 0.95) is Verdict.UNRESOLVED
        assert not is_blurred or evidence.count(end or 0) == repeats
        assert not (is_blurred and at.is_resolved)


@given(crossings, steep, st.integers(20, 400), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_where_every_interval_holds_the_truth_the_sure_rates_bracket_it(
    crossing_rate: float, steepness: float, total: int, seed: int
) -> None:
    share_at = curve(crossing_rate, steepness)
    evidence, _ = search(bracketing(), by_chance(share_at, total, seed))
    intervals = {rate: evidence.attained(rate).interval for rate in evidence.rates}
    if not all(interval.low <= share_at(rate) <= interval.high for rate, interval in intervals.items()):
        return
    for target in TARGETS:
        at, truth = crossing(evidence, target), rate_at(crossing_rate, steepness, target)
        assert at.sure_met is None or at.sure_met <= truth * (1 + 1e-9)
        assert at.sure_missed is None or at.sure_missed >= truth * (1 - 1e-9)
        if at.is_resolved:
            assert (at.met, at.missed) == (at.sure_met, at.sure_missed)


@given(crossings, steep, st.integers(20, 200), st.integers(0, 2**32), st.data())
@settings(max_examples=50, deadline=None)
def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(
    crossing_rate: float, steepness: float, total: int, seed: int, data: st.DataObject
) -> None:
    told: list[tuple[float, Attainment]] = []
    probe = by_chance(curve(crossing_rate, steepness), total, seed)

    def noted(rate: float) -> Attainment:
        told.append((rate, probe(rate)))
        return told[-1][1]

    whole, _ = search(bracketing(), noted)
    again = Evidence()
    before = data.draw(st.permutations(told[: data.draw(st.integers(0, len(told)))]))
    for rate, attained in before:  # files come in any order
        again.tell(rate, attained)
    rest = iter(told[len(before) :])
    while (next_rate := bracketing().next_rate(again)) is not None:
        expected, attained = next(rest)
        assert next_rate == expected
        again.tell(expected, attained)
    assert next(rest, None) is None
    assert [crossing(again, target) for target in TARGETS] == [crossing(whole, target) for target in TARGETS]


def test_the_way_of_a_search_by_hand() -> None:
    evidence, asked_for = search(
        bracketing(targets=(0.95,), precision=0.25), exactly(lambda rate: 1.0 if rate < 5.2 else 0.0)
    )
    assert [rate for rate, _ in asked_for] == [1, 2, 4, 8, 5.657, 4.757]
    assert str(crossing(evidence, 0.95)) == "4.757/s"
    evidence, asked_for = search(
        bracketing(targets=(0.95,), precision=0.5), exactly(lambda rate: 1.0 if rate < 0.3 else 0.0)
    )
    assert [rate for rate, _ in asked_for] == [1, 0.5, 0.25, 0.3536]
    assert str(crossing(evidence, 0.95)) == "0.25/s"


def test_targets_share_their_probes() -> None:
    alone = sum(len(search(bracketing(targets=(each,)), exactly(curve(7, 4)))[1]) for each in TARGETS)
    together = len(search(bracketing(), exactly(curve(7, 4)))[1])
    assert together < alone - 2 * len(TARGETS)


@pytest.mark.parametrize(("share", "told"), [(1.0, "at least 500/s"), (0.0, "below 0.1/s")])
def test_beyond_its_ends_there_is_a_bound_and_no_figure(share: float, told: str) -> None:
    evidence, asked_for = search(bracketing(), exactly(lambda rate: share))
    assert str(crossing(evidence, 0.95)) == told
    assert len(asked_for) <= 15


def test_too_few_requests_are_told_as_unresolved() -> None:
    evidence, asked_for = search(bracketing(targets=(0.95,)), exactly(curve(7, 4), total=20))
    at = crossing(evidence, 0.95)
    assert not at.is_resolved
    assert str(at) == "unresolved: any rate"
    assert [rate for rate, _ in asked_for].count(at.met or 0) == 2


def test_what_no_probe_is_sure_of_has_no_end() -> None:
    evidence = Evidence()
    evidence.tell(1.0, Attainment(good=9, total=9))
    assert str(crossing(evidence, 0.9)) == "unresolved: any rate"
    evidence.tell(0.5, Attainment(good=400, total=400))
    assert str(crossing(evidence, 0.9)) == "unresolved: 0.5/s or more"


def test_repeats_are_pooled_and_resolve() -> None:
    evidence = Evidence()
    for _ in range(4):
        evidence.tell(2.0, Attainment(good=99, total=100))
    assert evidence.attained(2.0) == Attainment(good=396, total=400)
    assert Evidence().count(2.0) == 0
    once = Evidence()
    once.tell(2.0, Attainment(good=99, total=100))
    assert (once.verdict(2.0, 0.95), evidence.verdict(2.0, 0.95)) == (Verdict.UNRESOLVED, Verdict.MET)


def test_a_curve_that_rises_is_told_as_unresolved() -> None:
    evidence = Evidence()
    evidence.tell(1.0, Attainment(good=0, total=1000))
    evidence.tell(2.0, Attainment(good=1000, total=1000))
    at = crossing(evidence, 0.95)
    assert (at.met, at.missed, at.is_resolved) == (None, 1.0, False)


def test_a_surely_met_rate_outweighs_chance_below_it() -> None:
    evidence = Evidence()
    evidence.tell(1.0, Attainment(good=94, total=100))  # below 95 %, by chance
    evidence.tell(2.0, Attainment(good=1000, total=1000))
    evidence.tell(2.1, Attainment(good=0, total=1000))
    assert str(crossing(evidence, 0.95)) == "2/s"


def test_an_interval_that_just_reaches_a_target_meets_it_and_one_just_below_it_does_not() -> None:
    evidence = Evidence()
    evidence.tell(1.0, Attainment(good=90, total=100))
    low, high = evidence.attained(1.0).interval.low, evidence.attained(1.0).interval.high
    said = [evidence.verdict(1.0, each) for each in (low, math.nextafter(low, 1), high, math.nextafter(high, 1))]
    assert said == [Verdict.MET, Verdict.UNRESOLVED, Verdict.UNRESOLVED, Verdict.MISSED]


def test_a_share_that_is_just_the_target_met_it() -> None:
    evidence = Evidence()
    evidence.tell(1.0, Attainment(good=90, total=100))
    at = crossing(evidence, 0.9)
    assert (at.met, at.missed, at.sure_met, at.sure_missed, at.is_resolved) == (1.0, None, None, None, False)
    assert str(crossing(Evidence(), 0.9)) == "nothing was probed"
    assert not crossing(Evidence(), 0.9).is_resolved


def told(*probes: tuple[float, int]) -> Evidence:
    """Return evidence of probes of a thousand requests."""
    evidence = Evidence()
    for rate, good in probes:
        evidence.tell(rate, Attainment(good=good, total=1000))
    return evidence


@pytest.mark.parametrize(
    ("probes", "ends", "said"),
    [
        ([(1.0, 1000)], (1.0, None, 1.0, None), "at least 1/s"),
        ([(1.0, 0)], (None, 1.0, None, 1.0), "below 1/s"),
        ([(1.0, 1000), (2.0, 0)], (1.0, 2.0, 1.0, 2.0), "1/s"),
        ([(1.0, 1000), (2.0, 905), (4.0, 0)], (2.0, 4.0, 1.0, 4.0), "unresolved: 1 to 4/s"),
        ([(1.0, 1000), (2.0, 895), (4.0, 0)], (1.0, 2.0, 1.0, 4.0), "unresolved: 1 to 4/s"),
        ([(1.0, 895), (2.0, 0)], (None, 1.0, None, 2.0), "unresolved: 0 to 2/s"),
        ([(1.0, 1000), (2.0, 905)], (2.0, None, 1.0, None), "unresolved: 1/s or more"),
        ([(1.0, 905), (2.0, 895)], (1.0, 2.0, None, None), "unresolved: any rate"),
        ([(1.0, 1000), (2.0, 0), (4.0, 1000)], (1.0, 2.0, 1.0, 2.0), "unresolved: 1 to 2/s"),
    ],
)
def test_what_evidence_says_of_a_target(
    probes: list[tuple[float, int]], ends: tuple[float | None, ...], said: str
) -> None:
    at = crossing(told(*probes), 0.9)
    assert (at.target, at.met, at.missed, at.sure_met, at.sure_missed) == (0.9, *ends)
    assert (str(at), at.is_resolved) == (said, not said.startswith("unresolved"))


@pytest.mark.parametrize(
    ("probes", "rate"),
    [
        ([], 3.0),  # the first
        ([(3.0, 1000)], 6.0),
        ([(3.0, 0)], 1.5),
        ([(7.0, 1000)], 10.0),  # no more than the highest
        ([(1.6, 0)], 1.0),  # no less than the lowest
        ([(10.0, 1000)], None),
        ([(1.0, 0)], None),
        ([(2.0, 1000), (8.0, 0)], 4.0),  # so many times the one as times less than the other
        ([(2.0, 1000), (3.0, 0)], 2.449),  # in four digits
        ([(2.0, 1000), (2.5, 0)], None),  # within a quarter
        ([(2.0, 1000), (2.50001, 0)], 2.236),
        ([(2.0, 905), (2.5, 0)], 2.0),  # of the two that bracket it the first that is not sure
        ([(2.0, 1000), (2.5, 895)], 2.5),
        ([(10.0, 905)], 10.0),
        ([(2.0, 905), (2.0, 905), (2.5, 0)], None),  # twice is enough
    ],
)
def test_the_next_rate_of_a_search(probes: list[tuple[float, int]], rate: float | None) -> None:
    asked = Bracketing(targets=(0.9,), first=3.0, lowest=1.0, highest=10.0, precision=0.25, repeats=2)
    assert asked.next_rate(told(*probes)) == rate


def test_a_search_goes_on_with_the_next_target_once_one_is_closed_in_on() -> None:
    asked = Bracketing(targets=(0.9, 0.5), first=3.0, lowest=1.0, highest=10.0, precision=0.25, repeats=2)
    assert asked.next_rate(told((2.0, 1000), (2.5, 700))) == 5.0
    assert asked.next_rate(told((2.0, 1000), (2.5, 700), (2.75, 0))) is None


def test_a_search_of_the_narrowest_bounds_is_one() -> None:
    asked = Bracketing(targets=(0.001, 0.999), first=0.5, lowest=0.5, highest=0.5, precision=0.01, repeats=1)
    assert asked.next_rate(Evidence()) == 0.5
    assert asked.next_rate(told((0.5, 1000))) is None
    listed = Listed(targets=(0.9,), rates=(0.5,), repeats=1)
    assert (listed.next_rate(Evidence()), listed.next_rate(told((0.5, 900)))) == (0.5, None)


@pytest.mark.parametrize("targets", [(0.95,), (0.5, 0.95)])
def test_listed_rates_are_probed_in_their_order_and_again_while_one_target_is_unresolved(
    targets: tuple[float, ...],
) -> None:
    listed = Listed(targets=targets, rates=(4.0, 1.0, 2.0), repeats=3)
    _, asked_for = search(listed, exactly(lambda rate: 0.95 if rate == 1.0 else 0.0))
    assert [rate for rate, _ in asked_for] == [4.0, 1.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": ()}, "there are none"),
        ({"targets": (0.9, 1.0)}, "between 0 and 1"),
        ({"targets": (0.0,)}, "between 0 and 1"),
        ({"targets": (-0.5,)}, "between 0 and 1"),
        ({"targets": (1.5,)}, "between 0 and 1"),
        ({"lowest": 0.0}, "not between"),
        ({"lowest": -0.5}, "not between"),
        ({"first": 501.0}, "not between"),
        ({"precision": 0.0099}, "precision"),
        ({"first": 0.05}, "not between"),
        ({"precision": 0.0}, "precision"),
        ({"precision": math.nan}, "precision"),
        ({"repeats": 0}, "none"),
    ],
)
def test_what_would_not_end_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bracketing(**settings)


@pytest.mark.parametrize("rates", [(), (1.0, 0.0), (-0.5,)])
def test_rates_that_are_none_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Listed(targets=(0.9,), rates=rates, repeats=1)
    with pytest.raises(ValueError, match="probes at a rate are none"):
        Listed(targets=(0.9,), rates=(1.0,), repeats=0)
