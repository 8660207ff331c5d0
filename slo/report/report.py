"""A report of an experiment: its figures, as far as there is data for them, its verdict, and where they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagewire.slo.figures.comparison import compare
from pagewire.slo.figures.experiment import Experiment, Trial
from pagewire.slo.report.attainment import attainment
from pagewire.slo.report.breakdown import breakdown
from pagewire.slo.report.differences import differences
from pagewire.slo.report.distributions import distributions
from pagewire.slo.report.figure import Figure
from pagewire.slo.report.page import page
from pagewire.slo.report.ratios import ratios
from pagewire.slo.report.sheet import write
from pagewire.slo.report.shown import looked_into, shown
from pagewire.slo.report.trade_off import trade_off
from pagewire.slo.report.verdict import verdict
from pagewire.slo.report.worst import worst_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An experiment with what it says and shows."""

    experiment: Experiment
    verdict: Sequence[str]
    figures: Sequence[Figure]

    def html(self) -> str:
        """Return it as one page."""
        return page(self.experiment, self.verdict, self.figures)

    def write_figures(self, folder: Path) -> list[Path]:
        """Write every figure as SVG and PNG into a folder, which is made, and return the files."""
        folder.mkdir(parents=True, exist_ok=True)
        return [path for figure in self.figures for path in write(figure, folder)]


def report(experiment: Experiment, *, compared: tuple[str, str] | None = None, seed: int = 0) -> Report:
    """Return the report; `compared` are the names of two runs, the only two unless told. `seed` draws resamples.

    Raises ValueError where a name is no run's.
    """
    pair = _pair(experiment, compared)
    lines = shown(experiment)
    figures = [
        attainment(experiment), ratios(experiment), trade_off(experiment), distributions(experiment, lines),
        breakdown(experiment, lines),
    ]  # fmt: skip
    told = None
    if pair is not None:
        first, second = map(experiment.name_of, pair)
        found = compare(*pair, seed=seed)
        told = (first, second, found)
        figures.insert(0, differences(first, second, found, seed))
    into = looked_into(experiment)
    for place, trial in enumerate(into):
        slug = "worst" if len(into) == 1 else f"worst-{place + 1}"
        figures.append(worst_requests(trial, experiment.name_of(trial), slug=slug))
    return Report(
        experiment=experiment,
        verdict=verdict(experiment, told),
        figures=[figure for figure in figures if figure is not None],
    )


def _pair(experiment: Experiment, compared: tuple[str, str] | None) -> tuple[Trial, Trial] | None:
    if compared is None:
        return (experiment.trials[0], experiment.trials[1]) if len(experiment.trials) == 2 else None
    by_name = {experiment.name_of(trial): trial for trial in experiment.trials}
    for name in compared:
        if name not in by_name:
            raise ValueError(f"{name!r} is no run: there are {', '.join(map(repr, by_name))}")
    return by_name[compared[0]], by_name[compared[1]]
