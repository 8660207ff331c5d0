"""GuideLLM and AIPerf put one load on a real cluster as `pagewire slo run` does, and tell the same medians.

Noise is measured: ours is run before, between and after the peer's runs, and the spread of its medians is what the
machine alone does. What differs by definition is shown to be told apart, so agreement says something.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
from live_cluster import LiveCluster
from load_peers import Load, Told, aiperf, guidellm, ours

pytestmark = [pytest.mark.cluster, pytest.mark.smollm2]

LOAD = Load(users=2, requests=16, input=256, output=16)
ROUNDS = 2
SEEDS = itertools.count(1)  # never one twice: its prompts would be in the cluster's cache
RESOLVED = 0.5  # of the lowest median: where ours alone spread wider, agreement would say nothing
WIDENED = 1.0  # by so many spreads on each side: few runs show but a part of what the machine does


@pytest.fixture(scope="module")
def cluster(smollm2: Path) -> Iterator[LiveCluster]:
    cluster = LiveCluster(smollm2, "--dtype", "float32", "--kv-memory", "1GiB")
    try:
        yield cluster
    finally:
        assert cluster.stop() == 0


def within_noise(theirs: float, runs: list[float]) -> bool:
    """Return whether a median lies among those of our runs, widened."""
    slack = WIDENED * (max(runs) - min(runs))
    return min(runs) - slack <= theirs <= max(runs) + slack


@pytest.mark.parametrize("peer", [guidellm, aiperf])
def test_medians_agree_within_noise(
    cluster: LiveCluster, smollm2: Path, tmp_path: Path, peer: Callable[..., Told]
) -> None:
    ours(cluster.http, LOAD, next(SEEDS), tmp_path)  # warms up
    own = [ours(cluster.http, LOAD, next(SEEDS), tmp_path)]
    theirs: list[Told] = []
    for _ in range(ROUNDS):
        theirs.append(peer(cluster.http, LOAD, next(SEEDS), tmp_path, model=smollm2))
        own.append(ours(cluster.http, LOAD, next(SEEDS), tmp_path))
    for told in (*own, *theirs):
        print(told)
        assert (told.requests, told.input_tokens, told.output_tokens) == (LOAD.requests, LOAD.input, LOAD.output)
    ttft, tpot = [each.ttft_ms for each in own], [each.tpot_ms for each in own]
    for runs in (ttft, tpot):
        assert max(runs) - min(runs) < RESOLVED * min(runs), "the machine is too busy to tell: run it again"
    assert within_noise(median(each.ttft_ms for each in theirs), ttft)
    assert within_noise(median(each.tpot_ms for each in theirs), tpot)
    with_first = [each.tpot_with_first_ms for each in theirs if each.tpot_with_first_ms is not None]
    assert len(with_first) == (ROUNDS if peer is guidellm else 0)
    if with_first:
        assert not within_noise(median(with_first), tpot)


def test_what_is_beyond_noise_is_told() -> None:
    assert within_noise(100.0, [99.0, 101.0])
    assert within_noise(103.0, [99.0, 101.0])
    assert not within_noise(103.1, [99.0, 101.0])
    assert not within_noise(96.9, [99.0, 101.0])
