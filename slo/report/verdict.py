"""What an experiment says, in plain words: no more than its figures bear."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagewire.slo.figures.comparison import Difference
from pagewire.slo.figures.experiment import COLOCATED, DECODE, PREFILL, Experiment, Series, Trial
from pagewire.slo.report.attainment import Curve, curves
from pagewire.slo.report.figure import percent
from pagewire.slo.sweeps.goodput import TARGETS, Goodput, goodput

TARGET = TARGETS[0]
AT = percent(TARGET, 0)
CACHED_ALIKE = 0.1  # of prompt tokens: by how much two runs may differ in what was cached, and nothing is said


def verdict(experiment: Experiment, compared: tuple[str, str, Sequence[Difference]] | None = None) -> list[str]:
    """Return sentences, the weightiest first; `compared` are the names of two runs and what differs."""
    said = []
    if not any(trial.summary.objectives.bounds_s for trial in experiment.trials):
        said.append("No objective was set: this tells how fast answers were, not whether that was fast enough.")
    found = curves(experiment)
    questions = experiment.questions()
    if len(questions) > 1:
        said.append(_asked(experiment, questions))
    said += _left_out(experiment)
    if found:
        for each in questions:
            asked = each.trials[0].asked
            said += _against_colocated([curve for curve in found if curve[0].trials[0].asked == asked])
        said += _carried(found)
    if compared is not None:
        said += [*_compared(*compared), *_cached(experiment, compared[0], compared[1])]
    if len(experiment.trials) <= 2:
        said += [_of_one(experiment.name_of(trial), trial) for trial in experiment.trials]
    elif not found:
        best = max(experiment.trials, key=lambda trial: trial.summary.all_attained.share)
        said.append(f"The most was attained by {_of_one(experiment.name_of(best), best)}")
    return said


def _asked(experiment: Experiment, questions: Sequence[Experiment]) -> str:
    told = dict.fromkeys(experiment.question_of(each.trials[0]) for each in questions)
    return (
        f"These runs were not all asked the same: {'; '.join(told)}. Each workload and SLO has curves of its own, and "
        "which cluster is better is told within one alone."
    )


def _left_out(experiment: Experiment) -> list[str]:
    closed = sum(trial.is_closed for trial in experiment.trials)
    if not closed or len(experiment.trials) < 2:
        return []
    return [
        f"No goodput is told of closed loops, which are asked at no rate: {closed} of {len(experiment.trials)} runs."
    ]


def _of_one(name: str, trial: Trial) -> str:
    attained, slo = trial.summary.all_attained, str(trial.summary.objectives)
    interval = attained.interval
    met = f"met {slo}" if slo else "were answered"
    against = []
    for target in TARGETS if slo else ():
        is_sure = not interval.low < target <= interval.high
        says = ("met" if attained.share >= target else "missed") if is_sure else "not to be told"
        against.append(f"{percent(target, 0)} is {says}")
    return (
        f"{name}: {percent(attained.share)} of {attained.total} requests {met} "
        f"(95 % sure: {percent(interval.low)} to {percent(interval.high)})"
        + (f"; {', '.join(against)}." if against else ".")
    )


def _carried(found: Sequence[Curve]) -> list[str]:
    ranked = sorted(found, key=lambda curve: -goodput(curve[1], TARGET).least_per_s)
    return [
        f"{series.name} carries {goodput(points, TARGET)} at {AT} attainment"
        + _a_pod(series, goodput(points, TARGET)) + "."
        for series, points in ranked
    ]  # fmt: skip


def _a_pod(series: Series, told: Goodput) -> str:
    return f", {told.least_per_s / series.num_pods:.3g}/s a pod" if series.num_pods and told.least_per_s else ""


def _against_colocated(found: Sequence[Curve]) -> list[str]:
    """Return whether disaggregation wins by goodput a pod, where both were tried."""
    apart = [curve for curve in found if PREFILL in curve[0].labels and DECODE in curve[0].labels]
    together = [curve for curve in found if COLOCATED in curve[0].labels]
    if not apart or not together:
        return []
    (split, split_points), (whole, whole_points) = _best(apart), _best(together)
    ours, theirs = goodput(split_points, TARGET), goodput(whole_points, TARGET)
    a, b = split.num_pods or 1, whole.num_pods or 1
    told = f"at {AT} attainment {split.name} carries {ours} on {a} pods, {whole.name} {theirs} on {b}"
    are_crossings = ours.is_crossing and theirs.is_crossing
    ratio = f", {ours.least_per_s / a / (theirs.least_per_s / b):.2f} times a pod" if are_crossings else ""
    if _low(ours) / a > _high(theirs) / b:
        return [f"Disaggregation wins here{ratio}: {told}."]
    if _high(ours) / a < _low(theirs) / b:
        return [f"Disaggregation loses here{ratio}: {told}."]
    if are_crossings:
        return [f"No difference between disaggregated and colocated can be told: {told}."]
    return [f"Whether disaggregation wins cannot be told from these rates: {told}."]


def _best(found: Sequence[Curve]) -> Curve:
    return max(found, key=lambda curve: goodput(curve[1], TARGET).least_per_s / (curve[0].num_pods or 1))


def _low(told: Goodput) -> float:
    """Return what it is at least, with its interval."""
    return told.highest_per_s if told.low_per_s is None else told.low_per_s


def _high(told: Goodput) -> float:
    """Return what it is at most."""
    return math.inf if told.high_per_s is None else told.high_per_s or told.lowest_per_s


def _compared(first: str, second: str, found: Sequence[Difference]) -> list[str]:
    apart = [each for each in found if each.is_told]
    if not apart:
        return [f"No difference between {first} and {second} can be told."]
    said = [
        f"{each.what} {'better' if (each.value > 0) == each.more_is_better else 'worse'} by {_amount(each)}"
        for each in apart
    ]
    rest = "" if len(apart) == len(found) else " Of the rest no difference can be told."
    return [f"{second} against {first}: {'; '.join(said)}.{rest}"]


def _cached(experiment: Experiment, first: str, second: str) -> list[str]:
    by_name = {experiment.name_of(trial): trial.summary.cached_share for trial in experiment.trials}
    one, other = by_name[first], by_name[second]
    if one is None or other is None or abs(other - one) <= CACHED_ALIKE:
        return []
    return [
        f"The server had {percent(one)} of {first}'s prompt tokens in its prefix cache and {percent(other)} of "
        f"{second}'s: that alone may be why they differ."
    ]


def _amount(each: Difference) -> str:
    unit = "points" if each.unit == "points" else "ms"
    ends = sorted((abs(each.low or 0.0), abs(each.high or 0.0)))
    return f"{abs(each.value):.1f} {unit} ({ends[0]:.1f} to {ends[1]:.1f})"
