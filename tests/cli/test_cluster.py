"""`pagewire up`: one JSON line, nothing left behind, and a death at start that says why.

The services are stand-ins that start and end like the real ones; Valkey, processes and signals are real.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import pytest
import redis
from lives import left_behind

from pagewire.cli.cluster import KILL_MARGIN_S, POD_NICENESS
from pagewire.core import cores

ROUTER_FLAGS = ("policy=round_robin", "prefill_mode=auto")
RUN_CLUSTER = Path(__file__).parents[1] / "support" / "run_cluster.py"


class Running:
    """A cluster's launcher; `tree` are the processes below it once it is ready."""

    def __init__(self, *settings: str, pods: tuple[int, int, int] = (1, 1, 0), **environ: str) -> None:
        environ["FAKE_PODS"] = json.dumps(dict(zip(("prefill", "decode", "colocated"), pods, strict=True)))
        self.process = subprocess.Popen(
            [sys.executable, str(RUN_CLUSTER), "port=0", "grpc_port=0", *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        self.tree: list[psutil.Process] = []

    def ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.tree = psutil.Process(self.process.pid).children(recursive=True)
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=30)
        return self.process.returncode, stderr

    def assert_all_gone(self) -> None:
        assert self.tree
        assert left_behind(self.tree, within_s=20) == []


@pytest.fixture
def started() -> Iterator[list[Running]]:
    running: list[Running] = []
    yield running
    for each in running:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder whose name is short: a socket lies in it, of whose path the kernel keeps no more than 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_up_says_what_runs_and_leaves_nothing_behind(started: list[Running], scratch: Path) -> None:
    environ = {"PAGEWIRE_REDIS_URL": "wrong", "PAGEWIRE_PREFILL": "9", "PAGEWIRE_LEASE_S": "2", "TMPDIR": str(scratch)}
    running = Running("prefill=2", "kv_memory=1MiB", "threads=3", *ROUTER_FLAGS, pods=(2, 1, 0), **environ)
    started.append(running)
    said = running.ready()
    assert [pod["id"] for pod in said["prefill"]] == ["prefill-0", "prefill-1"]
    assert [pod["id"] for pod in said["decode"]] == ["decode-0"]
    assert said["colocated"] == []
    assert said["router"]["http"].startswith("http://127.0.0.1:")
    flags = said["decode"][0]["flags"]
    assert (flags["--kv-memory"], flags["--threads"], flags["--model"]) == ("1048576", "3", "/no/model")
    assert "--chunk-size" not in flags
    flags = said["router"]["flags"]
    assert (flags["--policy"], flags["--prefill-mode"]) == ("round_robin", "auto")
    # What was meant for `up` itself does not reach a service.
    assert said["decode"][0]["variables"] == ["PAGEWIRE_CLUSTER_SECRET", "PAGEWIRE_REDIS_URL"]
    assert len(running.tree) == 5
    with redis.Redis.from_url(said["redis"]) as client:
        assert client.ping()
    code, stderr = running.end(signal.SIGINT)
    assert code == 0, stderr
    running.assert_all_gone()
    assert list(scratch.iterdir()) == []


def test_where_processors_are_short_the_router_goes_before_pods(started: list[Running]) -> None:
    running = Running("prefill=1", "decode=1")
    started.append(running)
    said = running.ready()
    pods = [pod["pid"] for role in ("prefill", "decode") for pod in said[role]]
    others = [child.pid for child in psutil.Process(running.process.pid).children() if child.pid not in pods]
    assert len(others) == 2, "the router, and Valkey"
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in others] == [usual] * 2
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in pods] == [min(19, usual + POD_NICENESS)] * 2


@pytest.mark.parametrize(
    ("settings", "threads"),
    [(("device=cpu",), max(1, cores.usable() // 2)), (("device=cuda",), 0), (("device=cuda:1", "threads=2"), 2)],
)
def test_engines_share_the_cores_of_a_cpu_alone(
    settings: tuple[str, ...], threads: int, started: list[Running]
) -> None:
    running = Running(*settings)
    started.append(running)
    assert running.ready()["decode"][0]["flags"]["--threads"] == str(threads)
    assert running.end(signal.SIGTERM)[0] == 0


def test_the_embedded_valkey_is_there_for_its_owner_alone(started: list[Running], scratch: Path) -> None:
    folder = scratch / 'an "odd" % one'
    folder.mkdir()
    running = Running("colocated=1", pods=(0, 0, 1), TMPDIR=str(folder))
    started.append(running)
    said = running.ready()
    assert [pod["id"] for pod in said["colocated"]] == ["colocated-0"]
    path = Path(unquote(urlsplit(said["redis"]).path))
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert path.parent.stat().st_mode & 0o077 == 0
    (server,) = (child for child in psutil.Process(running.process.pid).children() if "valkey" in child.name())
    assert server.net_connections(kind="inet") == []
    assert running.end(signal.SIGTERM)[0] == 0


def test_a_folder_whose_name_no_socket_can_have_is_named(started: list[Running], tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    running = Running(TMPDIR=str(folder))
    started.append(running)
    stdout, stderr = running.process.communicate(timeout=30)
    assert (stdout, running.process.returncode) == ("", 1)
    assert "is too long or too odd for a socket: set TMPDIR" in stderr


def test_a_pod_that_dies_at_start_is_an_error_with_its_log(started: list[Running], scratch: Path) -> None:
    running = Running(FAKE_DIES="decode", TMPDIR=str(scratch))
    started.append(running)
    stdout, stderr = running.process.communicate(timeout=30)
    assert running.process.returncode == 1
    assert stdout == ""
    assert "decode-0 ended with exit code 3 before it was ready" in stderr
    assert "no room for the weights" in stderr
    (logs,) = scratch.iterdir()  # the rest is gone
    assert f"what the processes said stays in {logs}" in stderr
    assert "no room for the weights" in (logs / "decode-0.log").read_text()


def test_nothing_is_ready_while_the_router_lacks_a_pod(started: list[Running]) -> None:
    running = Running("prefill=2", "start_timeout_s=6", pods=(1, 1, 0))
    started.append(running)
    stdout, stderr = running.process.communicate(timeout=30)
    assert (stdout, running.process.returncode) == ("", 1)
    assert 'the router is not ready: 200 {"status": "ready", "pods": {"prefill": 1,' in stderr


def test_a_pod_that_dies_while_the_router_looks_for_it_ends_the_wait(started: list[Running]) -> None:
    running = Running("prefill=2", pods=(1, 1, 0))
    started.append(running)
    assert running.process.stderr is not None
    while "router is up" not in (line := running.process.stderr.readline()):
        assert line, "up ended"
    below = psutil.Process(running.process.pid).children(recursive=True)
    (pod,) = [process for process in below if "prefill-1" in process.cmdline()]
    pod.kill()
    stdout, stderr = running.process.communicate(timeout=30)
    assert (stdout, running.process.returncode) == ("", 1)
    assert "prefill-1 ended with exit code -9" in stderr


def test_each_cluster_has_a_name_of_its_own_unless_it_is_given_one(started: list[Running]) -> None:
    first = Running(PAGEWIRE_CLUSTER="not-for-services")
    started.append(first)
    said = first.ready()
    shared = f"redis={said['redis']}"
    others = [Running(shared), Running(shared, "cluster=mine")]
    started.extend(others)
    told = [said, *(each.ready() for each in others)]
    names = [each["cluster"] for each in told]
    assert len(set(names)) == 3
    assert names[2] == "mine"
    for name, each in zip(names, told, strict=True):
        parts = [*each["prefill"], *each["decode"], each["router"]]
        assert [part["flags"]["--cluster"] for part in parts] == [name] * 3
    for running in (*others, first):
        assert running.end(signal.SIGTERM)[0] == 0
        running.assert_all_gone()


def test_pods_have_the_time_to_write_what_they_cached(started: list[Running], tmp_path: Path) -> None:
    kept, logs = tmp_path / "kept", tmp_path / "logs"
    settings = (f"host_kv_dir={kept}", "host_kv_memory=1MiB", "drain_s=0", f"log_dir={logs}")
    running = Running(*settings, FAKE_KEEPING=str(KILL_MARGIN_S + 1))
    started.append(running)
    running.ready()
    assert running.end(signal.SIGTERM)[0] == 0
    assert "all is kept" in (logs / "decode-0.log").read_text()


def test_a_pod_that_dies_later_leaves_the_others_alone(started: list[Running]) -> None:
    running = Running()
    started.append(running)
    said = running.ready()
    os.kill(said["prefill"][0]["pid"], signal.SIGKILL)
    assert running.process.stderr is not None
    while "prefill-0 ended with exit code -9" not in (line := running.process.stderr.readline()):
        assert line, "up ended"
    assert psutil.pid_exists(said["router"]["pid"])
    assert running.end(signal.SIGTERM)[0] == 0
    running.assert_all_gone()


def test_the_death_of_the_router_ends_the_cluster(started: list[Running]) -> None:
    running = Running()
    started.append(running)
    os.kill(running.ready()["router"]["pid"], signal.SIGKILL)
    _, stderr = running.process.communicate(timeout=30)
    assert running.process.returncode == 1
    assert "the router ended with exit code -9" in stderr
    running.assert_all_gone()


def test_nothing_outlives_a_killed_launcher(started: list[Running], scratch: Path) -> None:
    running = Running(TMPDIR=str(scratch))
    started.append(running)
    running.ready()
    running.process.kill()
    running.assert_all_gone()
