"""Which runs of many are drawn where each is a line of its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.slo.experiment import Experiment, Trial
from pagewire.slo.report.style import MOST


def shown(experiment: Experiment) -> list[Trial]:
    """Return at most MOST trials: all where they fit, else one of each series, at the highest rate that most share.

    Of one series, those at rates evenly apart.
    """
    trials = list(experiment.trials)
    if len(trials) <= MOST:
        return trials
    series = experiment.series()
    if len(series) == 1:
        return _apart(series[0].trials)
    rates = [{trial.rate_per_s for trial in each.trials} for each in series]
    rate = max({rate for each in rates for rate in each}, key=lambda rate: (sum(rate in each for each in rates), rate))
    return _apart([trial for each in series for trial in each.trials if trial.rate_per_s == rate])


def _apart(trials: Sequence[Trial]) -> list[Trial]:
    if len(trials) <= MOST:
        return list(trials)
    return [trials[place * (len(trials) - 1) // (MOST - 1)] for place in range(MOST)]


def looked_into(experiment: Experiment) -> list[Trial]:
    """Return the trials whose worst requests are drawn: one or two are all, of more the one that attained least."""
    if len(experiment.trials) <= 2:
        return list(experiment.trials)
    return [min(experiment.trials, key=lambda trial: trial.summary.all_attained.share)]
