"""What real engines store and evict is what a router hears that wants to, on the link that it has anyway.

Real pods over loopback; what a router makes of the events is in tests/router.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from engine_runs import ROOT
from pods import BLOCK, Pod, Pods, pods, prompt, until

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.cache_events import CacheEvents
from pagewire.core.messages import Heartbeat

SMALL = {"kv_memory_bytes": 24 * 12288}  # 24 blocks


def held(events: list[CacheEvents]) -> set[BlockHash]:
    """Add up what was told, and see that nothing is missing in between."""
    assert (events[0].part, events[0].num_parts) == (0, 1)
    blocks = set(events[0].hashes)
    for before, event in itertools.pairwise(events):
        assert event.sequence == before.sequence + 1
        assert blocks.issuperset(event.evicted)
        blocks.difference_update(event.evicted)
        blocks.update(event.hashes)
    return blocks


def cached(pod: Pod) -> set[BlockHash]:
    return {block.block_hash for block in pod.engine.engine.scheduler.pool.cached_chain()}


async def watched(cluster: Pods, pod: Pod) -> list[CacheEvents]:
    link = await cluster.router.link(pod)
    link.send(Heartbeat(wants_cache=True))
    events = cluster.router.cache_events[pod.pod_id]
    await until(lambda: len(events) > 0)
    return events


async def test_what_a_router_hears_adds_up_to_what_the_pods_hold(model: Path) -> None:
    async with pods(model, p=SMALL, d=SMALL) as cluster:
        first = prompt(1, 100)
        await cluster.ask("a", first)
        told = {pod: await watched(cluster, pod) for pod in (cluster.p, cluster.d)}
        for events in told.values():
            assert held(events) >= set(chain(ROOT, first, BLOCK))
        for number in range(2, 8):  # more than the pools hold
            await cluster.ask(f"b{number}", prompt(number, 100))
        for pod, events in told.items():
            await until(lambda pod=pod, events=events: held(events) == cached(pod))  # type: ignore[misc]
            assert sum(len(event.evicted) for event in events) > 0
            count = len(events)
            (await cluster.router.link(pod)).send(Heartbeat(wants_cache=False))
        await cluster.ask("c", prompt(9, 100))
        assert len(events) <= count + 1  # what was on its way, if anything
