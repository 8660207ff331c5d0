"""A prefill pod is killed while it ships, and another goes on: it fetches what landed and computes only the rest.

Real processes, 2P1D, over one transport: `test_kills.py` has a prefill pod fetch from a decode pod by each, and
`test_coming_and_going.py` has others ship by each beside one that is killed. That the rest is computed there, and not
where it decodes, is a comparison of seconds: a prompt is waited for by all that decodes beside it, and here that is so
much that it outweighs what a busy machine makes of a pod's measure of itself and of a link's round trip, nearly always:
where it does not, all is tried again. How many tokens were computed is what engines counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kill_states import BLOCK, hold, shipping_beside_others, until
from kill_trials import FLAGS, MAX_TOKENS, Question, complete_the_set
from live_cluster import LiveCluster
from live_stream import Stream, completed, streaming

pytestmark = pytest.mark.cluster

NUM_OTHERS = 24  # sequences of one request: they begin and end at once
OTHERS_TOKENS = 480
NUM_MEASURED = 8
MAX_TRIES = 3
TRANSPORT = "shm"


@pytest.fixture
def cluster(model: Path) -> Iterator[LiveCluster]:
    """Start 2P1D."""
    cluster = LiveCluster(model, *FLAGS, "--prefill", "2", PAGEWIRE_TRANSPORTS=TRANSPORT)
    yield cluster
    assert cluster.stop() == 0


async def test_the_next_prefill_pod_computes_only_the_rest(cluster: LiveCluster, question: Question) -> None:
    for number in range(MAX_TRIES):
        if await is_taken_over(cluster, question, f"try {number}"):
            return
        await complete_the_set(cluster, num_prefill=2, num_decode=1)
    pytest.fail(f"in {MAX_TRIES} tries the rest was computed where it decodes")


async def measure(cluster: LiveCluster, tokens: list[int], prefill: list[dict[str, Any]], name: str) -> None:
    """Have prefill pods build prompts until each has measured itself."""
    for number in range(MAX_TRIES):
        salts = [f"{name}, measured {number} {each}" for each in range(NUM_MEASURED)]
        await asyncio.gather(*(completed(cluster, tokens, 2, salt) for salt in salts))
        if all(cluster.metrics(pod)["prompt_tokens_computed_total"] > 0 for pod in prefill):
            return
    pytest.fail("a prefill pod was never asked")


async def is_taken_over(cluster: LiveCluster, question: Question, name: str) -> bool:
    """Kill who ships; return whether another went on as it should, False where the decode pod found itself quicker."""
    tokens, right = question
    prefill, (d,) = ([pod for pod in cluster.alive() if pod["role"] == role] for role in ("prefill", "decode"))
    await measure(cluster, tokens, prefill, name)
    others: list[Stream] = []
    async with (
        streaming(cluster, [1] * BLOCK, OTHERS_TOKENS, f"{name}, others", n=NUM_OTHERS, temperature=1.0) as begin_all,
        streaming(cluster, tokens, MAX_TOKENS, f"{name}, taken over") as begin,
    ):

        async def begin_others() -> None:
            if others:
                await others[-1].leave()
                # Or those who go count as those who came, whose block comes beside those of the question.
                await until(lambda: cluster.metrics(d)["num_requests_running"] == 0, "the end of the others")
            others.append(begin_all())

        state = partial(shipping_beside_others, begin_others=begin_others, num_others=NUM_OTHERS)
        scene = await hold(cluster, state, begin)
        try:
            (next_one,) = [pod for pod in prefill if pod["id"] != scene.p["id"]]
            before = {pod["id"]: cluster.metrics(pod) for pod in (next_one, d)}
            lost = scene.num_lost
            cluster.kill(scene.p)
            await until(lambda: scene.num_lost > lost, "the loss")
        finally:
            scene.resume()
        await scene.stream.end()
        assert (scene.stream.error, scene.stream.tokens) == ({}, right)
        await others[-1].end()
        assert (others[-1].error, len(others[-1].tokens)) == ({}, NUM_OTHERS * OTHERS_TOKENS)
    after = {pod["id"]: cluster.metrics(pod) for pod in (next_one, d)}

    def counted(pod: dict[str, str], name: str) -> float:
        return after[pod["id"]][name] - before[pod["id"]][name]

    report = scene.stream.report
    assert report["causes"] in (["prefill_lost"], ["stream_lost"])  # whichever broke first
    cluster.assert_at_rest()
    if report["placement"] == "resumed":
        return False
    assert (report["placement"], report["prefill_pod"], report["transport"]) == ("remote", next_one["id"], TRANSPORT)
    landed = report["prefill_fetched_tokens"]
    assert landed > 0
    assert landed % BLOCK == 0
    assert (
        report["prefill_computed_tokens"] == counted(next_one, "prompt_tokens_computed_total") == len(tokens) - landed
    )
    assert report["decode_computed_tokens"] == counted(d, "prompt_tokens_computed_total") == 0
    assert counted(d, "exports_fetches_total") == 1
    assert counted(d, "exports_fetched_blocks_total") == landed // BLOCK
    return True
