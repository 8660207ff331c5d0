"""A source pod's bulk streams in a process of its own, for tests: serves a pool and does what stdin says.

    argv    the carrier's name, bytes of a message
    stdout  {"port": …} first; then {"answer": number, "error": …, "value": …} and {"event": "sent" | "lost", …}
    stdin   {"number": …, "do": …, …}, a line each: the orders of `SourceEnd.do`

Knows nothing of the test. Invariant: every line is answered, fences as soon as they return.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from sources import SourceEnd
from transport_rigs import devices_of, serving

from pagewire.core.errors import PagewireError
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import ShipmentKey


def say(**what: Any) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def on_lost(peer_id: str, keys: tuple[ShipmentKey, ...], error: PagewireError) -> None:
    """Pass it on."""
    say(event="lost", peer_id=peer_id, keys=keys, cause=error.cause, message=error.message)


def on_carried(peer_id: str, batch: Batch) -> None:
    """Pass it on."""
    say(event="sent", peer_id=peer_id, key=batch.key, indices=tuple(batch.indices))


async def answer(source: SourceEnd, line: dict[str, Any]) -> None:
    """Carry out a line and say what came of it."""
    try:
        say(answer=line["number"], value=await source.do(line))
    except PagewireError as error:
        say(answer=line["number"], error=error.message)


async def main() -> None:
    """Serve until stdin ends."""
    source = SourceEnd(sys.argv[1], int(sys.argv[2]), on_lost)
    source.faults.on_carried = on_carried
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with serving(source.sender) as address, asyncio.TaskGroup() as tasks:
        say(port=int(address.rpartition(":")[2]))
        while text := await reader.readline():
            tasks.create_task(answer(source, json.loads(text)))


if __name__ == "__main__":
    with devices_of(sys.argv[1]):
        asyncio.run(main())
