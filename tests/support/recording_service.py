"""A pod's service that does nothing and takes note of what its front tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import grpc

from pagewire.core.engine_messages import StepDone
from pagewire.core.errors import EngineFailed
from pagewire.serving.sample import Sample


class Recorder:
    """A service with one request that is settled when the test says so."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.settled = asyncio.Event()

    def handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        return ()

    def on_step(self, step: StepDone) -> None:
        self.said.append("step")

    def counters(self) -> dict[str, float]:
        return {}

    def gauges(self) -> Iterator[Sample]:
        yield Sample("link_rtt_seconds", {"peer": "p1"}, 0.5)

    def hand_over(self) -> None:
        self.said.append("asked to hand over")
        self.settled.set()

    async def drained(self) -> None:
        self.said.append("asked to drain")
        await self.settled.wait()

    async def fail(self, error: EngineFailed) -> None:
        self.said.append(error.message)

    async def aclose(self) -> None:
        self.said.append("closed")
