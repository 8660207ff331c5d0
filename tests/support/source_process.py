"""A source pod's bulk streams in a process of its own, for tests: serves a pool and does what stdin says.

    argv    the carrier's name, bytes of a message
    stdout  {"port": …} first; then {"answer": number, "error": …, "value": …} and {"event": "sent" | "lost", …}
    stdin   {"number": …, "do": "send" | "fence" | "connected" | "counters" | "spoil" | "fault", …}, a line each

Knows nothing of the test. Invariant: every line is answered, fences as soon as they return.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from typing import Any

from faulty_carrier import Faults
from transport_rigs import CARRIERS, FAST, SECRET, pool, serving

from pagewire.core.errors import PagewireError
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports.stream_sender import StreamSender


def say(**what: Any) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def on_lost(peer_id: str, keys: tuple[ShipmentKey, ...]) -> None:
    """Pass it on."""
    say(event="lost", peer_id=peer_id, keys=keys)


def on_sent(peer_id: str, key: ShipmentKey, indices: tuple[int, ...]) -> None:
    """Pass it on."""
    say(event="sent", peer_id=peer_id, key=key, indices=indices)


async def do(sender: StreamSender, memory: PoolMemory, faults: Faults, line: dict[str, Any]) -> Any:
    """Carry out a line; returns the answer."""
    match line["do"]:
        case "send":
            key = line["peer_id"], line["shipment_id"], line["generation"]
            sender.send(*key, [(index, block_id) for index, block_id in line["blocks"]])
        case "fence":
            await sender.fence(line["peer_id"], line["shipment_id"], line["generation"])
        case "connected":
            return sender.is_connected(line["peer_id"])
        case "counters":
            return dataclasses.asdict(sender.counters)
        case "spoil":
            memory.write(line["block_id"], bytes(memory.block_bytes))
        case "fault":
            setattr(faults, line["name"], faults.num_carried + line["messages"])
        case other:
            raise ValueError(other)
    return None


async def answer(sender: StreamSender, memory: PoolMemory, faults: Faults, line: dict[str, Any]) -> None:
    """Carry out a line and say what came of it."""
    try:
        say(answer=line["number"], value=await do(sender, memory, faults, line))
    except PagewireError as error:
        say(answer=line["number"], error=error.message)


async def main() -> None:
    """Serve until stdin ends."""
    carrier, message_bytes = sys.argv[1], int(sys.argv[2])
    memory, faults = pool(filled=True), Faults()
    carriers = (faults.around(CARRIERS[carrier]()),)
    sender = StreamSender(
        pod_id="P", secret=SECRET, memory=memory, carriers=carriers, on_lost=on_lost, on_sent=on_sent,
        message_bytes=message_bytes, times=FAST,
    )  # fmt: skip
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with serving(sender) as address, asyncio.TaskGroup() as tasks:
        say(port=int(address.rpartition(":")[2]))
        while text := await reader.readline():
            tasks.create_task(answer(sender, memory, faults, json.loads(text)))


if __name__ == "__main__":
    asyncio.run(main())
