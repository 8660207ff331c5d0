"""Which runs of many are drawn where each is a line of its own. Pure."""

from __future__ import annotations

from pagewire.slo.figures.experiment import Experiment, Trial
from pagewire.slo.report.figure import evenly
from pagewire.slo.report.style import MOST


def shown(experiment: Experiment) -> list[Trial]:
    """Return at most MOST trials: all where they fit, else one of each series, at the highest rate that most share.

    Of one series, those at rates evenly apart.
    """
    if len(experiment.trials) <= MOST:
        return list(experiment.trials)
    series = experiment.series()
    if len(series) == 1:
        return list(evenly(series[0].trials, MOST))
    rates = [{trial.rate_per_s for trial in each.trials} for each in series]
    rate = max({rate for each in rates for rate in each}, key=lambda rate: (sum(rate in each for each in rates), rate))
    return list(evenly([trial for each in series for trial in each.trials if trial.rate_per_s == rate], MOST))


def looked_into(experiment: Experiment) -> list[Trial]:
    """Return the trials whose worst requests are drawn: one or two are all, of more the one that attained least."""
    if len(experiment.trials) <= 2:
        return list(experiment.trials)
    return [min(experiment.trials, key=lambda trial: trial.summary.all_attained.share)]


def of_alone(experiment: Experiment, question: Experiment) -> list[str]:
    """Return the note that a picture of one of `experiment.questions()` has, none where that is all there is."""
    return [] if question is experiment else [f"Of these runs alone: {experiment.question_of(question.trials[0])}."]
