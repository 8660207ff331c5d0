"""A cluster each of whose pods is two ranks: tokens as ever, and a rank that is lost takes its pod with it, no request.

That the pods of a cluster have ranks is seen by their processes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from in_moments import standing_still
from kill_states import until
from live_cluster import LiveCluster
from live_stream import streaming
from reference import Reference
from tiny_model import VOCAB_SIZE, build

pytestmark = pytest.mark.cluster

FLAGS = ("--dtype", "float32", "--kv-memory", "16MiB", "--chunk-size", "40", "--decode", "2", "--tensor-parallel", "2")
MAX_TOKENS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model whose heads two ranks can share."""
    return build(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture
def cluster(folder: Path) -> Iterator[LiveCluster]:
    """Start 1P2D."""
    cluster = LiveCluster(folder, *FLAGS)
    yield cluster
    assert cluster.stop() == 0


def ranks(pod: dict[str, int]) -> list[psutil.Process]:
    """Return the engine processes of a pod, rank 0 first."""
    (engine,) = psutil.Process(pod["pid"]).children()
    return [engine, *engine.children()]


async def test_the_answer_is_the_references_and_a_lost_rank_costs_no_token(folder: Path, cluster: LiveCluster) -> None:
    draw = random.Random(3)
    asked = [[draw.randrange(VOCAB_SIZE) for _ in range(length)] for length in (33, 64, 100, 150)]
    expected = [list(each.tokens) for each in Reference(folder).greedy(asked, MAX_TOKENS)]
    answers = await cluster.complete_all(asked, MAX_TOKENS, concurrency=2, ignore_eos=True)
    assert [list(answer.tokens) for answer in answers] == expected
    assert all(answer.report["placement"] == "remote" for answer in answers)
    assert [len(ranks(pod)) for pod in cluster.alive()] == [2, 2, 2]
    decode = [pod for pod in cluster.alive() if pod["role"] == "decode"]
    engines = [engine for pod in decode for engine in ranks(pod)]  # to find them may take longer than the answer
    async with streaming(cluster, asked[0], MAX_TOKENS, "interrupted") as begin:
        stream = begin()
        await stream.heard(5)
        with standing_still(engines):
            (pod,) = [pod for pod in decode if cluster.metrics(pod)["num_requests_running"]]
            rank_0, follower = ranks(pod)
            follower.kill()
        await stream.end()
    assert (stream.error, stream.tokens, stream.said["attempts"]) == ({}, expected[0], 2)
    await until(lambda: not rank_0.is_running() and not psutil.pid_exists(pod["pid"]), "the end of the pod")
    assert cluster.exit_code(pod) not in (0, None)
    cluster.assert_at_rest()


def test_a_model_whose_heads_do_not_divide_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="tensor_parallel 2: num_kv_heads 1 is no multiple of it"):
        LiveCluster(build(tmp_path / "llama", "llama_wide_heads"), *FLAGS)
