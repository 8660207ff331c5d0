"""Prompts through a disaggregated cluster whose KV travels by each transport that has to be named, token for token."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from live_cluster import LiveCluster
from reference import Reference
from tiny_model import VOCAB_SIZE, build

pytestmark = pytest.mark.cluster

MAX_TOKENS = 8


@pytest.mark.parametrize("name", ["tcp", "collective", "nixl"])
def test_tokens_are_exact_whatever_the_kv_travels_by(tmp_path: Path, name: str) -> None:
    folder = build(tmp_path / "llama", "llama")
    draw = random.Random(3)
    asked = [[draw.randrange(VOCAB_SIZE) for _ in range(length)] for length in (33, 64, 100, 150)]
    expected = Reference(folder).greedy(asked, MAX_TOKENS)
    flags = ("--dtype", "float32", "--kv-memory", "16MiB", "--block-size", "16", "--chunk-size", "40")
    cluster = LiveCluster(folder, *flags, PAGEWIRE_TRANSPORTS=name)
    answers = asyncio.run(cluster.complete_all(asked, MAX_TOKENS, concurrency=2, ignore_eos=True))
    assert [answer.tokens for answer in answers] == [each.tokens for each in expected]
    for answer in answers:
        assert answer.report["placement"] == "remote"
        assert answer.report["blocks_shipped"] == answer.report["manifest_blocks"] > 0
    cluster.assert_at_rest()
    logs = "".join(path.read_text() for path in cluster.logs.glob("*.log"))
    assert f"by {name}" in logs
    assert cluster.stop() == 0
