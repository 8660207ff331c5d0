"""A source with its pool on CUDA device 0, in a process of its own, for tests: prints its card as hex, then obeys.

    "write N"  fill block N with N + 100, behind a wait on the writing stream; answers the tag of that write
    "close"    let go of the stream; answers "closed"

Its pool begins as `transport_rigs.pool(filled=True)`.
"""

from __future__ import annotations

import asyncio
import sys

import torch
from device_pools import device_pool

from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports.cuda_ipc import CudaIpcOutlet

WAIT_CYCLES = 50_000_000  # of the device's clock: some 30 ms, many times what a copy needs to begin


async def main() -> None:
    """Serve until stdin ends."""
    memory = device_pool(filled=True)
    outlet = CudaIpcOutlet(memory)
    print((await outlet.open(b"")).hex(), flush=True)
    writing = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    while line := await asyncio.to_thread(sys.stdin.readline):
        match line.split():
            case ["write", number]:
                with torch.cuda.stream(writing):
                    torch.cuda._sleep(WAIT_CYCLES)  # type: ignore[no-untyped-call]
                    memory.parts[0][int(number)].fill_(int(number) + 100)
                memory.wrote(writing)
                print(outlet.tag(Batch(ShipmentKey(1, 1), 0, (int(number),))), flush=True)
            case ["close"]:
                outlet.close()
                print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
