"""How an answer goes out: whole, or as server-sent events while it grows; and how a caller is seen to go away.

Knows ASGI and events, not what they say. An error after the first token is an event too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from pagewire.core.errors import Cancelled, EngineFailed, PagewireError, named
from pagewire.router.events import Chunk, Event, Finished
from pagewire.router.http_exchange import id_headers
from pagewire.router.http_protocol import Outlet
from pagewire.router.openai import Call

log = logging.getLogger(__name__)

GONE = "the client went away"
HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


class Outgoing(Protocol):
    """An answer as bytes while it grows."""

    is_over: bool

    def take(self, event: Event) -> bytes:
        """Return what goes out now that this event came."""
        ...

    def broken(self, error: PagewireError) -> bytes:
        """Return how it ends in an error."""
        ...


class Form(Protocol):
    """How an endpoint answers a call."""

    @property
    def call(self) -> Call:
        """What was asked."""
        ...

    def whole(self, chunks: Sequence[Chunk], finished: Sequence[Finished]) -> dict[str, Any]:
        """Return the body of an answer that does not stream; `finished` are in the order of the prompts."""
        ...


class EventStream:
    """An answer as server-sent events, as a response; a sink too, once it is under way, if it has an `outlet`.

    Whatever ends it, a caller who is still there is told by name.
    """

    def __init__(self, stream: Outgoing, request_id: str, outlet: Outlet | None = None) -> None:
        self._stream = stream
        self._request_id = request_id
        self._outlet = outlet

    async def begin(self, events: AsyncGenerator[Event, None]) -> None:
        """Wait for the first event; raises what ends the request before it."""
        self._events = events
        self._first = await anext(events)

    @property
    def is_open(self) -> bool:
        """True once the answer has begun to go out, while its caller takes it in."""
        return self._outlet is not None and self._outlet.is_open

    def put(self, chunk: Chunk) -> None:
        """Send a chunk, after all that came before."""
        if self._outlet is not None and (part := self._stream.take(chunk)):
            self._outlet.write(part)

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the response; the events are closed with it."""
        async with aclosing(self._events):
            names = [(name.encode(), each.encode()) for name, each in id_headers(self._request_id).items()]
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *names]})
            await self._send(send)

    async def _send(self, send: Send) -> None:
        stream, event = self._stream, self._first
        try:
            while True:
                if part := stream.take(event):
                    await send(_body(part, is_last=stream.is_over))
                if stream.is_over:
                    return
                event = await anext(self._events)
        except Exception as error:
            if not isinstance(error, PagewireError):
                log.exception("the answer to %s broke off", self._request_id, extra={"request_id": self._request_id})
            await send(_body(stream.broken(named(error)), is_last=True))


def _body(part: bytes, *, is_last: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": part, "more_body": not is_last}


async def whole(answer: Form, events: AsyncGenerator[Event, None]) -> dict[str, Any]:
    """Return the body of an answer that does not stream."""
    chunks: list[Chunk] = []
    finished: list[Finished] = []
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Chunk):
                chunks.append(event)
            elif isinstance(event, Finished):
                finished.append(event)
            if len(finished) == len(answer.call.asks):
                return answer.whole(chunks, sorted(finished, key=lambda each: each.first_index))
    raise EngineFailed("the request ended without an answer")


@asynccontextmanager
async def unless_gone(receive: Receive) -> AsyncGenerator[None]:
    """Cancel what the calling task does within, and raise Cancelled, where its caller disconnects meanwhile."""
    task = asyncio.current_task()
    assert task is not None
    is_within = True

    def gone(watcher: asyncio.Task[None]) -> None:
        if is_within and not watcher.cancelled():
            task.cancel(GONE)

    watcher = asyncio.create_task(_disconnect(receive))
    watcher.add_done_callback(gone)
    try:
        yield
    except asyncio.CancelledError as error:
        if GONE not in error.args:
            raise
        task.uncancel()
        raise Cancelled(GONE) from None
    finally:
        is_within = False
        watcher.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
