"""gRPC's asyncio API, as much of it as links and bulk streams use, over the simulated network.

What the product calls is what grpc.aio has: channels, calls, servers, contexts, with their ways to end and to fail.
Knows nothing of what is in a message. Invariant: an RPC ends once at each side; a handler whose caller is gone is
cancelled, as grpc.aio does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import grpc

from simulated.loop import PROCESS
from simulated.network import End, Listener, Network

WINDOW = 64  # messages that may be unread before a writer waits
EDGES = {"/pagewire.link.v1.Links/Connect": "link", "/pagewire.kv.v1.Blocks/Stream": "bulk"}
_FINISHED = "the RPC is finished"


class _Status(Exception):
    """How an RPC ended, as it is said behind its messages."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code = code
        self.details = details


class _Read:
    """A word from the reader: so many messages were taken."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Stream:
    """What both sides of an RPC do with its messages."""

    def __init__(self, end: End) -> None:
        self.end = end
        end.on_message, end.on_end = self._arrived, self._broke
        self._inbox: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self._unread = 0  # by the other side
        self._to_tell = 0

    async def _next(self) -> Any:
        """Return the next message, or what stands in its place."""
        while not self._inbox:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message = self._inbox.popleft()
        self._to_tell += 1
        if self._to_tell >= WINDOW // 4:
            self.end.send(_Read(self._to_tell))
            self._to_tell = 0
        return message

    async def _put(self, message: Any) -> None:
        self._unread += 1
        self.end.send(message)
        while self._unread > WINDOW:
            waiting = asyncio.get_running_loop().create_future()
            self._writers.append(waiting)
            await waiting

    def _arrived(self, payload: Any) -> None:
        if isinstance(payload, _Read):
            self._unread -= payload.number
            self._wake_writers()
            return
        self._inbox.append(payload)
        self._wake_reader()

    def _broke(self, reason: str) -> None:
        raise NotImplementedError

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writers(self) -> None:
        while self._writers:
            waiting = self._writers.popleft()
            if not waiting.done():
                waiting.set_result(None)


class Call(_Stream):
    """A caller's side; see `grpc.aio.StreamStreamCall`."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self._status: _Status | None = None
        self._is_cancelled = False
        self._on_done: list[Callable[[Any], None]] = []

    async def read(self) -> Any:
        """See grpc.aio."""
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._status is not None and not self._inbox:
            return self._ended()
        message = await self._next()
        if self._is_cancelled:
            raise asyncio.CancelledError
        if isinstance(message, _Status):
            self._end(message)
            return self._ended()
        return message

    async def write(self, data: bytes) -> None:
        """See grpc.aio."""
        if self._is_cancelled or self._status is not None:
            raise asyncio.InvalidStateError(_FINISHED)
        await self._put(data)
        if self._status is not None:
            self._ended()

    def cancel(self) -> bool:
        """See grpc.aio."""
        if self._is_cancelled or self._status is not None:
            return False
        self._is_cancelled = True
        self._inbox.append(_Status(grpc.StatusCode.CANCELLED, "cancelled"))  # whoever reads hears of it
        self.end.close("the caller cancelled it")
        self._done()
        return True

    async def details(self) -> str:
        """See grpc.aio."""
        return self._status.details if self._status is not None else "cancelled"

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """See grpc.aio."""
        self._on_done.append(callback)

    def _ended(self) -> Any:
        assert self._status is not None
        if self._status.code is grpc.StatusCode.OK:
            return grpc.aio.EOF
        empty = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(self._status.code, empty, empty, details=self._status.details)

    def _end(self, status: _Status) -> None:
        if self._status is None and not self._is_cancelled:
            self._status = status
            self.end.close()
            self._done()

    def _done(self) -> None:
        self._wake_reader()
        self._wake_writers()
        for callback in self._on_done:
            callback(self)

    def _broke(self, reason: str) -> None:
        # What came before is still read, as from a socket's buffer.
        self._arrived(_Status(grpc.StatusCode.UNAVAILABLE, reason))
        self._wake_writers()


class Context(_Stream):
    """A handler's side; see `grpc.aio.ServicerContext`."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.task: asyncio.Task[None] | None = None
        self._code = grpc.StatusCode.OK
        self._details = ""
        self._is_over = False

    def peer(self) -> str:
        """See grpc.aio."""
        return self.end.peer.process.name

    async def read(self) -> Any:
        """See grpc.aio."""
        if self._is_over and not self._inbox:
            return grpc.aio.EOF
        message = await self._next()
        return grpc.aio.EOF if isinstance(message, _Status) else message

    async def write(self, data: bytes) -> None:
        """See grpc.aio."""
        if self._is_over:
            raise grpc.aio.UsageError(_FINISHED)
        await self._put(data)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        """See grpc.aio."""
        raise _Status(code, details)

    def set_code(self, code: grpc.StatusCode) -> None:
        """See grpc.aio."""
        self._code = code

    def set_details(self, details: str) -> None:
        """See grpc.aio."""
        self._details = details

    async def serve(self, behaviour: Callable[[Any, Any], Any]) -> None:
        """Run the handler, and say how it ended."""
        try:
            await behaviour(None, self)
            status = _Status(self._code, self._details)
        except _Status as aborted:
            status = aborted
        except asyncio.CancelledError:
            status = _Status(grpc.StatusCode.CANCELLED, "the handler was cancelled")
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": "a handler failed", "exception": error})
            status = _Status(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        self._is_over = True
        self.end.send(status)
        self.end.close()

    def _broke(self, reason: str) -> None:
        self._is_over = True
        self._arrived(_Status(grpc.StatusCode.CANCELLED, reason))
        self._wake_writers()
        if self.task is not None:
            self.task.cancel()


class Channel:
    """See `grpc.aio.Channel`."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self._calls: list[Call] = []

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """See grpc.aio."""
        for call in self._calls:
            call.cancel()
        self._calls.clear()

    def stream_stream(self, method: str) -> Callable[[], Call]:
        """See grpc.aio."""

        def call() -> Call:
            end = self._network.dial(PROCESS.get(), self._address, EDGES[method])
            made = Call(end)
            end.send(method)
            self._calls = [each for each in self._calls if not each.end.is_over]
            self._calls.append(made)
            return made

        return call


class Server:
    """See `grpc.aio.Server`. What is named 0 as a port is 1: a host of this network has one server."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._address = ""
        self._contexts: list[Context] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """See grpc.aio."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """See grpc.aio; nothing is asked that way here."""

    def add_insecure_port(self, address: str) -> int:
        """See grpc.aio."""
        host, _, port = address.rpartition(":")
        self._address = f"{host}:{int(port) or 1}"
        return int(port) or 1

    async def start(self) -> None:
        """See grpc.aio."""
        self._network.listen(self._address, Listener(PROCESS.get(), self._accept))

    async def stop(self, grace: float | None) -> None:
        """See grpc.aio."""
        self._network.hush(self._address, PROCESS.get())
        running = [each for each in self._contexts if each.task is not None and not each.task.done()]
        if grace and running:
            try:
                async with asyncio.timeout(grace):
                    await asyncio.gather(*(each.task for each in running if each.task), return_exceptions=True)
            except TimeoutError:
                pass
        for each in running:
            if each.task is not None:
                each.task.cancel()

    def _accept(self, end: End) -> None:
        context = Context(end)
        arrived = end.on_message

        def opened(method: Any) -> None:
            end.on_message = arrived
            details = SimpleNamespace(method=method, invocation_metadata=())
            found = (each.service(details) for each in self._handlers)
            handler = next((each for each in found if each is not None), None)
            if handler is None:
                end.send(_Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
                end.close()
                return
            behaviour: Any = handler.stream_stream  # type: ignore[attr-defined]
            context.task = asyncio.create_task(context.serve(behaviour))
            self._contexts = [each for each in self._contexts if each.task is None or not each.task.done()]
            self._contexts.append(context)

        end.on_message = opened
