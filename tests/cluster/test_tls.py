"""Real processes that meet each other and Redis over mutual TLS and ask for a key: KV travels, token for token."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis_rig
from metric_names import CERTIFICATES, exposed, listed
from reference import Reference
from tiny_model import VOCAB_SIZE, build

from pagewire.cli import certs

pytestmark = pytest.mark.cluster

MAX_TOKENS = 8
START_S = 120.0
POD = ("--dtype", "float32", "--kv-memory", "16MiB", "--chunk-size", "40", "--transports", "grpc", "--threads", "1")


class Started:
    """One process of the cluster; `said` is its JSON line."""

    def __init__(self, role: str, log: Path, *flags: str, **environ: str) -> None:
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pagewire.cli.main", role, *flags],
                stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1", **environ},
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, log.read_text()
        self.said: dict[str, Any] = json.loads(line)


@contextlib.contextmanager
def cluster(folder: Path, tls: Path, logs: Path, keys: Path) -> Iterator[list[dict[str, Any]]]:
    """Start a prefill pod, a decode pod and a router that know each other by certificates; yields what they say."""
    started: list[Started] = []
    known = redis_rig.certificates(logs / "redis")  # of an authority of its own
    with redis_rig.server(redis_rig.REDIS, logs / "redis", mutual=known) as redis:
        environ = {"PAGEWIRE_CLUSTER_SECRET": "s" * 32, "PAGEWIRE_REDIS_URL": redis.url}
        files = zip(("--redis-ca", "--redis-cert", "--redis-key"), known, strict=True)
        common = ["--model", str(folder), "--port", "0", "--tls-ca", str(tls / "ca.pem")]
        common += [str(each) for pair in files for each in pair]
        try:
            for role, name, flags in (
                ("prefill", "pod", POD),
                ("decode", "pod", POD),
                ("router", "router", ("--grpc-port", "0", "--api-keys", str(keys))),
            ):
                shown = ("--tls-cert", str(tls / f"{name}.pem"), "--tls-key", str(tls / f"{name}.key"))
                started.append(Started(role, logs / f"{role}.log", *common, *shown, *flags, **environ))
            yield [each.said for each in started]
            for each in reversed(started):
                each.process.send_signal(signal.SIGTERM)
                assert each.process.wait(60) == 0
        finally:
            for each in started:
                each.process.kill()
                each.process.communicate()


def test_a_prompt_is_shipped_between_processes_over_mutual_tls(tmp_path: Path) -> None:
    folder, tls = build(tmp_path / "llama", "llama"), tmp_path / "tls"
    certs.make(tls)
    draw = random.Random(5)
    asked = [[draw.randrange(VOCAB_SIZE) for _ in range(length)] for length in (33, 100)]
    expected = Reference(folder).greedy(asked, MAX_TOKENS)
    made = subprocess.run(
        [sys.executable, "-P", "-m", "pagewire.cli.main", "keys", "create", "acme", "--json"],
        stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    key = json.loads(made.stdout)
    keys = tmp_path / "keys.toml"
    keys.write_text(f"[tenants.acme]\nkeys = ['{key['line']}']\n")
    context = ssl.create_default_context(cafile=tls / "ca.pem")
    with (
        cluster(folder, tls, tmp_path, keys) as (_, decode, router),
        httpx.Client(base_url=router["http"], verify=context, timeout=60) as client,
    ):
        assert router["http"].startswith("https://")
        give_up_s = time.monotonic() + START_S
        while (health := client.get("/health")).json()["pods"] != {"prefill": 1, "decode": 1, "colocated": 0}:
            assert time.monotonic() < give_up_s, health.text
            time.sleep(0.1)
        body = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        assert client.post("/v1/completions", json={**body, "prompt": asked[0]}).status_code == 401
        for prompt, right in zip(asked, expected, strict=True):
            answer = client.post(
                "/v1/completions",
                json={**body, "prompt": prompt, "pagewire": {"timeline": True}},
                headers={"authorization": f"Bearer {key['key']}"},
            ).json()
            assert tuple(answer["choices"][0]["token_ids"]) == tuple(right.tokens)
            report = answer["pagewire"]["report"]
            assert (report["placement"], report["transport"]) == ("remote", "grpc")
            assert report["blocks_shipped"] == report["manifest_blocks"] > 0
        for shown, name in (("/metrics", "router"), (decode["metrics"], "pod")):
            told = client.get(shown, headers={"authorization": f"Bearer {key['key']}"}).text
            (line,) = [each for each in told.splitlines() if f'file="{tls / name}.pem"' in each]
            assert float(line.rpartition(" ")[2]) == pytest.approx(time.time() + 30 * 86_400, abs=600)
            metric = line.partition("{")[0]
            assert metric.endswith(CERTIFICATES)
            assert exposed(told)[metric] == (listed()[metric].kind, listed()[metric].labels)
