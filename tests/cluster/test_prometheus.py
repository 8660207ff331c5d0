"""A real Prometheus with the shipped rules before a real cluster: every panel is answered, nothing alarms in health.

Its configuration is the shipped one but for how processes are found, by addresses instead of the names of services, and
how often they are asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import tiny_model
import yaml
from dashboards import DASHBOARDS, PROMETHEUS, asked, filled_in, panels
from free_ports import free_port
from live_cluster import LiveCluster
from patience import came_true

pytestmark = pytest.mark.cluster

FLAGS = (
    *("--prefill", "1", "--decode", "1", "--dtype", "float32", "--max-model-len", "256", "--kv-memory", "4MiB"),
    *("--slo-ttft-s", "60", "--slo-gap-s", "60", "--slo-tpot-s", "60"),
)
PROMPTS = [[(seed * 37 + i * 7 + i * i * (seed + 3)) % 256 for i in range(20 + 17 * seed)] for seed in range(9)]
READY_S = 60.0
# What a cluster without a GPU in which nothing fails, is refused or runs short has no series of.
SILENT_IN_HEALTH = {
    "Alerts",
    "Brownout",
    "Life of blocks",
    "Refusals",
    "Retries and ejections",
}
# Labels that a legend may name and a line may lack, which Grafana then writes as nothing: a success has no type of
# error, and a namespace and a release are Kubernetes's.
MAY_BE_ABSENT = {"error_type": "", "namespace": "", "release": ""}


class Prometheus:
    """A server over these targets, by job; ends with `stop`."""

    def __init__(self, folder: Path, targets: dict[str, list[str]]) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.fail("prometheus is missing: `make setup-system` installs it")
        settings = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        settings["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        settings["scrape_configs"] = [
            {"job_name": job["job_name"], "static_configs": [{"targets": targets[job["job_name"]]}]}
            for job in settings["scrape_configs"]
            if job["job_name"] in targets
        ]
        assert len(settings["scrape_configs"]) == len(targets)
        (folder / "rules").mkdir()
        for file in (PROMETHEUS / "rules").glob("*.yaml"):
            rules = re.sub(r"interval: \d+s", "interval: 500ms", file.read_text())
            (folder / "rules" / file.name).write_text(rules)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        address = f"127.0.0.1:{free_port()}"
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            [
                *(program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
                f"--web.listen-address={address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._http = httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=30)

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API; what it refuses fails the test, in its words."""
        answer = self._http.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def wait_until_all_are_seen(self, num_processes: int) -> None:
        """Wait for two looks at every process, so that rates are known. Fails when that takes too long."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.said()
            with contextlib.suppress(httpx.TransportError, ValueError):  # it begins
                seen = self.get("query", query="count_over_time(up[5m]) > 1 and up == 1")["result"]
                if len(seen) == num_processes:
                    return
            time.sleep(0.2)
        pytest.fail(f"not all of {num_processes} processes were seen:\n{self.said()}")

    def said(self) -> str:
        """Return its log."""
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> None:
        """End it."""
        self._http.close()
        self._process.terminate()
        self._process.wait(timeout=READY_S)
        self._log.close()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has watched a cluster answer, among others two prompts that begin alike."""
    cluster = LiveCluster(tiny_model.build(tmp_path_factory.mktemp("llama"), "llama"), *FLAGS)
    try:
        pods = [urlsplit(pod["metrics"]).netloc for pod in cluster.pods()]
        targets = {"pagewire-router": [urlsplit(cluster.http).netloc], "pagewire-pods": pods}
        server = Prometheus(tmp_path_factory.mktemp("prometheus"), targets)
        try:
            asyncio.run(cluster.complete_all(PROMPTS, 8, concurrency=3))  # a series is there before the first look
            server.wait_until_all_are_seen(1 + len(pods))
            asyncio.run(cluster.complete_all([*PROMPTS, *PROMPTS], 24, concurrency=3))
            time.sleep(2)  # looked at, and the rules computed, unless the machine stands still
            yield server
        finally:
            server.stop()
    finally:
        assert cluster.stop() == 0


def test_every_rule_is_computed_without_an_error(prometheus: Prometheus) -> None:
    def computed() -> list[Any]:
        found = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        return [rule for rule in found if rule["health"] != "unknown"]

    written = [rule for file in (PROMETHEUS / "rules").glob("*.yaml") for rule in _rules_of(file)]
    assert came_true(lambda: len(computed()) == len(written)), [rule["name"] for rule in computed()]
    assert {rule["name"]: rule.get("lastError", "") for rule in computed() if rule["health"] != "ok"} == {}


def test_nothing_alarms_in_health(prometheus: Prometheus) -> None:
    """What would alarm if it stayed so is told as pending. How much of a transfer shows is the machine's affair."""

    def told() -> set[str]:
        alerts = prometheus.get("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts} - {"PagewireExposedTransfer"}

    assert came_true(lambda: not told()), told()  # of a look that took too long nothing stays


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_every_panel_shows_something(prometheus: Prometheus, file: Path) -> None:

    def empty() -> set[str]:
        queries = [(title, query) for title, query in asked(file, interval="1m") if title not in SILENT_IN_HEALTH]
        return {title for title, query in queries if not prometheus.get("query", query=query)["result"]}

    assert came_true(lambda: not empty()), empty()


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_lines_of_a_panel_are_told_apart_by_labels_that_they_have(prometheus: Prometheus, file: Path) -> None:
    for panel in panels(json.loads(file.read_text())):
        if panel["type"] == "heatmap":
            continue  # its lines are buckets
        names = []
        for target in panel["targets"]:
            for line in prometheus.get("query", query=filled_in(target["expr"], interval="1m"))["result"]:
                labels = MAY_BE_ABSENT | line["metric"]
                names.append(_legend(target["legendFormat"], labels))
        assert len(names) == len(set(names)), f"{panel['title']}: {sorted(names)}"


def _legend(text: str, labels: dict[str, str]) -> str:
    """What Grafana writes beside a line with these labels."""
    return re.sub(r"{{(\w+)}}", lambda found: labels[found[1]], text)


def _rules_of(file: Path) -> list[Any]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
