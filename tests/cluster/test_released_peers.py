"""Real processes of which one knows no more of the wire than the last release: prompts are shipped, token for token.

Each role is the old one once, so every pair of roles has met with the one old, and with the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis_rig
import released_wire
from reference import Reference
from tiny_model import VOCAB_SIZE, build

pytestmark = pytest.mark.cluster

MAX_TOKENS = 8
START_S = 120.0
POD = ("--dtype", "float32", "--kv-memory", "16MiB", "--chunk-size", "40", "--transports", "grpc", "--threads", "1")
FLAGS = {"prefill": POD, "decode": POD, "router": ("--grpc-port", "0")}
CURRENT = ("-m", "pagewire.cli.main")
OLD = (released_wire.__file__,)


def process(program: tuple[str, ...], log: Path, arguments: list[str], environ: Mapping[str, str]) -> Any:
    with log.open("w") as stderr:
        return subprocess.Popen(
            [sys.executable, "-P", *program, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environ},
        )  # fmt: skip


@contextlib.contextmanager
def cluster(folder: Path, logs: Path, old: str) -> Iterator[str]:
    """Start a pod of each role and a router, of which `old` is of the last release; yields the router's URL."""
    with redis_rig.server(redis_rig.VALKEY, logs) as redis:
        environ = {"PAGEWIRE_CLUSTER_SECRET": "s" * 32, "PAGEWIRE_REDIS_URL": redis.url}
        arguments = ["--model", str(folder), "--port", "0"]
        started = {
            role: process(
                OLD if role == old else CURRENT, logs / f"{role}.log", [role, *arguments, *FLAGS[role]], environ
            )
            for role in ("prefill", "decode", "router")
        }
        try:
            lines = {role: each.stdout.readline() for role, each in started.items()}
            for role, line in lines.items():
                assert line, (logs / f"{role}.log").read_text()
            yield json.loads(lines["router"])["http"]
            for each in reversed(started.values()):
                each.send_signal(signal.SIGTERM)
                assert each.wait(60) == 0
        finally:
            for each in started.values():
                each.kill()
                each.communicate()


@pytest.mark.parametrize("old", ["prefill", "decode", "router"])
def test_a_prompt_is_shipped_where_one_of_three_is_of_the_last_release(tmp_path: Path, old: str) -> None:
    folder = build(tmp_path / "llama", "llama")
    draw = random.Random(7)
    asked = [[draw.randrange(VOCAB_SIZE) for _ in range(length)] for length in (33, 100)]
    expected = Reference(folder).greedy(asked, MAX_TOKENS)
    with cluster(folder, tmp_path, old) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        give_up_s = time.monotonic() + START_S
        while (health := client.get("/health")).json()["pods"] != {"prefill": 1, "decode": 1, "colocated": 0}:
            assert time.monotonic() < give_up_s, health.text
            time.sleep(0.1)
        body = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        for prompt, right in zip(asked, expected, strict=True):
            answer = client.post("/v1/completions", json={**body, "prompt": prompt, "pagewire": {"timeline": True}})
            said = answer.json()
            assert tuple(said["choices"][0]["token_ids"]) == tuple(right.tokens)
            report = said["pagewire"]["report"]
            assert (report["placement"], report["transport"]) == ("remote", "grpc")
            assert report["blocks_shipped"] == report["manifest_blocks"] > 0
