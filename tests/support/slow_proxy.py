"""A proxy on loopback that lets bytes through late, slowly or in slices, or falls silent as a machine without power."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from pagewire.core.listeners import accepted_last


class SlowProxy:
    """Forwards to the port `target`, which new connections take as it is; answers come `delay_s` late, and never while
    it is None.

    Either way all goes in writes of `slice_bytes` at most, and at `bytes_per_s`, where these are more than 0; a read
    takes 64 KiB, and nothing is read while one is on its way. Once it is silenced nothing goes either way, no byte and
    no end of a connection, until it may speak again or all is cut.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.delay_s: float | None = 0.0
        self.slice_bytes = 0
        self.bytes_per_s = 0.0
        self.port = 0
        self._carries = asyncio.Event()
        self._carries.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection from now on."""
        self._writers.add(writer)
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()  # as nobody listens there
            return
        self._writers.add(to_writer)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._carry(reader, to_writer, late=False))
                tasks.create_task(self._carry(to_reader, writer, late=True))
        except* OSError:
            await self._carries.wait()
        finally:
            writer.close()
            to_writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, late: bool) -> None:
        while data := await reader.read(1 << 16):
            if late:
                while self.delay_s is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.sleep(self.delay_s)
            await self._carries.wait()
            if self.bytes_per_s:
                await asyncio.sleep(len(data) / self.bytes_per_s)
            step = self.slice_bytes or len(data)
            for start in range(0, len(data), step):
                writer.write(data[start : start + step])
                if self.slice_bytes:
                    await asyncio.sleep(0)  # or the kernel would hand them over as one
            await writer.drain()
        await self._carries.wait()
        writer.close()

    def silence(self) -> None:
        """Carry nothing any more, and say so to nobody."""
        self._carries.clear()

    def speak(self) -> None:
        """Carry all again, what was held back first."""
        self._carries.set()

    def clear(self) -> None:
        """Carry all again as a plain wire does."""
        self.delay_s, self.slice_bytes, self.bytes_per_s = 0.0, 0, 0.0
        self.speak()

    def cut(self) -> None:
        """Break all connections."""
        self._carries.set()
        for writer in self._writers:
            writer.transport.abort()

    async def end(self) -> None:
        """Break all connections, and wait until they are closed."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self.cut()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


@contextlib.asynccontextmanager
async def slow_proxy(target: int) -> AsyncIterator[SlowProxy]:
    """Run a proxy before `target`."""
    proxy = SlowProxy(target)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        await accepted_last(server)
        await proxy.end()
        await server.wait_closed()
