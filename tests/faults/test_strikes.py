"""Each process is struck in each state of a request's life, as `test_kills.py` kills pods: the client has the right
tokens, or a connection that ended with the router that had it, and nothing stays behind.

Over one transport: who ends or stands still goes on with what it has, whatever that travels by.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_trials import KILLS, Question, start, strike_in
from live_cluster import LiveCluster
from strike_trials import TRIALS, Rig, rig, strike

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(model: Path) -> Iterator[LiveCluster]:
    """Start 1P2D; pods that end are replaced."""
    cluster = start(model, "shm")
    yield cluster
    assert cluster.stop() == 0


@pytest.fixture(scope="module")
def replaceable(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Start 1P2D whose router and Redis are replaced too."""
    with rig(model, tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.mark.parametrize(("state", "side"), KILLS)
@pytest.mark.parametrize("how", ["ended", "stopped"])
async def test_a_pod_struck_in_a_state(
    cluster: LiveCluster, question: Question, state: str, side: str, how: str
) -> None:
    await strike_in(cluster, question, state, side, how)


@pytest.mark.parametrize(
    ("who", "how", "state"), [pytest.param(*trial, id="{} {}-{}".format(*trial)) for trial in TRIALS]
)
async def test_another_process_struck_in_a_state(
    replaceable: Rig, question: Question, who: str, how: str, state: str
) -> None:
    await strike(replaceable, question, who, how, state)
