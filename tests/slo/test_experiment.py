"""Experiments: runs by their labels, and what is read from the files of runs and sweeps."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import made_up_runs
import pytest
from made_up_runs import made_up_trial, write_run

from pagewire.slo.figures.experiment import Experiment, Series, Trial, pods_name, trial
from pagewire.slo.figures.experiment_files import MANIFEST, kind_of, read_experiment
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.summary import Window


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
    assert read.labels == {"model": "made-up", "rate": 3}
    assert read.about["seed"] == 7


def test_runs_of_two_servers_are_two(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / f"{name}-{rate}.json", made_up_trial(rate, capacity), url=f"http://{name}")
        for name, capacity in (("slow", 1.0), ("fast", 100.0))
        for rate in (5, 10)
    ]
    experiment = read_experiment(paths)
    assert [[trial.rate_per_s for trial in series.trials] for series in experiment.series()] == [[5, 10]] * 2
    assert [series.name for series in experiment.series()] == ["url http://slow", "url http://fast"]


def test_runs_may_be_judged_anew(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.json", made_up_trial(3, 5.0))
    (read,) = read_experiment([path], objectives=parse_objectives("ttft=1ms")).trials
    assert read.summary.all_attained.good == 0


def test_a_folder_is_what_its_manifest_says(tmp_path: Path) -> None:
    trials = [made_up_trial(rate, 5.0, seed=rate) for rate in (2, 4)]
    runs: list[dict[str, Any]] = []
    for place, made in enumerate(trials):
        (tmp_path / str(place)).mkdir()
        write_run(tmp_path / str(place) / "run.json", made)
        labels = {"rate": made.rate_per_s, "prefill": 1, "decode": 2, "cache": True}
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


def test_a_trial_counts_what_was_due_in_its_window_and_has_nothing_else_unless_told() -> None:
    due = [made_up_runs.record(number, float(number), 0.1, (0.01,)) for number in range(6)]
    made = trial(due, Window(from_s=2.0, until_s=5.0), parse_objectives(""), labels={})
    assert made.counted == due[2:5]
    assert made.records == tuple(due)
    assert (made.about, made.workload, made.name, made.variant) == ({}, {}, "", ())
    assert made.rate_per_s == 1.0  # as it came, where nobody says which was asked
    assert made.asked == (("slo", "none"),)
    moment = Window(from_s=2.0, until_s=math.nextafter(2.0, math.inf))
    assert trial(due, moment, parse_objectives(""), labels={}).rate_per_s == 0.0  # none, and to be put in order
    told = trial(
        due, Window(from_s=0, until_s=9), parse_objectives("ttft=1s"), labels={"rate": 5, "b": 1, "a": 2},
        about={"seed": 1}, name="mine", workload={"input": "64"},
    )  # fmt: skip
    assert (told.about, told.name, told.rate_per_s) == ({"seed": 1}, "mine", 5.0)
    assert told.variant == (("a", 2), ("b", 1))
    assert told.asked == (("input", "64"), ("slo", "ttft=1000ms"))


def test_pods_are_told_where_labels_say_all_of_them() -> None:
    assert pods_name({"prefill": 1, "decode": 2}) == "1P:2D"
    assert pods_name({"colocated": 3, "chunk_size": 64}) == "3 colocated"
    assert [pods_name(labels) for labels in ({"prefill": 1}, {"decode": 2}, {})] == ["", "", ""]


def series_of(*trials: Trial) -> list[Series]:
    return Experiment(title="t", trials=trials).series()


def test_a_series_of_one_has_labels_and_pods_where_they_are_told() -> None:
    (alone,) = series_of(made_up_trial(2, 9.0, count=20, prefill=2, decode=1, policy="slo"))
    assert (alone.num_pods, alone.labels) == (3, {"prefill": 2, "decode": 1, "policy": "slo"})
    (bare,) = series_of(made_up_trial(2, 9.0, count=20))
    assert (bare.num_pods, bare.labels, bare.name) == (None, {}, "all runs")


def test_runs_that_no_label_tells_apart_go_by_the_name_of_the_first() -> None:
    trials = [made_up_trial(2, 9.0, count=20, name=name) for name in ("one", "other")]
    assert [series.name for series in series_of(*trials)] == ["one"]
    experiment = Experiment(title="t", trials=tuple(trials))
    assert [experiment.name_of(each) for each in trials] == ["one", "other"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_runs_that_are_called_the_same_are_numbered(count: int) -> None:
    trials = [made_up_trial(2, 9.0, count=20, seed=seed) for seed in range(count)]
    experiment = Experiment(title="t", trials=tuple(trials))
    numbered = [f"2/s, run {number}" for number in range(1, count + 1)]
    assert [experiment.name_of(each) for each in trials] == (["2/s"] if count == 1 else numbered)


def test_two_variants_are_told_apart_by_the_label_in_which_they_differ() -> None:
    trials = [made_up_trial(2, 9.0, count=20, policy=policy, block_size=16) for policy in ("slo", "two_choices")]
    experiment = Experiment(title="t", trials=tuple(trials))
    assert [series.name for series in experiment.series()] == ["policy slo", "policy two_choices"]
    assert [experiment.name_of(each) for each in trials] == ["policy slo, 2/s", "policy two_choices, 2/s"]


def test_an_experiment_is_one_question_or_one_for_each_that_was_asked() -> None:
    trials = [of_workload({"input": text}, 2, colocated=2) for text in ("64", "64", "128")]
    same, apart = (Experiment(title="t", trials=tuple(each), about={"seed": 1}) for each in (trials[:2], trials))
    assert same.questions()[0] is same
    assert [each.trials for each in apart.questions()] == [tuple(trials[:2]), (trials[2],)]
    assert {(each.title, each.about["seed"]) for each in apart.questions()} == {("t", 1)}


def test_a_workload_of_which_one_setting_is_told_is_told_apart_from_one_of_which_none_is() -> None:
    bare, told = made_up_trial(2, 9.0, count=20), made_up_trial(2, 9.0, count=20)
    other = made_up_trial(2, 9.0, count=20)
    told, other = (dataclasses.replace(each, workload={"input": text}) for each, text in ((told, "64"), (other, "")))
    experiment = Experiment(title="t", trials=(bare, told, other))
    assert [experiment.question_of(each) for each in experiment.trials] == [
        "workload not told",
        "input 64",
        "input none",
    ]
    assert Experiment(title="t", trials=(bare, bare)).question_of(bare) == ""
    assert Experiment(title="t", trials=(bare, told)).question_of(told) == ""
