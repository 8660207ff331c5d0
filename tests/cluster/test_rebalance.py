"""A cluster whose router balances prefill against decode pods by itself: there under one load, back under another."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
import tiny_model
from live_cluster import LiveCluster
from live_stream import completed

COOLDOWN_S = 2.0
RULES = {
    "REBALANCE": "on",
    "REBALANCE_QUEUE_S": "0.3",  # a few long prompts; never all the short ones together, on a busy machine either
    "REBALANCE_SEQUENCES": "12",  # more than all who ask with long prompts
    "REBALANCE_HIGH": "0.8",
    "REBALANCE_LOW": "0.7",
    "REBALANCE_HOLD_S": "0",
    "REBALANCE_COOLDOWN_S": f"{COOLDOWN_S}",
}
FLAGS = (
    *("--prefill", "1", "--decode", "2", "--dtype", "float32", "--max-model-len", "2048", "--kv-memory", "32MiB"),
    *("--chunk-size", "32", "--prefill-mode", "remote", "--drain-s", "5"),
)
SHIFT = re.compile(r"becomes a (prefill|decode) pod: (.*)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    model = tiny_model.build(tmp_path_factory.mktemp("llama"), "llama_long")
    cluster = LiveCluster(model, *FLAGS, **{f"PAGEWIRE_{name}": value for name, value in RULES.items()})
    yield cluster
    assert cluster.stop() == 0


def shifts(cluster: LiveCluster) -> list[str]:
    """Return the roles that pods were told to take, the first first."""
    return [found[1] for found in SHIFT.finditer(cluster.log("router"))]


async def under_load(cluster: LiveCluster, clients: int, prompt_tokens: int, max_tokens: int, roles: list[str]) -> None:
    """Ask until these are all changes there were, and for some cool-downs more; every answer is whole."""
    is_over = False

    async def ask(number: int) -> None:
        turn = 0
        while not is_over:
            turn += 1
            prompt = [(number * 31 + turn * 17 + i * i) % 256 for i in range(prompt_tokens)]
            answer = await completed(cluster, prompt, max_tokens, f"{prompt_tokens}.{number}.{turn}")
            assert (answer.error, len(answer.tokens)) == ({}, max_tokens)

    async with asyncio.TaskGroup() as tasks:
        for number in range(clients):
            tasks.create_task(ask(number))
        async with asyncio.timeout(90):
            while shifts(cluster) != roles:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await asyncio.sleep(3 * COOLDOWN_S)  # the load stays as it is, and so do the roles
        is_over = True


async def settled(cluster: LiveCluster, roles: dict[str, int]) -> None:
    """Return when there are so many pods of each role: on a busy machine one may take a while to come back."""
    async with asyncio.timeout(60):
        while await asyncio.to_thread(cluster.usable) != roles:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_pods_follow_the_load_there_and_back_and_stay_in_between(cluster: LiveCluster) -> None:
    assert await asyncio.to_thread(cluster.usable) == {"prefill": 1, "decode": 2}
    # Prompts that are over with their first token: they queue before the prefill pod and hold nothing elsewhere.
    await under_load(cluster, 8, 2000, 1, ["prefill"])
    await settled(cluster, {"prefill": 2, "decode": 1})
    await asyncio.sleep(3 * COOLDOWN_S)  # nor is it taken back because there is nothing to do any more
    assert shifts(cluster) == ["prefill"]
    await under_load(cluster, 24, 20, 400, ["prefill", "decode"])
    await settled(cluster, {"prefill": 1, "decode": 2})
    assert shifts(cluster) == ["prefill", "decode"]
    cluster.assert_at_rest()
