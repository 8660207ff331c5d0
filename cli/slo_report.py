"""`pagewire slo report`: runs that were recorded, read and written as one page."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from pagewire.cli import out_file
from pagewire.cli.progress import say
from pagewire.slo.experiment_files import read_experiment
from pagewire.slo.objectives import Objectives


def execute(
    sources: Sequence[Path], *, output: Path, figures: Path | None, title: str, objectives: Objectives | None,
    compared: tuple[str, str] | None, seed: int,
) -> None:  # fmt: skip
    """Print the verdict, and write the page and what was asked for. Raises OSError and ValueError."""
    out_file.try_out(output)
    logging.getLogger("matplotlib").setLevel(
        logging.ERROR
    )  # before it comes in: where it may keep caches is no concern
    from pagewire.slo.report.report import report

    made = report(read_experiment(sources, title=title, objectives=objectives), compared=compared, seed=seed)
    output.write_text(made.html(), encoding="utf-8")
    if figures is not None:
        made.write_figures(figures)
    print("\n".join(made.verdict))
    say(f"pagewire: {len(made.figures)} figures in {output}")
