"""`pagewire slo calibrate` on a real cluster of a tiny model, and `pagewire slo simulate` on what it wrote.

What the figures come to is the machine's; that every law was seen, and that the two commands fit, is shown here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_model
from live_cluster import LiveCluster

from pagewire.slo.costs.cost_model import CostModel, StepShape
from pagewire.slo.figures.record_files import read_records

pytestmark = pytest.mark.cluster

FLAGS = ("--dtype", "float32", "--max-model-len", "512", "--kv-memory", "8MiB", "--chunk-size", "64")
PODS = {"1P1D": ("--prefill", "1", "--decode", "1"), "2C": ("--colocated", "2")}
WORKLOAD = ("--requests", "20", "--rate", "10", "--input", "64-200", "--output", "2-12", "--seed", "3")


@pytest.fixture(scope="module", params=PODS)
def calibrated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Which pods there were, and the cost model that was fitted to them."""
    folder = tmp_path_factory.mktemp("llama")
    cluster = LiveCluster(tiny_model.build(folder, "llama"), *PODS[request.param], *FLAGS)
    try:
        told = slo("calibrate", "--url", cluster.grpc, "--rounds", "1", "--output", str(folder / "costs.json"))
        for law in ("prefill step", "decode step", "link", "frames, intake", "beside another pod"):
            assert law in told.stdout
        yield request.param, folder / "costs.json"
    finally:
        assert cluster.stop() == 0


def slo(*command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    full = [sys.executable, "-P", "-m", "pagewire.cli.main", "slo", *command]
    done = subprocess.run(full, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == code, done.stderr
    return done


def test_every_law_was_seen(calibrated: tuple[str, Path]) -> None:
    pods, path = calibrated
    costs = CostModel.from_json(path.read_text())
    assert costs.prefill.seconds(StepShape(prefill_tokens=64, prefill_pairs=2080)) > 0
    assert costs.decode.decode_seconds(4, 400) > 0
    assert costs.frame_s > 0
    assert costs.intake_s + costs.intake_token_s > 0
    laws = {"prefill", "decode", "intake"}
    assert set(costs.residuals) == (laws | {"link"} if pods == "1P1D" else laws)
    assert (costs.about["source"], costs.max_model_len, costs.longest_prompt) == ("measured", 512, 384)


def test_what_was_fitted_is_simulated(calibrated: tuple[str, Path], tmp_path: Path) -> None:
    pods, costs = calibrated
    asked = [*PODS[pods], "--pods-per-machine", "2", *WORKLOAD, "--slo", "ttft=60s"]
    files = ["--json", str(tmp_path / "told.json"), "--records", str(tmp_path / "told.jsonl")]
    shown = slo("simulate", "--costs", str(costs), *asked, *files)
    assert "20 of 20" in shown.stdout
    assert pods in shown.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    records = read_records(tmp_path / "told.jsonl")
    assert (told["requests"], told["failed"], len(records)) == (20, 0, 20)
    assert all(each.output_tokens == each.wanted_tokens for each in records)
    again = slo("simulate", "--costs", str(costs), *asked)
    assert again.stdout == shown.stdout


def test_what_is_no_cost_model_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text("{}")
    assert str(path) in slo("simulate", "--costs", str(path), *WORKLOAD, code=2).stderr
    assert "--model" in slo("calibrate", "--flops", "1e12", "--output", str(path), code=2).stderr
