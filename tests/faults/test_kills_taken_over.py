"""A prefill pod is killed while it ships, and another goes on: it fetches what landed and computes only the rest.

Real processes, 2P1D. That the rest is computed there, and not where it decodes, is a comparison of seconds: a prompt is
waited for by all that decodes beside it, and here that is so much that it outweighs what a busy machine makes of a
pod's measure of itself and of a link's round trip. How many tokens were computed is what engines counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kill_states import BLOCK, hold, shipping_beside_others, until
from kill_trials import FLAGS, MAX_TOKENS, Question
from live_cluster import LiveCluster
from live_stream import Stream, completed, streaming

pytestmark = pytest.mark.cluster

NUM_OTHERS = 24
OTHERS_TOKENS = 480
NUM_MEASURED = 8


@pytest.fixture
def cluster(model: Path, transport: str) -> Iterator[LiveCluster]:
    """Start 2P1D."""
    cluster = LiveCluster(model, *FLAGS, "--prefill", "2", PAGEWIRE_TRANSPORTS=transport)
    yield cluster
    assert cluster.stop() == 0


async def test_the_next_prefill_pod_computes_only_the_rest(
    cluster: LiveCluster, question: Question, transport: str
) -> None:
    tokens, right = question
    (d,) = cluster.said["decode"]
    prefill = cluster.said["prefill"]
    await asyncio.gather(*(completed(cluster, tokens, 2, f"measured {number}") for number in range(NUM_MEASURED)))
    assert all(cluster.metrics(pod)["prompt_tokens_computed_total"] > 0 for pod in prefill)
    others: list[Stream] = []
    async with contextlib.AsyncExitStack() as stack:
        begin_other = [
            await stack.enter_async_context(streaming(cluster, [number] * BLOCK, OTHERS_TOKENS, f"other {number}"))
            for number in range(NUM_OTHERS)
        ]

        async def begin_others() -> None:
            others.extend(begin() for begin in begin_other)
            await until(lambda: cluster.metrics(d)["num_requests_running"] >= NUM_OTHERS, "others that decode")
            await until(lambda: all(not cluster.metrics(pod)["leases_held"] for pod in prefill), "the others' prompts")

        begin = await stack.enter_async_context(streaming(cluster, tokens, MAX_TOKENS, "taken over"))
        state = partial(shipping_beside_others, begin_others=begin_others, num_others=NUM_OTHERS // 2)
        scene = await hold(cluster, state, begin)
        try:
            (next_one,) = [pod for pod in prefill if pod is not scene.p]
            before = {pod["id"]: cluster.metrics(pod) for pod in (next_one, d)}
            lost = scene.num_lost
            cluster.kill(scene.p)
            await until(lambda: scene.num_lost > lost, "the loss")
        finally:
            scene.resume()
        await scene.stream.end()
        assert (scene.stream.error, scene.stream.tokens) == ({}, right)
        await asyncio.gather(*(other.end() for other in others))
        assert [other.error for other in others] == [{}] * len(others)
    after = {pod["id"]: cluster.metrics(pod) for pod in (next_one, d)}

    def counted(pod: dict[str, str], name: str) -> float:
        return after[pod["id"]][name] - before[pod["id"]][name]

    report = scene.stream.report
    assert (report["placement"], report["prefill_pod"], report["transport"]) == ("remote", next_one["id"], transport)
    assert report["causes"] in (["prefill_lost"], ["stream_lost"])  # whichever broke first
    landed = report["prefill_fetched_tokens"]
    assert landed > 0
    assert landed % BLOCK == 0
    assert (
        report["prefill_computed_tokens"] == counted(next_one, "prompt_tokens_computed_total") == len(tokens) - landed
    )
    assert report["decode_computed_tokens"] == counted(d, "prompt_tokens_computed_total") == 0
    assert counted(d, "exports_fetches_total") == 1
    assert counted(d, "exports_fetched_blocks_total") == landed // BLOCK
    cluster.assert_at_rest()
