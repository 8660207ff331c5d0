"""Pods join and leave, killed or drained, while others ship: not one request of a steady stream is lost or wrong.

Real processes, 2P2D, by every transport between processes that a CPU has. It cannot show how much slower the requests
were. Pods composed in one process come and go in `test_random_faults.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_states import until
from live_cluster import LiveCluster
from live_stream import Stream, completed
from reference import NEAR_TIE, Reference

pytestmark = pytest.mark.cluster

FLAGS = ("--dtype", "float32", "--kv-memory", "4MiB", "--chunk-size", "32", "--prefill", "2", "--decode", "2")
MAX_TOKENS = 40
AT_ONCE = 4


@pytest.fixture
def cluster(model: Path, transport: str) -> Iterator[LiveCluster]:
    """Start 2P2D; a pod that drains gives up what it has after a second."""
    cluster = LiveCluster(model, *FLAGS, "--prefill-mode", "remote", "--drain-s", "1", PAGEWIRE_TRANSPORTS=transport)
    yield cluster
    assert cluster.stop() == 0


async def test_pods_come_and_go_under_steady_requests(model: Path, cluster: LiveCluster, transport: str) -> None:
    prompts = [[(seed * 37 + i * i * 7 + i * (seed + 3)) % 256 for i in range(40 + 23 * seed)] for seed in range(12)]
    expected = Reference(model).greedy(prompts, MAX_TOKENS)
    right = {tuple(p): list(e.tokens) for p, e in zip(prompts, expected, strict=True) if min(e.margins) > NEAR_TIE}
    assert len(right) > len(prompts) // 2
    answers: list[Stream] = []
    is_over = False
    all_ask = asyncio.Event()
    all_ask.set()

    async def ask_again_and_again(number: int) -> None:
        mine = list(right)
        for turn in range(number, 10_000):
            if number > 0:
                await all_ask.wait()
            if is_over:
                return
            prompt = mine[turn % len(mine)]
            answer = await completed(cluster, list(prompt), MAX_TOKENS, f"{number}.{turn // len(mine) % 3}")
            assert (answer.error, answer.tokens) == ({}, right[prompt]), f"request {turn} of client {number}"
            answers.append(answer)

    async def some_answers() -> None:
        seen = len(answers)
        await until(lambda: len(answers) >= seen + 2 * AT_ONCE, "answers")

    async def replace(role: str, number: signal.Signals) -> None:
        """Have one more pod of a role, then one less."""
        old = next(pod for pod in cluster.alive() if pod["role"] == role)
        all_ask.clear()  # but one: what is only being started is in nobody's way, and needs the cores
        await asyncio.to_thread(cluster.join, role)
        all_ask.set()
        await until(lambda: cluster.usable()[role] == 3, f"a third {role} pod")
        await some_answers()
        os.kill(old["pid"], number)
        code = await asyncio.to_thread(cluster.exit_code, old)
        assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL)
        await until(lambda: cluster.usable()[role] == 2, f"a {role} pod less")
        await some_answers()

    async with asyncio.TaskGroup() as clients:
        for number in range(AT_ONCE):
            clients.create_task(ask_again_and_again(number))
        for role in ("prefill", "decode"):
            for how in (signal.SIGKILL, signal.SIGTERM):
                await replace(role, how)
        is_over = True
    remote = [answer.report for answer in answers if answer.report["placement"] == "remote"]
    assert {report["transport"] for report in remote if report["blocks_shipped"]} == {transport}
    cluster.assert_at_rest()
