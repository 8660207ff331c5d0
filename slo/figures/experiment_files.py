"""Experiments on disk: what `pagewire slo run` wrote, or a folder whose experiment.json names such runs.

    {"title": "...", "command": "...", "seed": 0, "runs": [
      {"labels": {"rate": 2.0, "prefill": 1, "decode": 2}, "summary": "000/run.json", "records": "000/run.jsonl"}]}

Paths are relative to the folder; without "records", they lie beside the summary under its name. A run may have a
"name". What else stands beside "runs" is told with the report. A summary by itself has the "labels" that it says, with
the rate of its workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pagewire.core.document_files import read_object
from pagewire.core.documents import MAX_WHOLE, real
from pagewire.slo.figures.experiment import CLOSED, LOOP, OPEN, RATE, Experiment, Label, Trial, trial
from pagewire.slo.figures.objectives import MEASURES, Objectives
from pagewire.slo.figures.record_files import read_records
from pagewire.slo.figures.summary import Window
from pagewire.slo.workloads.workload_config import WorkloadConfig

MANIFEST = "experiment.json"
RECORDS = (".jsonl", ".parquet")
WHOM = ("url", "model")
HOW_MUCH = ("rate", "concurrency", "requests", "duration_s", "warmup_s", "seed")  # more of a workload is no other one


def read_experiment(sources: Sequence[Path], *, title: str = "", objectives: Objectives | None = None) -> Experiment:
    """Return the runs of `sources`: folders with a manifest, or summaries (--json) with their records beside them.

    `objectives` judge every run, its own unless given. Raises OSError, and ValueError naming the file that is wrong.
    """
    trials: list[Trial] = []
    about: dict[str, Any] = {}
    for source in sources:
        if source.is_dir():
            told = read_object(source / MANIFEST)
            runs = told.pop("runs", None)
            if not isinstance(runs, list):
                raise ValueError(f'{source / MANIFEST}: "runs" is no list')
            trials += [_listed(source, place, entry, objectives) for place, entry in enumerate(runs)]
            title = title or str(told.pop("title", ""))
            about |= told
        else:
            trials.append(_read(source, None, None, source.stem if len(sources) > 1 else "", objectives))
    if not trials:
        raise ValueError(f"{', '.join(map(str, sources))}: no run")
    return Experiment(title=title or "An SLO experiment", trials=tuple(trials), about=about)


def _listed(folder: Path, place: int, entry: Any, objectives: Objectives | None) -> Trial:
    try:
        labels = _labels(entry["labels"])
        summary, name = folder / entry["summary"], str(entry.get("name", ""))
        records = folder / entry["records"] if "records" in entry else None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / MANIFEST}: run {place} is not as it should be: {error!r}") from error
    return _read(summary, records, labels, name, objectives)


def _labels(told: Any) -> dict[str, Label]:
    if RATE in told:
        real(told, RATE)
    return {str(name): _label(value) for name, value in told.items()}


def _label(value: Any) -> Label:
    if isinstance(value, str | float):
        return value
    return value if type(value) is int and abs(value) <= MAX_WHOLE else str(value)


def _read(
    summary: Path, records: Path | None, labels: Mapping[str, Label] | None, name: str, objectives: Objectives | None
) -> Trial:
    told = read_object(summary)
    found = records or next((path for end in RECORDS if (path := summary.with_suffix(end)).is_file()), None)
    if found is None:
        raise ValueError(f"{summary}: no records beside it ({summary.stem}.jsonl or .parquet): run with --records")
    try:
        window = Window(**told["window"])
        bounds_ms = told["slo_ms"]
        own = Objectives({each: real(bounds_ms, each) / 1e3 for each in bounds_ms})
        if unknown := set(bounds_ms) - set(MEASURES):
            raise ValueError(f"{summary}: {sorted(unknown)[0]!r} is no objective: known are {', '.join(MEASURES)}")
        workload = told.get("workload") or {}
        rate = real(workload, RATE) if workload.get(RATE) else None
        own_labels = _labels(told.get("labels") or {})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{summary} is no summary of a run: {error!r}") from error
    try:
        rows = read_records(found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{found} has no records of a run: {error}") from error
    if labels is None:  # nobody says what tells it from others: then it is of whom it was asked
        whom = {each: str(told[each]) for each in WHOM if told.get(each)}
        labels = {**whom, **own_labels, RATE: rate} if rate else {**whom, **own_labels}
    return trial(rows, window, objectives or own, labels=labels, about=told, name=name, workload=kind_of(workload))


def kind_of(workload: Mapping[str, Any]) -> dict[str, str]:
    """Return what makes a summary's workload another one; what it does not name is as it is by default.

    A sweep's settings stand beside those of its workload, and are none of them.
    """
    if not workload:
        return {}
    known = {name: value for name, value in WorkloadConfig().as_json().items() if name not in HOW_MUCH}
    told = {name: str(workload.get(name, value)) for name, value in known.items()}
    return {**told, LOOP: CLOSED if workload.get("concurrency") else OPEN}
