"""A cluster that is started anew on a folder finds what the one before it cached there, however that one ended."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from live_cluster import LiveCluster

from pagewire.core.sampling import SamplingParams
from pagewire.engine import LLM

pytestmark = pytest.mark.cluster

PROMPTS = [[1, 2, 3, 4, 5, 6, 7] * 30, [9, 8, 7] * 40, [11] * 100]
NUM_TOKENS = 20
MOST = [(len(prompt) - 1) // 16 * 16 for prompt in PROMPTS]
FLAGS = ("--dtype", "float32", "--kv-memory", "8MiB", "--host-kv-memory", "16MiB")


@pytest.mark.parametrize("pods", [("--colocated", "1"), ("--decode", "2", "--prefill-mode", "remote")])
def test_what_was_cached_outlives_the_cluster(tmp_path: Path, pods: Sequence[str]) -> None:
    model, folder = tiny_model.build(tmp_path / "tiny"), tmp_path / "kept"
    with LLM(model, dtype="float32", kv_memory_bytes=8 << 20) as llm:
        sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        right = [one.token_ids for one in llm.generate(PROMPTS, sampling, progress=False)]

    @contextlib.contextmanager
    def running() -> Iterator[LiveCluster]:
        cluster = LiveCluster(model, *FLAGS, "--host-kv-dir", str(folder), *pods)
        try:
            yield cluster
        finally:
            ended = cluster.stop()
        assert ended == 0

    def ask(cluster: LiveCluster) -> list[dict[str, Any]]:
        answers = [cluster.complete(prompt, NUM_TOKENS, temperature=0, ignore_eos=True) for prompt in PROMPTS]
        assert [answer.tokens for answer in answers] == right
        return [answer.report for answer in answers]

    by = "prefill" if "--decode" in pods else "decode"
    with running() as cluster:
        assert [report[f"{by}_cached_tokens"] for report in ask(cluster)] == [0, 0, 0]
    files = sorted(path.name for path in folder.iterdir())
    assert files == [
        "blocks-0.kv",
        *(["blocks-1.kv", "blocks-2.kv"] if "--decode" in pods else []),
        "cluster_secret",
        "lock",
    ]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    with running() as cluster:
        assert [report[f"{by}_cached_tokens"] for report in ask(cluster)] == MOST  # a prefill pod has its own again
        for pod in cluster.pods():
            cluster.kill(pod)
    with running() as cluster:
        ask(cluster)
    assert sorted(path.name for path in folder.iterdir()) == files
