"""`pagewire up --tls --api-keys`: a cluster whose callers and processes meet over TLS, and that asks for keys."""

from __future__ import annotations

import json
import random
import ssl
import subprocess
import sys
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from live_cluster import LiveCluster
from reference import Reference
from tiny_model import VOCAB_SIZE, build

from pagewire.client import Client, RetryPolicy, Tls
from pagewire.core.errors import Forbidden, RouterLost, Unauthenticated

pytestmark = pytest.mark.cluster

MAX_TOKENS = 8
POD = ("--dtype", "float32", "--kv-memory", "16MiB", "--chunk-size", "40", "--transports", "grpc", "--threads", "1")
ONCE = RetryPolicy(max_attempts=1)


def pagewire(*arguments: str, timeout_s: float = 60) -> str:
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=timeout_s).stdout


def test_one_command_starts_a_cluster_with_tls_and_keys(tmp_path: Path) -> None:
    folder, keys = build(tmp_path / "llama", "llama"), tmp_path / "keys.toml"
    acme = json.loads(pagewire("keys", "create", "acme", "--cache-quota", "0.5", "--json"))
    ops = json.loads(pagewire("keys", "create", "ops", "--operator", "--json"))
    keys.write_text(f"{acme['table']}\n{ops['table']}\n")
    draw = random.Random(5)
    asked = [[draw.randrange(VOCAB_SIZE) for _ in range(length)] for length in (33, 100)]
    expected = Reference(folder).greedy(asked, MAX_TOKENS)
    cluster = LiveCluster(folder, *POD, "--tls", "--api-keys", str(keys))
    try:
        ca = Path(cluster.said["tls"]["ca"])
        assert cluster.http.startswith("https://")
        context = ssl.create_default_context(cafile=ca)
        with httpx.Client(base_url=cluster.http, verify=context, timeout=60, trust_env=False) as client:
            assert client.get("/health").status_code == 200
            assert client.post("/v1/completions", json={"prompt": asked[0]}).status_code == 401
            with pytest.raises(httpx.TransportError):
                httpx.get(cluster.http.replace("https:", "http:") + "/health", trust_env=False, timeout=60)
        with Client(cluster.grpc, tls=Tls(ca=ca), api_key=acme["key"]) as sdk:
            for prompt, right in zip(asked, expected, strict=True):
                answer = sdk.generate(prompt, max_tokens=MAX_TOKENS, temperature=0, ignore_eos=True)
                assert answer.token_ids == tuple(right.tokens)
                assert answer.transfer is not None
                assert (answer.transfer.placement, answer.transfer.transport) == ("remote", "grpc")
            with pytest.raises(Forbidden):
                sdk.loads()
        costs = tmp_path / "costs.json"
        asks = ("slo", "calibrate", "--url", cluster.grpc, "--rounds", "1", "--output", str(costs))
        pagewire(*asks, "--tls-ca", str(ca), "--api-key", ops["key"], timeout_s=240)
        assert json.loads(costs.read_text())["about"]["source"] == "measured"
        with Client(cluster.grpc, tls=Tls(ca=ca), api_key=ops["key"]) as sdk:
            assert {pod.role for pod in sdk.loads()} == {"prefill", "decode"}
        with Client(cluster.grpc, tls=Tls(ca=ca), retry=ONCE) as sdk, pytest.raises(Unauthenticated):
            sdk.model_info()
        with Client(cluster.grpc, api_key=acme["key"], retry=ONCE) as sdk, pytest.raises(RouterLost):
            sdk.model_info()
        # A pod takes nobody without a certificate of the cluster's authority.
        pod = cluster.said["decode"][0]["grpc"]
        credentials = grpc.ssl_channel_credentials(ca.read_bytes())
        for channel in (grpc.insecure_channel(pod), grpc.secure_channel(pod, credentials)):
            with channel, pytest.raises(grpc.RpcError) as refused:
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        for each in cluster.pods():  # nor does it show its loads in the clear
            assert each["metrics"].startswith("https://")
            page = httpx.get(each["metrics"], verify=context, trust_env=False, timeout=60)
            assert page.status_code == 200
            assert "pagewire_kv_blocks" in page.text
            with pytest.raises(httpx.TransportError):
                httpx.get(each["metrics"].replace("https:", "http:"), trust_env=False, timeout=60)
        said = pagewire(
            "complete", "a", "--url", cluster.grpc, "--tls-ca", str(ca), "--api-key", acme["key"],
            "--max-tokens", "2", "--json",
        )  # fmt: skip
        assert json.loads(said)["usage"]["completion_tokens"] > 0
        asked_for = ["role", cluster.said["decode"][0]["id"], "prefill", "--router", cluster.http, "--tls-ca", str(ca)]
        told = subprocess.run(
            [sys.executable, "-P", "-m", "pagewire.cli.main", *asked_for, "--operator-key", ops["key"]],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert told.returncode == 1
        assert "is the last pod that decodes" in told.stderr  # so the router was reached, and knew the key
    finally:
        code = cluster.stop()
    assert code == 0
    assert not ca.exists(), "what was made for this cluster goes with it"
