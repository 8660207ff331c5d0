"""Either side of a shipment is killed in each of its states: the client has the right tokens, and nothing stays behind.

Real processes, held in a state by stopping them. Which pods have which prefix is still known afterwards: the index is
asked, and proved by what was found in the cache. It cannot show a lost machine: a killed process's sockets close.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_states import BLOCK, handed_over, hold, until
from kill_trials import KILLS, MAX_TOKENS, Question, assert_well, complete_the_set, start, strike_in
from live_cluster import LiveCluster
from live_stream import completed, streaming

from pagewire.client import Client
from pagewire.client.cluster import PodLoad

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", params=["grpc", "tcp", "shm", "nixl", "collective"])
def cluster(model: Path, request: pytest.FixtureRequest) -> Iterator[LiveCluster]:
    """Start 1P2D; pods that are killed are replaced."""
    cluster = start(model, request.param)
    yield cluster
    assert cluster.stop() == 0


@pytest.mark.parametrize(("state", "side"), KILLS)
async def test_a_pod_killed_in_a_state(cluster: LiveCluster, question: Question, state: str, side: str) -> None:
    await strike_in(cluster, question, state, side)


async def test_sigterm_in_mid_stream_loses_and_repeats_nothing(cluster: LiveCluster, question: Question) -> None:
    await complete_the_set(cluster)
    tokens, right = question
    async with streaming(cluster, tokens, MAX_TOKENS, "drained") as begin:
        scene = await hold(cluster, handed_over, begin)
        given_up = len(scene.stream.tokens)
        scene.resume()
        stream, old = scene.stream, scene.d
        await stream.end()
        assert (stream.error, stream.tokens, stream.said["attempts"]) == ({}, right, 2)
        # All but the last, partial block was fetched: what was computed once is not computed again.
        report, known = stream.report, len(tokens) + given_up
        assert report["decode_pod"] == scene.next["id"]
        assert report["decode_fetched_tokens"] >= (known - 1) // BLOCK * BLOCK
        assert report["decode_computed_tokens"] <= BLOCK + len(right) - given_up
    assert cluster.exit_code(old) == 0
    await complete_the_set(cluster)
    await assert_well(cluster, question, "drained")


async def test_a_conversation_recomputes_no_earlier_answer(cluster: LiveCluster, question: Question) -> None:
    """Over HTTP, by the counted tokens: what decoding left in D's pool, P fetches and D finds."""
    await complete_the_set(cluster)
    said, held = question[0][:150], 0
    with Client(cluster.grpc) as client:
        for turn in range(3):
            stream = await completed(cluster, said, 50, "conversation")
            assert stream.error == {}
            report = stream.report
            spared = report["prefill_cached_tokens"] + report["prefill_fetched_tokens"]
            assert max(spared, report["decode_cached_tokens"]) >= held
            assert report["prefill_computed_tokens"] + report["decode_computed_tokens"] <= len(said) - held
            held = (len(said) + len(stream.tokens) - 1) // BLOCK * BLOCK  # the last token's KV was never needed
            said = said + stream.tokens + question[0][turn * 10 : turn * 10 + 10]
            # Or it may take the other decode pod, which computes for nobody as far as it knows.
            await until(lambda: not any(map(_is_busy, client.loads())), "the router has heard of the answer's end")
    cluster.assert_at_rest()


def _is_busy(pod: PodLoad) -> bool:
    return bool(pod.in_flight or pod.load is None or pod.load.num_running or pod.load.num_waiting)
