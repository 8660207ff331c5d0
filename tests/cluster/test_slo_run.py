"""`pagewire slo run` against a real cluster of a tiny model: every request is answered in full, and so counted.

What the figures come to is the machine's; that they hold together is shown here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from live_cluster import LiveCluster

from pagewire.slo.figures.record_files import read_records

pytestmark = pytest.mark.cluster

FLAGS = (
    *("--prefill", "1", "--decode", "1", "--dtype", "float32", "--max-model-len", "256", "--kv-memory", "4MiB"),
    *("--chunk-size", "32", "--prefill-mode", "remote"),
)
WORKLOAD = (
    *("--requests", "12", "--rate", "8", "--input", "64", "--prefix-share", "0.5", "--output", "6", "--turns", "2"),
    *("--later-input", "8", "--token-ids", "0-255", "--seed", "3", "--slo", "ttft=60s,tpot=60s"),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tiny_model.build(tmp_path_factory.mktemp("llama"), "llama"), *FLAGS)
    try:
        yield cluster
    finally:
        assert cluster.stop() == 0


def slo_run(folder: Path, url: str, *flags: str, code: int = 0) -> tuple[str, dict[str, Any], Path]:
    """Return the table, the summary and where the records are."""
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "slo", "run", "--url", url, *WORKLOAD, *flags]
    command += ["--json", str(folder / "run.json"), "--records", str(folder / "run.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == code, done.stderr
    return done.stdout, json.loads((folder / "run.json").read_text()), folder / "run.jsonl"


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_every_request_is_answered_in_full(cluster: LiveCluster, tmp_path: Path, door: str) -> None:
    shown, told, path = slo_run(tmp_path, getattr(cluster, door))
    assert "24 of 24" in shown
    assert (told["requests"], told["failed"], told["short_answers"]) == (24, 0, 0)
    assert told["attainment"]["share"] == 1.0
    assert told["model"] == cluster.model_name
    assert told["workload"]["prefix_share"] == 0.5
    records = read_records(path)
    assert sorted((each.arrival, each.turn) for each in records) == [(a, t) for a in range(12) for t in (0, 1)]
    for each in records:
        # The second turn has the first one's prompt and answer before its own eight tokens.
        assert each.input_tokens == (64, 64 + 6 + 8)[each.turn]
        assert each.output_tokens == 6
    # Both pods' blocks have 16 slots: two blocks are common, and a second turn finds those of the first.
    cached = [each.cached_tokens for each in records]
    assert sum(tokens is not None and tokens >= 32 for tokens in cached) >= 20


def test_a_chat_is_answered(cluster: LiveCluster, tmp_path: Path) -> None:
    _, told, _ = slo_run(
        tmp_path, cluster.http, "--api", "chat", "--input", "10", "--turns", "1", "--prefix-share", "0"
    )
    assert (told["requests"], told["failed"], told["short_answers"]) == (12, 0, 0)


def test_what_a_server_refuses_is_told(cluster: LiveCluster, tmp_path: Path) -> None:
    shown, told, _ = slo_run(tmp_path, cluster.http, "--input", "500", code=1)
    assert told["attainment"]["good"] == 0
    assert told["failures"] == {"http_400": 12}
    assert "0 of 12" in shown
    assert any(
        "http_400" in warning and "maximum context length is 256 tokens" in warning for warning in told["warnings"]
    ), told["warnings"]
