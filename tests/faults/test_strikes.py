"""Either side of a shipment is ended, or stands still for a while, in each of its states, as `test_kills.py` kills it.

Over one transport: who ends or stands still goes on with what it has, whatever that travels by.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_trials import KILLS, Question, start, strike_in
from live_cluster import LiveCluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(model: Path) -> Iterator[LiveCluster]:
    """Start 1P2D; pods that end are replaced."""
    cluster = start(model, "shm")
    yield cluster
    assert cluster.stop() == 0


@pytest.mark.parametrize("strike", ["ended", "stopped"])
@pytest.mark.parametrize(("state", "side"), KILLS)
async def test_a_pod_struck_in_a_state(
    cluster: LiveCluster, question: Question, state: str, side: str, strike: str
) -> None:
    await strike_in(cluster, question, state, side, strike)
