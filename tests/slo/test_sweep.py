"""Sweeps over clusters that compute nothing: what is probed, what is found, what is written, and what a kill leaves."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pretended_clusters
import pytest
from pretended_clusters import PretendedClusters, swept

from pagewire.core.config import ConfigError
from pagewire.core.errors import Unavailable
from pagewire.slo.figures.record_files import read_records
from pagewire.slo.figures.summary import Attainment
from pagewire.slo.sweeps.finding import table
from pagewire.slo.sweeps.probe_plan import probe_workload, within_recording
from pagewire.slo.sweeps.sweep_config import SweepConfig, differences
from pagewire.slo.sweeps.sweep_folder import SweepFolder

TOLD: dict[str, Any] = {
    "grid": ("pods=1P:1D,2 colocated",), "slo": "ttft=1s", "arrivals": "constant", "duration_s": 30.0,
    "warmup_s": 2.0, "lowest_rate": 0.5, "precision": 0.2, "input": pretended_clusters.LENGTH, "seed": 7,
}  # fmt: skip
CONFIG = SweepConfig(**TOLD)


def told(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    return said


async def test_the_rate_that_each_cluster_carries_is_found(tmp_path: Path) -> None:
    clusters = PretendedClusters({"1P:1D": 5.0, "2 colocated": 11.0})
    sweep = await swept(CONFIG, clusters, tmp_path)
    for finding, capacity in zip(sweep.findings(), (5.0, 11.0), strict=True):
        for at in finding.crossings(CONFIG.attainment):
            assert at.met is not None
            assert at.missed is not None
            # A share of 0.9 is met at up to capacity / 0.9, about.
            assert at.met <= capacity / at.target * 1.1
            assert at.missed >= capacity * 0.9
    assert clusters.num_started == 2
    assert clusters.running == 0


async def test_every_probe_has_requests_of_its_own_and_clusters_have_the_same(tmp_path: Path) -> None:
    clusters = PretendedClusters({"1P:1D": 5.0, "2 colocated": 5.0})
    await swept(CONFIG, clusters, tmp_path)
    mine = [seed for name, seed in clusters.ran if name == "1P:1D"]
    assert mine == [seed for name, seed in clusters.ran if name == "2 colocated"]
    assert len({*mine}) == len(mine) > 4
    first, second = probe_workload(CONFIG, 2.0, 0), probe_workload(CONFIG, 2.0, 1)
    assert next(iter(first)).turns[0].pieces == next(iter(second)).turns[0].pieces
    assert first.seed != second.seed


async def test_what_is_written_can_be_reported(tmp_path: Path) -> None:
    await swept(CONFIG, PretendedClusters({"1P:1D": 5.0, "2 colocated": 5.0}), tmp_path)
    experiment = json.loads((tmp_path / "experiment.json").read_text())
    assert experiment["command"] == "pagewire slo sweep"
    assert experiment["seed"] == 7
    labels = [run["labels"] for run in experiment["runs"]]
    assert {(each.get("prefill"), each.get("decode"), each.get("colocated")) for each in labels} == {
        (1, 1, None), (None, None, 2),
    }  # fmt: skip
    for run in experiment["runs"]:
        summary = json.loads((tmp_path / run["summary"]).read_text())
        assert summary["slo_ms"] == {"ttft": 1000.0}
        assert {"machine", "versions", "command", "seed", "window", "settings"} <= {*summary}
        assert summary["versions"].keys() >= {"pagewire", "httpx", "torch"}
        assert summary["workload"]["rate"] == run["labels"]["rate"] == summary["rate"]
        records = read_records(tmp_path / run["records"])
        good = sum(each.ttft_s is not None and each.ttft_s <= 1 and each.intended_s >= 2 for each in records)
        assert good == summary["attainment"]["good"]
    said = told(tmp_path)
    assert {"machine", "versions", "command", "seed", "asked"} <= {*said}
    assert [each["name"] for each in said["configurations"]] == ["1P:1D", "2 colocated"]
    assert sum(len(each["probes"]) for each in said["configurations"]) == len(labels)


async def test_a_configuration_that_fails_is_told_by_name_and_the_others_go_on(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, grid=("chunk_size=1,2,3",))
    capacity = {"1P:1D chunk_size=1": 0.0, "1P:1D chunk_size=2": -5.0, "1P:1D chunk_size=3": 5.0}
    said: list[str] = []
    sweep = await swept(config, PretendedClusters(capacity), tmp_path, said.append)
    absent, broken, whole = sweep.findings()
    assert (absent.error, absent.probes) == ("does not fit\n    a line of its log", ())
    assert (broken.error, len(broken.probes)) == ("RuntimeError: broken", 1)
    assert (whole.error, len(whole.probes) > 4) == ("", True)
    shown = "\n".join(table(sweep.findings(), config.attainment))
    assert "1P:1D chunk_size=1 failed: does not fit" in shown
    assert "nothing was probed" in shown
    assert any(line.startswith("1P:1D chunk_size=2: failed: RuntimeError") for line in said)
    trace = json.loads((tmp_path / "1P-1D-chunk_size=2" / "failed.json").read_text())["trace"]
    assert "RuntimeError" in trace[-1]
    # It stays so until it is forgiven.
    mended = PretendedClusters(dict.fromkeys(capacity, 5.0))
    await swept(config, mended, tmp_path)
    assert mended.ran == []
    SweepFolder(tmp_path).forgive(config.configurations()[1])
    await swept(config, mended, tmp_path)
    assert {name for name, _ in mended.ran} == {"1P:1D chunk_size=2"}


async def test_a_finished_sweep_starts_nothing_and_a_larger_one_only_what_is_new(tmp_path: Path) -> None:
    capacity = {"1P:1D": 5.0, "2 colocated": 5.0, "2P:1D": 5.0}
    await swept(CONFIG, PretendedClusters(capacity), tmp_path)
    before = told(tmp_path)
    again = PretendedClusters(capacity)
    await swept(CONFIG, again, tmp_path)
    assert (again.num_started, again.ran) == (0, [])
    assert told(tmp_path) == before
    larger = dataclasses.replace(CONFIG, grid=("pods=1P:1D,2P:1D,2 colocated",))
    await swept(larger, again, tmp_path)
    assert {name for name, _ in again.ran} == {"2P:1D"}
    assert len(told(tmp_path)["configurations"]) == 3


async def test_a_probe_that_was_taken_away_is_made_again(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, grid=(), rates=(2.0,), repeats=2)
    clusters = PretendedClusters({"1P:1D": 2.05})
    await swept(config, clusters, tmp_path)
    folder = SweepFolder(tmp_path)
    (configuration,) = config.configurations()
    made = folder.probes(configuration)
    assert [each.repeat for each in made] == [0, 1]
    shutil.rmtree(tmp_path / made[0].folder)
    await swept(config, clusters, tmp_path)
    assert [each.repeat for each in folder.probes(configuration)] == [0, 1]
    assert folder.failure(configuration) == ""


def texts(folder: Path) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in folder.rglob("*.json")]


async def test_passwords_in_urls_are_written_nowhere_and_a_sweep_goes_on_all_the_same(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, grid=(), common=("redis=redis://bob:hunter2@host",), rates=(2.0,), repeats=1)
    clusters = PretendedClusters({"1P:1D": 9.0})
    await swept(config, clusters, tmp_path)
    written = texts(tmp_path)
    assert any("redis://...@host" in text for text in written)
    assert not any("hunter2" in text for text in written)
    before = SweepFolder(tmp_path).asked()
    assert before is not None
    assert differences(config, before) == []
    assert differences(dataclasses.replace(config, common=("redis=redis://other",)), before) != []


async def test_fresh_clusters_serve_one_probe_each(tmp_path: Path) -> None:
    clusters = PretendedClusters({"1P:1D": 5.0})
    await swept(dataclasses.replace(CONFIG, grid=(), fresh=True), clusters, tmp_path)
    assert clusters.num_started == len(clusters.ran) > 4


def test_no_rate_is_tried_that_a_recording_is_too_short_for() -> None:
    """The one in question has 200 arrivals."""
    told = {**TOLD, "trace": "sample:azure", "arrivals": "auto", "duration_s": 50.0}
    del told["input"]
    asked = SweepConfig(**told, rate=30.0)
    assert within_recording(CONFIG) is CONFIG
    assert within_recording(asked) == dataclasses.replace(asked, rate=4.0, highest_rate=4.0)
    assert within_recording(dataclasses.replace(asked, rate=0.0)) == dataclasses.replace(
        asked, rate=1.0, highest_rate=4.0
    )
    low = dataclasses.replace(asked, rate=1.0, highest_rate=3.0)
    assert within_recording(low) is low
    listed = dataclasses.replace(asked, rates=(1.0, 4.0))
    assert within_recording(listed) is listed
    with pytest.raises(ConfigError, match=r"sample:azure has 200 arrivals, .* 50 s at 4/s at most: .*, or the rates"):
        within_recording(dataclasses.replace(asked, rates=(1.0, 4.1)))
    with pytest.raises(ConfigError, match="or lowest_rate"):
        within_recording(dataclasses.replace(asked, lowest_rate=5.0))


async def test_listed_rates_are_all_there_is(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, grid=(), rates=(2.0, 8.0), repeats=1)
    sweep = await swept(config, PretendedClusters({"1P:1D": 5.0}), tmp_path)
    (finding,) = sweep.findings()
    assert [(each.rate, each.repeat) for each in finding.probes] == [(2.0, 0), (8.0, 0)]
    assert finding.evidence.attained(2.0) == Attainment(good=56, total=56)


async def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    waited: list[str] = []
    async with SweepFolder(tmp_path).locked(1.0, lambda: waited.append("first")):
        with pytest.raises(Unavailable, match="another sweep"):
            async with SweepFolder(tmp_path).locked(0.2, lambda: waited.append("second")):
                pass
    assert waited == ["second"]
    async with SweepFolder(tmp_path).locked(0.2, lambda: waited.append("third")):
        pass
    assert waited == ["second"]


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_any_time_loses_only_the_probe_that_runs(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with _program(whole) as in_one_go:
        in_one_go.communicate(timeout=60)
    finished: dict[str, str] = {}
    for _ in range(3):  # of sixteen probes, so that some are left however late a kill comes
        with _program(killed) as process:
            assert process.stdout is not None
            for _ in range(draw.randint(1, 4)):
                process.stdout.readline()
            time.sleep(draw.random() * 0.06)  # into a probe, or its writing
            process.kill()
        for path in killed.glob("*.json"):
            json.loads(path.read_text())
        kept = {str(path.relative_to(killed)): path.read_text() for path in killed.glob("*/*-*/run.json")}
        assert finished.items() <= kept.items(), "a finished probe was made again, or is gone"
        for name in kept:
            assert read_records((killed / name).with_name("run.jsonl"))
        finished = kept
    with _program(killed) as last:
        out, _ = last.communicate(timeout=60)
    assert last.returncode == in_one_go.returncode == 0
    assert 0 < len(finished) < len([*whole.glob("*/*-*/run.json")])
    made = len(json.loads(out.splitlines()[-1]))
    assert made == len([*whole.glob("*/*-*/run.json")]) - len(finished)
    assert told(killed) == told(whole)
    assert not (killed / "unfinished").exists()


def _program(folder: Path) -> subprocess.Popen[str]:
    settings = {**TOLD, "input": "8"}
    command = [sys.executable, "-P", pretended_clusters.__file__, str(folder), json.dumps(settings)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
