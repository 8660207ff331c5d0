"""The answers to several prompts of one request, as if they were the answers to one.

Each prompt is a request of its own. Choices are numbered prompt by prompt. Invariant: all are running, or none is: one
that fails, or a caller that goes away, ends the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from pagewire.router.events import Chunk, Event, Finished


async def together(streams: Sequence[AsyncGenerator[Event, None]], n: int) -> AsyncGenerator[Event, None]:
    """Yield the events of all, `n` choices each, as they come; raises what the first to fail raised."""
    told: asyncio.Queue[Event | Exception] = asyncio.Queue(len(streams))
    tasks = [asyncio.create_task(_tell(stream, told, place * n)) for place, stream in enumerate(streams)]
    left = len(streams)
    try:
        while left:
            event = await told.get()
            if isinstance(event, Exception):
                try:
                    raise event
                finally:
                    del event  # or it and this frame, and so the prompts, would keep each other
            left -= isinstance(event, Finished)
            if not left:  # its caller is free to go once it has the last event: nothing is left to wait for then
                await asyncio.gather(*tasks)
            yield event
    finally:
        if running := [task for task in tasks if not task.done()]:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _tell(stream: AsyncGenerator[Event, None], told: asyncio.Queue[Event | Exception], first: int) -> None:
    async with aclosing(stream):
        try:
            async for event in stream:
                if isinstance(event, Chunk):
                    await told.put(replace(event, index=first + event.index))
                else:
                    await told.put(replace(event, first_index=first))
        except Exception as error:  # raised again where the events are taken
            await told.put(error)
