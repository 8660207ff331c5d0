"""The transports that have to be named: a pod killed while blocks are under way, which is where they differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_trials import Question, kill_in, start
from live_cluster import LiveCluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", params=["nixl", "collective"])
def cluster(model: Path, request: pytest.FixtureRequest) -> Iterator[LiveCluster]:
    """Start 1P2D; pods that are killed are replaced."""
    cluster = start(model, request.param)
    yield cluster
    assert cluster.stop() == 0


@pytest.mark.parametrize(
    ("state", "side"), [("shipping", "source"), ("shipping", "taker"), ("fencing", "taker"), ("fetching", "source")]
)
async def test_a_pod_killed_while_it_ships(cluster: LiveCluster, question: Question, state: str, side: str) -> None:
    await kill_in(cluster, question, state, side)
