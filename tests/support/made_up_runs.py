"""Runs that never ran: records drawn by a seed from a queue of one server, to test what is made of records with."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagewire.slo.figures.experiment import RATE, Experiment, Label, Trial, trial
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.record_files import record_file
from pagewire.slo.figures.summary import Window
from pagewire.slo.figures.ttft_parts import PARTS

SLO = "ttft=500ms,tpot=50ms"
ABOUT = {
    "model": "made-up", "seed": 7, "command": "pagewire slo run --rate 2", "versions": {"pagewire": "0.0"},
    "machine": {"cpu": "none", "cores": 2},
}  # fmt: skip


def record(number: int, due_s: float, ttft_s: float, gaps_s: Sequence[float], **beside: Any) -> Record:
    first_s = due_s + ttft_s
    told: dict[str, Any] = {
        "arrival": number, "turn": 0, "intended_s": due_s, "sent_s": due_s, "first_s": first_s,
        "last_s": first_s + sum(gaps_s), "gaps_s": tuple(gaps_s), "input_tokens": 64, "output_tokens": len(gaps_s) + 1,
        "wanted_tokens": len(gaps_s) + 1,
    }  # fmt: skip
    return Record(**told | beside)


def failed(number: int, due_s: float, error: str = "http_503") -> Record:
    return record(number, due_s, 0.0, (), first_s=None, last_s=None, output_tokens=0, wanted_tokens=8, error=error)


def records(rate: float, capacity: float, *, count: int = 200, seed: int = 0, parts: bool = True) -> list[Record]:
    """Draw requests of a queue that serves `capacity` a second: one in a hundred fails."""
    draw, made, now, free = random.Random(seed), list[Record](), 0.0, 0.0
    for number in range(count):
        now += draw.expovariate(rate)
        begun = max(now, free)
        work = draw.expovariate(capacity)
        free = begun + work
        if draw.random() < 0.01:
            made.append(failed(number, now))
            continue
        queue, compute, elsewhere = begun - now, 0.05 + work, 0.01 * draw.random()
        shares = dict.fromkeys(PARTS, 0.0) | {
            "router": 0.004, "admission": 0.2 * queue, "prefill_queue": 0.8 * queue, "compute": compute,
            "exposed_transfer": 0.02 * draw.random(), "first_step": 0.015,
        }  # fmt: skip
        pace = 0.02 + 0.02 * draw.random() * rate / capacity
        gaps = [pace * draw.uniform(0.7, 1.3) for _ in range(draw.randint(4, 30))]
        ttft = 0.004 + queue + compute + elsewhere
        told = {"ttft_parts_s": shares if parts else None, "sent_s": now + 0.0005}
        made.append(record(number, now, ttft, gaps, **told))
    return made


def made_up_trial(rate: float, capacity: float, *, name: str = "", slo: str = SLO, **beside: Any) -> Trial:
    """Return a run of `rate`; `beside` are labels, and what `records` takes."""
    drawn = {key: beside.pop(key) for key in ("count", "seed", "parts") if key in beside}
    made = records(rate, capacity, **drawn)
    window = Window(from_s=0.0, until_s=made[-1].intended_s + 1.0)
    labels: dict[str, Label] = {RATE: rate, **beside}
    return trial(made, window, parse_objectives(slo), labels=labels, about=ABOUT, name=name)


def trial_of(records: Sequence[Record], *, slo: str = SLO, **labels: Label) -> Trial:
    """Return a run of these records, all of which count."""
    until_s = max(each.intended_s for each in records) + 1.0
    return trial(records, Window(from_s=0.0, until_s=until_s), parse_objectives(slo), labels=labels)


def attaining(rate: float, good: int, of: int = 10, *, slo: str = SLO, **labels: Label) -> Trial:
    """Return a run at `rate` of `of` answers, `good` of which met every objective of SLO."""
    made = [record(number, number, 0.1 if number < good else 9.0, (0.01, 0.03)) for number in range(of)]
    return trial_of(made, slo=slo, **{RATE: rate, **labels})


def experiment_of(*trials: Trial) -> Experiment:
    """Return an experiment of these runs."""
    return Experiment(title="Made up", trials=trials)


def sweep(rates: Sequence[float] = (1, 2, 4, 6, 8)) -> Experiment:
    """Return four P:D compositions and a colocated one, each at every rate."""
    systems: dict[str, tuple[dict[str, Any], float]] = {
        "a": ({"prefill": 1, "decode": 1}, 7.0), "b": ({"prefill": 1, "decode": 2}, 10.0),
        "c": ({"prefill": 2, "decode": 1}, 13.0), "d": ({"prefill": 2, "decode": 2}, 20.0),
        "e": ({"colocated": 2}, 5.0),
    }  # fmt: skip
    trials = [
        made_up_trial(rate, capacity, seed=100 * place + at, **labels)
        for place, (labels, capacity) in enumerate(systems.values())
        for at, rate in enumerate(rates)
    ]
    return Experiment(title="A made-up sweep", trials=tuple(trials), about={"command": "pagewire slo sweep", "seed": 0})


def write_run(path: Path, trial: Trial, **beside: Any) -> Path:
    """Write a trial as `pagewire slo run` would: its summary at `path`, its records beside it."""
    with record_file(path.with_suffix(".jsonl")) as add:
        for each in trial.records:
            add(each)
    told = {**trial.summary.as_json(), **trial.about, "workload": {"rate": trial.rate_per_s}, **beside}
    path.write_text(json.dumps(told), encoding="utf-8")
    return path


def renamed(trial: Trial, name: str) -> Trial:
    return dataclasses.replace(trial, name=name)
