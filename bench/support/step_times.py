"""What a transfer at full rate does to the steps of the engine beside it: a real engine process, its front, a source.

This process is the pod's front: it hears the engine's steps and takes shipments into the engine's own pool, into blocks
that the engine does not use. The engine has a core; front and source share the others, where in a cluster the source is
another machine. Two times of each step: what the engine's own clock says that it computed ("engine"), and what lies
between two of its messages as the front reads them, where a front that is late to read counts against us.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import statistics
import sys
import time

import grpc
from processes import pin
from transfer_runs import PlacingSink
from transfer_source import HOST, SECRET

from pagewire.core.block_hash import root_hash
from pagewire.core.engine_messages import Add, StepDone
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.core.side_door import SideDoor
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig
from pagewire.kvtransfer.transports.offered import offered
from pagewire.kvtransfer.transports.stream import CHANNEL_OPTIONS
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver

NUM_SEQUENCES = 8
PROMPT_TOKENS = 128
MAX_TOKENS = 1500
SHIPMENT_BLOCKS = 256


async def step_times(model: str, transport: str, seconds: float) -> dict[str, float]:
    """Milliseconds of a step at the median and the 99th percentile, idle and beside a transfer; and its GB/s."""
    engine = await EngineClient.start(EngineConfig(model=model, role=Role.DECODE, kv_memory_bytes=1 << 30))
    process = None
    cores = sorted(os.sched_getaffinity(0))
    try:
        others = cores[1:] or cores
        pin(os.getpid(), others)  # with threads that gRPC keeps from an earlier measurement, and with the engine
        pin(engine.pid, cores[:1])
        layout = engine.ready.layout
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", __file__.replace("step_times", "transfer_source"), transport,
            str(layout.block_bytes >> 10), str(SHIPMENT_BLOCKS),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        pin(process.pid, others)
        return await _measure(engine, process, transport, seconds)
    finally:
        if process is not None:
            process.kill()
            await process.wait()
        await engine.close()
        pin(os.getpid(), cores)


async def _measure(
    engine: EngineClient, process: asyncio.subprocess.Process, transport: str, seconds: float
) -> dict[str, float]:
    assert process.stdout is not None
    assert process.stdin is not None
    ports = json.loads(await process.stdout.readline())
    await asyncio.open_connection(HOST, ports["tcp"])  # that nobody uses here
    dial = functools.partial(grpc.aio.insecure_channel, f"{HOST}:{ports['grpc']}", options=CHANNEL_OPTIONS)
    receiver = StreamReceiver(
        dial, pod_id="D", source_id="P", secret=SECRET, memory=engine.pool,
        carriers=offered(transport, door=SideDoor()).carriers, on_lost=lambda _peer, _keys, _error: None,
    )  # fmt: skip
    keeper = asyncio.create_task(receiver.run())
    await receiver.connected(30)
    figures: dict[str, float] = {}
    for number, condition in enumerate(("idle", "beside", "idle again", "beside again")):
        figures |= await _condition(engine, receiver, process.stdin, condition, number, seconds)
    keeper.cancel()
    await asyncio.gather(keeper, return_exceptions=True)
    return figures


async def _condition(
    engine: EngineClient, receiver: StreamReceiver, source: asyncio.StreamWriter, name: str, number: int, seconds: float
) -> dict[str, float]:
    moments: list[float] = []
    computed_ms: list[float] = []

    def on_step(step: StepDone) -> None:
        if len(step.records) == NUM_SEQUENCES:
            moments.append(time.perf_counter())
            computed_ms.append(step.elapsed_s * 1e3)

    engine.on_step = on_step
    root = root_hash(model_digest="bench", kv_fingerprint="bench")
    names = [f"{number}-{sequence}" for sequence in range(NUM_SEQUENCES)]
    for sequence, request_id in enumerate(names):
        tokens = tuple((sequence * 131 + number * 17 + at * 7) % 1000 for at in range(PROMPT_TOKENS))
        sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
        engine.add(Add(spec=SequenceSpec(request_id=request_id, tokens=tokens, sampling=sampling, root=root)))
    moved, start_s, end_s = 0, time.perf_counter(), time.perf_counter() + seconds
    shipment = number << 32
    while time.perf_counter() < end_s:
        if name.startswith("idle"):
            await asyncio.sleep(seconds)
            continue
        shipment += 1
        sink = PlacingSink(SHIPMENT_BLOCKS, engine.ready.num_blocks - SHIPMENT_BLOCKS)
        receiver.register(shipment, 1, sink)
        source.write(f"ship {shipment} {SHIPMENT_BLOCKS}\n".encode())
        await sink.done
        receiver.unregister(shipment, 1)
        moved += SHIPMENT_BLOCKS * engine.pool.block_bytes
    lasted_s = time.perf_counter() - start_s
    for request_id in names:
        await engine.abort(request_id)
    times_ms = [(after - before) * 1e3 for before, after in itertools.pairwise(moments)]
    figures = {
        f"{name} p50 ms": statistics.median(times_ms),
        f"{name} p99 ms": _p99(times_ms),
        f"{name} engine p50 ms": statistics.median(computed_ms),
        f"{name} engine p99 ms": _p99(computed_ms),
        f"{name} steps": float(len(times_ms)),
    }
    return figures | ({f"{name} GB/s": moved / lasted_s / 1e9} if moved else {})


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]
