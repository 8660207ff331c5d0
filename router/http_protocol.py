"""uvicorn's HTTP/1.1, with bounds on how long and how large a request may be on its way, and how long an answer waits.

Knows bytes and time, no route. Without this a caller that trickles a head or a body keeps its connection for ever, a
head that never ends takes all memory, and who reads nothing keeps its answer here. Invariants: from a connection's
start, or a request's first byte, to the request's last byte it takes no longer than `upload_s`, or the connection ends,
with 408 where nothing was answered yet; time in which we do not read does not count. While bytes wait to be taken, some
are within `stall_s` and a quarter, or the connection ends; who takes them slowly goes on. A connection that ends is
heard of by all requests on it, also by one behind which others wait to be answered: then within a quarter of `stall_s`.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pagewire.router.connection_state import is_over, num_taken, num_waiting, since_received_s
from pagewire.router.http_exchange import MAX_DISCARDED_BYTES

MAX_HEAD_BYTES = 64 << 10
MAX_MESSAGE_BYTES = MAX_DISCARDED_BYTES + (1 << 20)  # with its head, its chunks' sizes and what trails it

HERE_FOR = "pagewire.here_for_s"  # in a scope, once its request's last byte was read: seconds since that came
OUTLET = "pagewire.outlet"  # in a scope: the `Outlet` of its answer

FAREWELL_S = 0.5  # for the other end to take leave of TLS, as one that is idle does not
LAST_LOOK_S = 0.05  # from when a connection has been idle for long enough until it ends, unless something has come

# A server may pass over a wish for another protocol; the parser would leave the body unread for that protocol.
_UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
_TOO_LARGE = {True: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, False: HTTPStatus.REQUEST_ENTITY_TOO_LARGE}


class Outlet:
    """Where parts of an answer that streams go out at once, past what a message to uvicorn costs."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = weakref.ref(cycle)  # which has the scope that has this: an ended request is freed at once

    @property
    def is_open(self) -> bool:
        """True once the answer has begun, until it ends, while no more of it waits to be taken than uvicorn lets."""
        cycle = self._cycle()
        if cycle is None:
            return False
        is_over = cycle.response_complete or cycle.disconnected or cycle.flow.write_paused
        return cycle.response_started and cycle.chunked_encoding is True and not is_over

    def write(self, part: bytes) -> None:
        """Send a part that is not empty; only while it is open."""
        if (cycle := self._cycle()) is not None:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))


class _Unframed(RequestResponseCycle):
    """An answer to HTTP/1.0, which knows no chunks: one whose length is not said ends with its connection."""

    async def send(self, message: Any) -> None:
        """Send a part of it as it is."""
        if message["type"] == "http.response.start":
            self.chunked_encoding = False
        else:
            self.expected_content_length = len(message.get("body", b""))  # uvicorn holds a body to what is expected
        await super().send(message)


class BoundedProtocol(HttpToolsProtocol):
    """One connection; `bounded` makes the class that a server is told of."""

    upload_s = 60.0
    stall_s = 60.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience: asyncio.TimerHandle | None = None
        self._num_bytes = 0
        self._is_head = True
        self._next_look: asyncio.TimerHandle | None = None
        self._taken = 0
        self._took_s = 0.0  # when something was last taken, or nothing waited
        self._waited = False  # something did, at the last look
        self._farewell: asyncio.TimerHandle | None = None
        self._unanswered: list[RequestResponseCycle] = []

    @classmethod
    def bounded(cls, upload_s: float, stall_s: float) -> type[BoundedProtocol]:
        """Return the protocol whose requests may take `upload_s` seconds to come, and whose answers wait `stall_s`."""
        return type("BoundedProtocol", (cls,), {"upload_s": upload_s, "stall_s": stall_s})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()
        self._took_s = self.loop.time()
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        for timer in (self._next_look, self._farewell):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        for cycle in self._unanswered:  # uvicorn tells the last one alone
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Take in what came, unless there has been too much of it."""
        self._num_bytes += len(data)
        if self._is_head and _UPGRADE.search(data):
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"\r\nx-upgrade", head) + end + rest
        super().data_received(data)
        if self._num_bytes > (MAX_HEAD_BYTES if self._is_head else MAX_MESSAGE_BYTES):
            self._end(_TOO_LARGE[self._is_head])
        elif self._is_head and self._patience is None and self._num_bytes:
            self._wait()  # empty lines, say, which are no request's beginning and end the wait for the next one

    def _unsupported_upgrade_warning(self) -> None:
        # It lay in two reads, or behind another request, and its body is unread: that would be taken for a request.
        self._end(HTTPStatus.BAD_REQUEST)

    def shutdown(self) -> None:
        """Close the connection, once what is answered is out."""
        super().shutdown()
        if self.transport.is_closing():
            self._farewell = self.loop.call_later(FAREWELL_S, self._leave)

    def _leave(self) -> None:
        if not num_waiting(self.transport):
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a request."""
        super().on_message_begin()
        self._unset_keepalive_if_required()  # it may come in one read with the end of the one before
        self._is_head, self._num_bytes = True, 0
        self._wait_no_more()
        self._wait()

    def on_headers_complete(self) -> None:
        """Have the request taken up."""
        self._is_head = False
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = _Unframed
        cast(dict[str, Any], self.scope)[OUTLET] = Outlet(self.cycle)
        self._unanswered = [each for each in self._unanswered if not each.response_complete]
        self._unanswered.append(self.cycle)

    def on_message_complete(self) -> None:
        """The request is here, and has been for as long as our loop had others to look after."""
        self._wait_no_more()
        cast(dict[str, Any], self.scope)[HERE_FOR] = since_received_s(self.transport)
        self._is_head, self._num_bytes = True, 0
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # it was answered before it was here
            self._unset_keepalive_if_required()
            idle_s, close = self.timeout_keep_alive, self.timeout_keep_alive_handler
            self.timeout_keep_alive_task = self.loop.call_later(idle_s, close)

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection once our loop has looked whether it is: after a standstill it runs timers first."""
        self.timeout_keep_alive_task = self.loop.call_later(LAST_LOOK_S, super().timeout_keep_alive_handler)

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self.upload_s, self._impatient)

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _impatient(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self.flow.read_paused or (self._is_head and is_answering):  # it is we who do not take what is there
            self._wait()
        else:
            self._end(HTTPStatus.REQUEST_TIMEOUT)

    def _look_later(self) -> None:
        self._next_look = self.loop.call_later(self.stall_s / 4, self._look)

    def _look(self) -> None:
        taken, waits, now_s = num_taken(self.transport), num_waiting(self.transport) > 0, self.loop.time()
        # What has begun to wait since the last look has waited for less than it takes from one to the next.
        if taken > self._taken or not (waits and self._waited):
            self._taken, self._took_s = taken, now_s
        self._waited = waits
        is_unheard = self.flow.read_paused and is_over(self.transport)
        if is_unheard or now_s - self._took_s >= self.stall_s:
            self.transport.abort()
        else:
            self._look_later()

    def _end(self, status: HTTPStatus) -> None:
        self._wait_no_more()
        if self.transport.is_closing():
            return
        is_its_turn = all(each.response_complete for each in self._unanswered[:-1])
        if is_its_turn and (self.cycle is None or not self.cycle.response_started or self.cycle.response_complete):
            line = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(line.encode())
        self.transport.close()
