"""Runs a front behind doors of its own, and ends its engine after it, as its process would."""

from __future__ import annotations

import contextlib

from pagewire.engine.front import Front, Ready, Service
from pagewire.serving.doors import Doors


async def run_front(front: Front, service: Service, on_ready: Ready) -> None:
    """Return when the front has drained; raises what it raises."""
    async with contextlib.AsyncExitStack() as ends:
        ends.push_async_callback(front.engine.close)
        doors = await Doors.open("127.0.0.1", 0, 0, credentials=front.wire.credentials())
        ends.push_async_callback(doors.close)
        await front.run(service, doors, on_ready)
