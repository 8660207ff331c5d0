"""Experiments: runs by their labels, and what is read from the files of runs and sweeps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import made_up_runs
import pytest
from made_up_runs import made_up_trial, write_run

from pagewire.slo.experiment import Experiment, Trial
from pagewire.slo.experiment_files import MANIFEST, kind_of, read_experiment
from pagewire.slo.objectives import parse_objectives


def test_series_are_what_differs_but_for_the_rate() -> None:
    trials = [
        made_up_trial(rate, 9.0, seed=rate, prefill=1, decode=decode, chunk_size=256)
        for decode in (2, 1)
        for rate in (4, 2)
    ]
    found = Experiment(title="t", trials=tuple(trials)).series()
    assert [series.name for series in found] == ["1P:2D", "1P:1D"]  # chunk_size is the same for all
    assert [[trial.rate_per_s for trial in series.trials] for series in found] == [[2, 4], [2, 4]]
    assert [series.num_pods for series in found] == [3, 2]


def test_names_tell_runs_apart() -> None:
    made = [made_up_trial(2, 9.0, colocated=2, chunk_size=size, count=20) for size in (128, 256)]
    experiment = Experiment(title="t", trials=(*made, made_up_trial(2, 9.0, name="mine", count=20)))
    assert [experiment.name_of(trial) for trial in experiment.trials] == [
        "2 colocated, chunk_size 128, 2/s", "2 colocated, chunk_size 256, 2/s", "mine",
    ]  # fmt: skip
    alone = Experiment(title="t", trials=(made[0],))
    assert alone.name_of(made[0]) == "2/s"
    assert alone.series()[0].name == "2 colocated"


def test_a_run_is_read_with_the_records_beside_it(tmp_path: Path) -> None:
    trial = made_up_trial(3, 5.0)
    experiment = read_experiment([write_run(tmp_path / "a.json", trial)])
    (read,) = experiment.trials
    assert read.records == trial.records
    assert read.summary == trial.summary
    assert read.labels == {"rate": 3}
    assert read.about["seed"] == 7


def test_runs_may_be_judged_anew(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.json", made_up_trial(3, 5.0))
    (read,) = read_experiment([path], objectives=parse_objectives("ttft=1ms")).trials
    assert read.summary.all_attained.good == 0


def test_a_folder_is_what_its_manifest_says(tmp_path: Path) -> None:
    trials = [made_up_trial(rate, 5.0, seed=rate) for rate in (2, 4)]
    runs: list[dict[str, Any]] = []
    for place, trial in enumerate(trials):
        (tmp_path / str(place)).mkdir()
        write_run(tmp_path / str(place) / "run.json", trial)
        labels = {"rate": trial.rate_per_s, "prefill": 1, "decode": 2, "cache": True}
        runs.append({"labels": labels, "summary": f"{place}/run.json"})
    runs[1] |= {"records": "1/run.jsonl", "name": "the second"}
    told = {"title": "A sweep", "command": "pagewire slo sweep", "seed": 3, "runs": runs}
    (tmp_path / MANIFEST).write_text(json.dumps(told))
    experiment = read_experiment([tmp_path])
    assert (experiment.title, experiment.about) == ("A sweep", {"command": "pagewire slo sweep", "seed": 3})
    assert [trial.records for trial in experiment.trials] == [trial.records for trial in trials]
    assert experiment.trials[0].labels == {"rate": 2, "prefill": 1, "decode": 2, "cache": "True"}
    assert experiment.name_of(experiment.trials[1]) == "the second"
    assert read_experiment([tmp_path], title="Mine").title == "Mine"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (MANIFEST, "{", "is not JSON"),
        (MANIFEST, "[]", "is not a JSON object"),
        (MANIFEST, "{}", '"runs" is no list'),
        (MANIFEST, '{"runs": []}', "no run"),
        (MANIFEST, '{"runs": [{"labels": {}}]}', "run 0 is not as it should be"),
        (MANIFEST, '{"runs": [{"labels": 3, "summary": "a.json"}]}', "run 0 is not as it should be"),
        (MANIFEST, '{"runs": [{"labels": {}, "summary": "good.json"}]}', "no records beside it"),
        ("good.jsonl", '{"arrival": 1}\n', "good.jsonl has no records"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    good = write_run(tmp_path / "good.json", made_up_trial(3, 5.0, count=20))
    if name == MANIFEST:
        good.with_suffix(".jsonl").unlink()
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        read_experiment([tmp_path if name == MANIFEST else good])


def test_what_is_no_summary_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"window": {}}')
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"a\.json is no summary of a run"):
        read_experiment([tmp_path / "a.json"])


def test_made_up_runs_fail_now_and_then() -> None:
    """Else nothing below would try what failures do."""
    assert all(trial.summary.failures for trial in made_up_runs.sweep((2, 4)).trials[:2])


LOADS = ({"rate": 2, "input": "512"}, {"rate": 2, "input": "64-128"})


def of_workload(workload: dict[str, Any], rate: float, slo: str = made_up_runs.SLO, **labels: Any) -> Trial:
    made = made_up_trial(rate, 9.0, slo=slo, count=20, **labels)
    return dataclasses.replace(made, workload=kind_of(workload))


def test_runs_of_another_workload_or_slo_are_curves_of_their_own() -> None:
    trials = [of_workload({**load, "rate": rate}, rate, colocated=2) for load in LOADS for rate in (2, 4)]
    trials += [of_workload({**LOADS[0], "rate": rate}, rate, "ttft=1s", colocated=2) for rate in (2, 4)]
    experiment = Experiment(title="t", trials=tuple(trials))
    assert [(series.name, len(series.trials)) for series in experiment.series()] == [
        ("2 colocated, input 512, slo ttft=500ms,tpot=50ms", 2),
        ("2 colocated, input 64-128, slo ttft=500ms,tpot=50ms", 2),
        ("2 colocated, input 512, slo ttft=1000ms", 2),
    ]
    assert [len(each.trials) for each in experiment.questions()] == [2, 2, 2]
    assert len({experiment.name_of(trial) for trial in trials}) == len(trials)


def test_how_much_of_a_workload_there_was_makes_it_no_other() -> None:
    more = {"rate": 4, "seed": 3, "requests": 90, "duration_s": 60.0, "warmup_s": 5.0, "prefix_depth": 1}
    experiment = Experiment(title="t", trials=(of_workload({"rate": 2}, 2), of_workload(more, 4)))
    assert [len(series.trials) for series in experiment.series()] == [2]
    assert experiment.questions() == [experiment]
    assert experiment.question_of(experiment.trials[0]) == ""
    users = Experiment(title="t", trials=tuple(of_workload({"concurrency": each}, 2) for each in (4, 8, 0)))
    assert [series.name for series in users.series()] == ["loop closed", "loop open"]


def test_what_was_asked_is_read_from_the_summaries(tmp_path: Path) -> None:
    trials = [made_up_trial(rate, 9.0, count=20) for rate in (2, 4)]
    told = [{"rate": 2, "input": "64", "grid": ["pods=1P:1D"]}, {"rate": 4, "input": "64", "grid": []}]
    paths = [
        write_run(tmp_path / f"{at}.json", each, workload=told[at], labels={"colocated": 1})
        for at, each in enumerate(trials)
    ]
    assert [len(series.trials) for series in read_experiment(paths).series()] == [2]
    other = write_run(tmp_path / "2.json", trials[0], workload={"rate": 2, "input": "65"}, labels={"colocated": 1})
    names = [series.name for series in read_experiment([*paths, other]).series()]
    assert names == ["1 colocated, input 64", "1 colocated, input 65"]


def test_a_run_without_its_workload_is_no_run_of_one_that_is_told() -> None:
    experiment = Experiment(title="t", trials=(of_workload({"rate": 2}, 2), of_workload({}, 2)))
    assert [series.name for series in experiment.series()] == ["all runs", "workload not told"]
