"""`pagewire slo sweep` with real clusters of a tiny model: begun, killed, gone on with, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import tiny_model
from lives import left_behind

from pagewire.slo.figures.record_files import read_records

pytestmark = pytest.mark.cluster

PLAN = """
title = "Two small clusters"
grid = ["pods=1P:1D,1 colocated"]
common = [
  "model={model}", "dtype=float32", "max_model_len=256", "kv_memory=4MiB", "chunk_size=32", "threads=1",
  "max_num_batched_tokens=64", "policy=round_robin",
]
slo = "ttft=60s,tpot=60s"
attainment = [0.5]
rate = 10
lowest_rate = 7
highest_rate = 20
duration_s = 2
warmup_s = 0.5
input = "48"
output = "4"
token_ids = "0-255"
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("llama"), "llama")


def sweep(folder: Path, plan: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "slo", "sweep", "--config", str(plan), "--out"]
    return subprocess.Popen([*command, str(folder), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def plan_of(folder: Path, model: Path) -> Path:
    path = folder / "sweep.toml"
    path.write_text(PLAN.format(model=model))
    return path


def test_a_killed_sweep_is_gone_on_with(model: Path, tmp_path: Path) -> None:
    plan, out = plan_of(tmp_path, model), tmp_path / "sweep"
    with sweep(out, plan) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "1P:1D: starting\n"
        assert process.stderr.readline().startswith("1P:1D: 10/s, 100.0% of ")
        time.sleep(0.5)  # into the second probe
        tree = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert len(tree) >= 4
    stamps = {kept: kept.stat().st_mtime_ns for kept in out.glob("*/*-*/run.json")}
    assert stamps
    # It waits for what the killed one left, which ends by itself.
    with sweep(out, plan) as process:
        shown, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert left_behind(tree, within_s=1) == []
    assert {kept: kept.stat().st_mtime_ns for kept in stamps} == stamps
    assert "at least 20/s" in shown
    told = json.loads((out / "sweep.json").read_text())
    assert [each["name"] for each in told["configurations"]] == ["1P:1D", "1 colocated"]
    for configuration in told["configurations"]:
        assert [(each["rate"], each["repeat"]) for each in configuration["probes"]] == [(10.0, 0), (20.0, 0)]
        (found,) = configuration["rates"]
        assert (found["met"], found["missed"], found["is_resolved"]) == (20.0, None, True)
    assert_whole(out, told)


def assert_whole(out: Path, told: dict[str, Any]) -> None:
    """Every run that is told is there with its records, of answers in full."""
    experiment = json.loads((out / "experiment.json").read_text())
    assert [run["labels"] for run in experiment["runs"]] == [
        {"prefill": 1, "decode": 1, "rate": 10.0}, {"prefill": 1, "decode": 1, "rate": 20.0},
        {"colocated": 1, "rate": 10.0}, {"colocated": 1, "rate": 20.0},
    ]  # fmt: skip
    assert told["command"].startswith("pagewire slo sweep --config ")
    for run in experiment["runs"]:
        summary = json.loads((out / run["summary"]).read_text())
        assert (summary["failed"], summary["short_answers"]) == (0, 0)
        assert (summary["settings"]["policy"], summary["settings"]["chunk_size"]) == ("round_robin", "32")
        assert summary["attainment"]["share"] == 1.0
        # Nothing that another probe asked for is in a cache.
        assert summary["cached_tokens"] == 0
        counted = summary["counters"]
        builds = counted["prefill-0" if "prefill" in run["labels"] else "colocated-0"]
        assert builds["pagewire_prompt_tokens_computed_total"] == summary["requests_in_all"] * 48
        assert len(counted) == len(run["labels"]) - 1  # each pod, and the rate is a label too
        records = read_records(out / run["records"])
        assert len(records) == summary["requests_in_all"] > 0
        assert {each.input_tokens for each in records} == {48}


def test_a_configuration_that_does_not_start_is_told_and_the_next_one_is_measured(model: Path, tmp_path: Path) -> None:
    plan, out = plan_of(tmp_path, model), tmp_path / "sweep"
    flags = ("--grid", "pods=1 colocated", "--grid", "block_size=17,16", "--rates", "10")
    with sweep(out, plan, *flags) as process:
        shown, said = process.communicate(timeout=240)
    assert process.returncode == 1, said
    assert "1 colocated block_size=17 failed: " in shown
    told = json.loads((out / "sweep.json").read_text())
    assert [len(each["probes"]) for each in told["configurations"]] == [0, 1]
    assert "17" in told["configurations"][0]["error"]
    # Told otherwise, the folder stays what it is.
    with sweep(out, plan, *flags, "--seed", "1") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "seed was 0 and is 1" in said


def test_a_setting_that_no_cluster_has_is_refused_before_any_starts(model: Path, tmp_path: Path) -> None:
    with sweep(tmp_path / "sweep", plan_of(tmp_path, model), "--grid", "chunk=1,2") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "1P:1D chunk=1: unknown setting 'chunk'" in said
    assert not (tmp_path / "sweep").exists()
