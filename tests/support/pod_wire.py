"""A wire in front of a pod, which freezes or breaks when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine

from pods import Pod

from pagewire.core.listeners import accepted_last, stop_accepting
from pagewire.core.messages import Candidate
from pagewire.serving.grpc_server import GrpcServer


class Wire:
    """A TCP proxy in front of a pod: `freeze` stops all bytes and closes nothing, `cut` breaks every connection."""

    def __init__(self, server: GrpcServer) -> None:
        self.address = ""
        self._target = server
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._connections: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._accepted: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._is_cut = False

    def freeze(self) -> None:
        """Let nothing through."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let all through again, what came meanwhile first."""
        self._flowing.set()

    def drop(self, share: Callable[[], bool] = lambda: True) -> None:
        """Break those connections that `share` says, asked of each, and take new ones."""
        for near, far in self._connections:
            if share():
                near.transport.abort()
                far.transport.abort()

    def cut(self) -> None:
        """Break what is connected, and refuse what comes."""
        assert self._server is not None
        self._is_cut = True
        stop_accepting(self._server)
        self.drop()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def aclose(self) -> None:
        """Stop."""
        assert self._server is not None
        self.cut()
        await accepted_last(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._accepted:
            writer.transport.abort()  # also where its task had not begun

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted.append(writer)
        self._go_on(self._connect(reader, writer))

    def _go_on(self, what: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target.port)
        except OSError:  # the pod is gone
            writer.transport.abort()
            return
        self._connections.append((writer, far_writer))
        if self._is_cut:  # meanwhile
            self.drop()
        for source, target in ((reader, far_writer), (far_reader, writer)):
            self._go_on(self._copy(source, target))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self._flowing.wait()
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass
        finally:
            target.transport.abort()


@contextlib.asynccontextmanager
async def wire_to(pod: Pod) -> AsyncIterator[tuple[Wire, Candidate]]:
    """Put a wire in front of a prefill pod; the candidate goes through it."""
    wire = Wire(pod.server)
    await wire.start()
    try:
        yield wire, Candidate(pod_id=pod.pod_id, address=wire.address)
    finally:
        await wire.aclose()
