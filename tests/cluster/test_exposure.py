"""What a cluster that was told nothing shows to the network and to whoever reads its logs: loopback, and no prompt.

Blocks travel by gloo here, whose rendezvous is one more port.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from live_cluster import LiveCluster
from tiny_model import VOCAB_SIZE, build

pytestmark = pytest.mark.cluster

FLAGS = (
    "--dtype", "float32", "--kv-memory", "16MiB", "--chunk-size", "40", "--prefill", "1", "--decode", "1",
    "--transports", "collective", "--log-level", "debug", "--log-format", "json",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(build(tmp_path_factory.mktemp("model") / "llama", "llama"), *FLAGS)
    yield cluster
    assert cluster.stop() == 0


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def listening(cluster: LiveCluster) -> set[Address]:
    """Return the addresses on which any process of the cluster takes connections."""
    processes = psutil.Process(cluster.process.pid).children(recursive=True)
    found = [each for process in processes for each in process.net_connections("inet")]
    return {address(each.laddr.ip) for each in found if each.status == psutil.CONN_LISTEN}


def address(text: str) -> Address:
    """Return the address that a text tells; gRPC's sockets tell those of IPv4 as IPv6 maps them."""
    told = ipaddress.ip_address(text)
    return (told.version == 6 and told.ipv4_mapped) or told


def test_every_socket_is_on_loopback_before_and_after_blocks_travelled(cluster: LiveCluster) -> None:
    assert all(each.is_loopback for each in listening(cluster))
    draw = random.Random(3)
    answer = cluster.complete([draw.randrange(VOCAB_SIZE) for _ in range(100)], 4, ignore_eos=True)
    assert answer.report["transport"] == "collective"
    found = listening(cluster)
    assert found
    assert all(each.is_loopback for each in found)


def test_logs_of_real_processes_tell_no_prompt(cluster: LiveCluster) -> None:
    marker, ids = "zebra-quartz", [311, 173, 257, 89, 401, 67, 223, 149] * 6
    with httpx.Client(base_url=cluster.http, timeout=60, trust_env=False) as client:
        for body in (
            {"prompt": ids, "max_tokens": 4},
            {"prompt": ids, "max_tokens": 4, "n": 3, "cache_salt": marker},
            {"prompt": ids, "max_tokens": 10**6},
            {"prompt": ids, "max_tokens": 4, "guided_regex": f"({marker}"},
            {"prompt": marker, "max_tokens": 4},
            {"prompt": ids, "max_tokens": 4, "stop": [marker], "user": marker},
        ):
            client.post("/v1/completions", json=body)
        health = client.get("/health").text
    metrics = [httpx.get(pod["metrics"], trust_env=False, timeout=60).text for pod in cluster.said["prefill"]]
    logs = {path.name: path.read_text() for path in Path(cluster.logs).glob("*.log")}
    assert len(logs) >= 3
    assert any('"request_id"' in text or '"text"' in text for text in logs.values())
    for name, text in {**logs, "health": health, "metrics": "".join(metrics)}.items():
        assert marker not in text, name
        assert "311, 173, 257" not in text, name
