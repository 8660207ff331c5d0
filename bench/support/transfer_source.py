"""The source of bench/transfer.py: a pool of random bytes, shipped by a carrier, over a socket, or by gloo.

A process of its own, or for `local` in the taker's (`serving`). As a process:

    argv    transports, KiB of a block, blocks in the pool
    stdout  a JSON line first: the ports; then one for each line of stdin
    stdin   "ship ID BLOCKS" | "wake" | "began" | "tcp BLOCKS PIECE" | "gloo PORT" | "send BLOCKS PIECE" | "cpu"

Every answer carries the moment at which it began (the monotonic clock, which both processes share). "ship" and "wake"
have none of their own, which would be written and read while something is on its way: "began" asks for it afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from pagewire.core.side_door import SideDoor
from pagewire.kvtransfer.carrier import Carrier
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import BlockMemory
from pagewire.kvtransfer.transports.offered import offered
from pagewire.kvtransfer.transports.stream import CHANNEL_OPTIONS
from pagewire.kvtransfer.transports.stream_sender import StreamSender

sys.path.append(str(Path(__file__).parent))

HOST = "127.0.0.1"
SECRET = b"bench"
BARE_METHOD = "/bench.Bare/Stream"


def make_pool(block_bytes: int, num_blocks: int) -> PoolMemory:
    """A sealed pool in a memfd, as an engine's is, every page of it touched."""
    fd = os.memfd_create("pagewire-bench", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, block_bytes * num_blocks)
    memory = PoolMemory.map(fd, block_bytes=block_bytes, num_blocks=num_blocks)
    os.close(fd)
    for block_id in range(num_blocks):
        memory.write(block_id, os.urandom(block_bytes))
    memory.seal()
    return memory


def send_raw(connection: socket.socket, memory: PoolMemory, num_blocks: int, piece_bytes: int) -> None:
    """Send blocks as they lie, in pieces of a message's size."""
    whole = memory.view[: num_blocks * memory.block_bytes]
    for start in range(0, whole.nbytes, piece_bytes):
        connection.sendall(whole[start : start + piece_bytes])


def bare_handler(memory: PoolMemory) -> grpc.GenericRpcHandler:
    """Blocks as they lie, on a stream with nothing but bytes: all that gRPC can give. One message asks for them."""

    async def serve(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        num_blocks, piece_bytes = map(int, (await context.read()).split())
        await context.write(struct.pack("<d", time.perf_counter()))
        whole = memory.view[: num_blocks * memory.block_bytes]
        for start in range(0, whole.nbytes, piece_bytes):
            await context.write(bytes(whole[start : start + piece_bytes]))

    service, method = BARE_METHOD.strip("/").split("/")
    return grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(serve)})


class Source:
    """What the lines ask for. The first who connects to `raw` is whom bytes are sent to without a transport."""

    def __init__(self, sender: StreamSender, memory: BlockMemory, raw: socket.socket, ports: dict[str, int]) -> None:
        self.ports = ports
        self._sender = sender
        self._memory = memory
        self._accepting = asyncio.create_task(asyncio.to_thread(raw.accept))
        self._gloo: Any = None
        self._began_s = 0.0

    async def do(self, what: str, *numbers: int) -> dict[str, float] | None:
        """Carry out a line; None: it is not answered."""
        began_s = time.perf_counter()
        match what:
            case "ship":
                blocks = [(index, index) for index in range(numbers[1])]
                self._began_s = time.perf_counter()
                self._sender.send("D", numbers[0], 1, blocks)
                return None
            case "wake":
                connection, _ = await self._accepting
                self._began_s = time.perf_counter()
                connection.send(b"!")
                return None
            case "began":
                began_s = self._began_s
            case "tcp":
                assert isinstance(self._memory, PoolMemory)
                connection, _ = await self._accepting
                began_s = time.perf_counter()
                await asyncio.to_thread(send_raw, connection, self._memory, *numbers)
            case "gloo":
                gloo = importlib.import_module("gloo")  # torch, only where it is measured
                self._gloo = await asyncio.to_thread(gloo.GlooPair, numbers[0], 0)
            case "send":
                assert isinstance(self._memory, PoolMemory)
                whole = self._memory.view[: numbers[0] * self._memory.block_bytes]
                await asyncio.to_thread(self._gloo.send, whole, numbers[1])
        return {"began": began_s, "cpu": time.process_time()}

    async def aclose(self) -> None:
        """Hang up."""
        connection, _ = await self._accepting
        connection.close()


@contextlib.asynccontextmanager
async def serving(carriers: Sequence[Carrier], memory: BlockMemory) -> AsyncIterator[Source]:
    """The source's end, with its streams up for whoever dials. Somebody has to connect to its raw port."""
    sender = StreamSender(pod_id="P", secret=SECRET, memory=memory, carriers=carriers)
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((sender.handler(),))
    if isinstance(memory, PoolMemory):
        server.add_generic_rpc_handlers((bare_handler(memory),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    with socket.create_server((HOST, 0)) as raw:
        source = Source(sender, memory, raw, {"grpc": port, "tcp": raw.getsockname()[1]})
        try:
            yield source
        finally:
            await source.aclose()
            sender.close("done")
            await server.stop(0)


def pool_for(transport: str, block_bytes: int, num_blocks: int) -> BlockMemory:
    """A pool where that transport wants it."""
    if transport != "cuda_ipc":
        return make_pool(block_bytes, num_blocks)
    pool: BlockMemory = importlib.import_module("device").make_pool(block_bytes, num_blocks)
    return pool


def carriers_of(transport: str) -> Sequence[Carrier]:
    """That transport alone, between processes."""
    return offered(transport, device="cuda" if transport == "cuda_ipc" else "cpu", door=SideDoor()).carriers


async def main() -> None:
    """Serve until stdin ends."""
    memory = pool_for(sys.argv[1], int(sys.argv[2]) << 10, int(sys.argv[3]))
    async with serving(carriers_of(sys.argv[1]), memory) as source:
        sys.stdout.write(json.dumps(source.ports) + "\n")
        sys.stdout.flush()
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := (await lines.readline()).decode().split():
            if answer := await source.do(line[0], *map(int, line[1:])):
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
