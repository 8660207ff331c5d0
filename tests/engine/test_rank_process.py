"""An engine process of two ranks through its client: whichever rank dies, all end and nobody is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from engine_runs import greedy, spec
from patience import comes_true

from pagewire.core.engine_messages import Add, StepDone
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Role
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig

TinyModel = Callable[[str], Path]
WAIT_S = 60.0


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("victim", ["follower", "rank 0", "none"])
async def test_whichever_rank_dies_all_end(tiny: TinyModel, victim: str, is_busy: bool) -> None:
    config = EngineConfig(
        model=str(tiny("llama")), role=Role.COLOCATED, dtype="float32", kv_memory_bytes=4 << 20, max_model_len=256,
        threads=2, tensor_parallel=2,
    )  # fmt: skip
    client = await EngineClient.start(config)
    (follower,) = psutil.Process(client.pid).children()
    tokens: list[int] = []

    def hear(done: StepDone) -> None:
        tokens.extend(token for record in done.records for token in record.tokens)

    client.on_step = hear
    client.add(Add(spec=spec("a", range(50), greedy(200 if is_busy else 5))))
    assert await comes_true(lambda: len(tokens) >= 5, within_s=WAIT_S, every_s=0.005)
    if victim != "none":
        os.kill(follower.pid if victim == "follower" else client.pid, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            await client.exited.wait()
        assert client.exit_code not in (0, None)
        with pytest.raises(EngineFailed):
            client.add(Add(spec=spec("b", range(50), greedy(1))))
    await client.close()
    if victim == "none":
        assert client.exit_code == 0
    assert await comes_true(lambda: not follower.is_running(), within_s=WAIT_S, every_s=0.05)


async def test_a_pod_whose_ranks_have_a_pool_each_in_host_memory_is_refused(tiny: TinyModel) -> None:
    """Its front maps one file as one pool."""
    config = EngineConfig(model=str(tiny("llama")), role=Role.COLOCATED, device="cpu,cpu", tensor_parallel=2)
    with pytest.raises(EngineFailed, match="device cpu,cpu: the ranks of a pod have one pool in host memory"):
        await EngineClient.start(config)
