"""A prefill pod's bulk stream in a process of its own, for tests: serves a pool, sends what stdin says.

stdout: the port                      stdin: one line "shipment_id generation first_block num_blocks" each
"""

from __future__ import annotations

import asyncio
import sys

from transport_rigs import BLOCK_BYTES, FAST, SECRET, pool, serving

from pagewire.kvtransfer.transports.grpc import GrpcSender


async def main() -> None:
    """Serve until stdin ends."""
    sender = GrpcSender(
        pod_id="P", secret=SECRET, memory=pool(filled=True), on_lost=lambda _peer, _keys: None,
        message_bytes=4 * BLOCK_BYTES, times=FAST,
    )  # fmt: skip
    async with serving(sender) as address:
        sys.stdout.write(address.rpartition(":")[2] + "\n")
        sys.stdout.flush()
        while line := await asyncio.to_thread(sys.stdin.readline):
            shipment_id, generation, first, num = map(int, line.split())
            sender.send("D", shipment_id, generation, [(index, index) for index in range(first, first + num)])


if __name__ == "__main__":
    asyncio.run(main())
