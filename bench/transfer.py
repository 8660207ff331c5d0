"""How fast blocks go from one process's pool into another's over gRPC, beside bare gRPC and a raw TCP socket, same run.

Two processes on loopback, random bytes, rotating blocks, payload counted once, medians. Bare gRPC streams one constant
message of the same size, which the reader drops; the raw socket sends from the pool and receives into it, without
checksums: ceilings, not peers. `--json PATH` writes one object with the figures, the machine and the command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import sys
import time
from pathlib import Path

import grpc

from pagewire.kvtransfer.effects import Verdict
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import BlockMemory, Flow, ShipmentKey
from pagewire.kvtransfer.transports.grpc import CHANNEL_OPTIONS, GrpcReceiver, GrpcSender

SECRET = b"bench"
HOST = "127.0.0.1"
BARE_METHOD = "/bench.Bare/Stream"


def make_pool(block_bytes: int, num_blocks: int) -> PoolMemory:
    """A pool of random bytes."""
    return PoolMemory(
        memoryview(bytearray(os.urandom(block_bytes * num_blocks))), block_bytes=block_bytes, num_blocks=num_blocks
    )


async def serve(block_bytes: int, num_blocks: int, message_bytes: int) -> None:
    """The sending process: prints its ports, and sends the pool for each line on stdin: "tcp" or a shipment id."""
    memory = make_pool(block_bytes, num_blocks)
    sender = GrpcSender(
        pod_id="P", secret=SECRET, memory=memory, on_lost=lambda _peer, _keys: None, message_bytes=message_bytes
    )
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((sender.handler(), bare_handler(message_bytes, block_bytes * num_blocks)))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    with socket.create_server((HOST, 0)) as raw:
        print(port, raw.getsockname()[1], flush=True)
        connection, _ = await asyncio.to_thread(raw.accept)
        with connection:
            while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
                if line == "tcp":
                    await asyncio.to_thread(send_raw, connection, memory, num_blocks)
                else:
                    sender.send("D", int(line), 1, [(index, index) for index in range(num_blocks)])
    sender.close("done")
    await server.stop(0)


def bare_handler(message_bytes: int, num_bytes: int) -> grpc.GenericRpcHandler:
    """Answer each message with `num_bytes` bytes in messages of a constant: what gRPC itself can do."""
    message = os.urandom(message_bytes)

    async def stream(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while isinstance(await context.read(), bytes):
            for _ in range(num_bytes // message_bytes):
                await context.write(message)

    service, method = BARE_METHOD.strip("/").split("/")
    return grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(stream)})


def send_raw(connection: socket.socket, memory: BlockMemory, num_blocks: int) -> None:
    """Send the pool, block by block, straight from memory."""
    for block_id in range(num_blocks):
        connection.sendall(memory.read(block_id))


def receive_raw(connection: socket.socket, target: memoryview) -> None:
    """Fill `target` from the socket."""
    got = 0
    while got < target.nbytes:
        got += connection.recv_into(target[got:])


class PlacingSink:
    """Writes block i into block i, and says when all are there."""

    def __init__(self, memory: BlockMemory, num_blocks: int) -> None:
        self._memory = memory
        self._missing = num_blocks
        self.done = asyncio.Event()

    def deliver(
        self, shipment_id: int, generation: int, block_index: int, data: memoryview, is_intact: bool
    ) -> Verdict:
        """Place the block; see `Sink`."""
        if not is_intact:
            raise SystemExit(f"block {block_index} of {ShipmentKey(shipment_id, generation)} is corrupt")
        self._memory.write(block_index, data)
        self._missing -= 1
        if not self._missing:
            self.done.set()
        return Verdict.PLACE


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """Run both ways `repeats` times, alternating; returns medians in GB/s."""
    block_bytes, num_blocks = options.block_kib << 10, options.blocks
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", __file__, "--serve", "--block-kib", str(options.block_kib), "--blocks", str(num_blocks),
        "--message-kib", str(options.message_kib), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    ports = (await process.stdout.readline()).split()
    data = bytearray(block_bytes * num_blocks)
    memory = PoolMemory(memoryview(data), block_bytes=block_bytes, num_blocks=num_blocks)
    rates: dict[str, list[float]] = {"grpc": [], "bare-grpc": [], "tcp": []}
    flow = Flow(window_bytes=options.window_mib << 20, message_bytes=options.message_kib << 10)
    with socket.create_connection((HOST, int(ports[1]))) as connection:
        async with grpc.aio.insecure_channel(f"{HOST}:{int(ports[0])}", options=CHANNEL_OPTIONS) as channel:
            receiver = GrpcReceiver(
                channel, pod_id="D", sender_id="P", secret=SECRET, block_bytes=block_bytes,
                on_lost=lambda _peer, _keys: None, flow=flow,
            )  # fmt: skip
            keeper = asyncio.create_task(receiver.run())
            await receiver.connected(10)
            bare: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(BARE_METHOD)()
            num_bare = len(data) // flow.message_bytes
            for repeat in range(options.repeats + 1):  # the first warms up
                sink = PlacingSink(memory, num_blocks)
                receiver.register(repeat + 1, 1, sink)
                start_s = time.perf_counter()
                process.stdin.write(f"{repeat + 1}\n".encode())
                await sink.done.wait()
                rates["grpc"].append(len(data) / (time.perf_counter() - start_s) / 1e9)
                receiver.unregister(repeat + 1, 1)
                start_s = time.perf_counter()
                await bare.write(b"go")
                for _ in range(num_bare):
                    await bare.read()
                rates["bare-grpc"].append(num_bare * flow.message_bytes / (time.perf_counter() - start_s) / 1e9)
                start_s = time.perf_counter()
                process.stdin.write(b"tcp\n")
                await process.stdin.drain()
                await asyncio.to_thread(receive_raw, connection, memoryview(data))
                rates["tcp"].append(len(data) / (time.perf_counter() - start_s) / 1e9)
            bare.cancel()
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
    process.stdin.close()
    await process.wait()
    medians = {f"{way}-gb-per-s": statistics.median(found[1:]) for way, found in rates.items()}
    medians["grpc-over-bare-grpc"] = medians["grpc-gb-per-s"] / medians["bare-grpc-gb-per-s"]
    medians["grpc-over-tcp"] = medians["grpc-gb-per-s"] / medians["tcp-gb-per-s"]
    return medians


def main() -> None:
    """Parse, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--block-kib", type=int, default=360, help="KiB per block (default: SmolLM2-135M, bf16, 16 tokens)"
    )
    parser.add_argument("--blocks", type=int, default=400, help="blocks per repeat")
    parser.add_argument("--message-kib", type=int, default=2048, help="KiB per message aimed at")
    parser.add_argument("--window-mib", type=int, default=16, help="MiB in flight")
    parser.add_argument("--repeats", type=int, default=7, help="measured repeats; the median counts")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.block_kib << 10, options.blocks, options.message_kib << 10))
        return
    figures = asyncio.run(measure(options))
    for name, value in figures.items():
        print(f"{name:24} {value:8.2f}")
    if options.json:
        machine = {
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "grpc": grpc.__version__,
        }
        options.json.write_text(json.dumps({**figures, "machine": machine, "command": sys.argv}) + "\n")


if __name__ == "__main__":
    main()
