"""The product's carriers, where a copy takes its time and little fits on the way, as with large blocks and a device.

So blocks wait for their turn, and what is claimed is written a while later. Knows nothing of blocks. Invariant: what is
copied is what the carrier itself would have copied, later.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from random import Random

from pagewire.kvtransfer.carrier import Inlet, Move
from pagewire.kvtransfer.offers import Offer
from pagewire.kvtransfer.transport import BlockMemory, Flow
from pagewire.kvtransfer.wire import Ready

COPY_S = 0.004
FLOW = Flow(window_bytes=2048, message_bytes=512)  # a block has 256


def slowly(offer: Offer, chance: Random) -> Offer:
    """Return the same offer, whose copies take up to `COPY_S` seconds each."""
    inlet = offer.carrier.inlet

    def slow(memory: BlockMemory, source_id: str) -> Inlet:
        return SlowInlet(inlet(memory, source_id), chance)

    return dataclasses.replace(offer, carrier=dataclasses.replace(offer.carrier, inlet=slow, flow=FLOW))


class SlowInlet:
    """An `Inlet` whose placements begin and end at different times; it places a few blocks at a time."""

    def __init__(self, inlet: Inlet, chance: Random) -> None:
        self.line = inlet.line
        self.card = inlet.card
        self.place_bytes = 512
        self.max_places = inlet.max_places
        self.needs_checksums = inlet.needs_checksums
        self._inlet = inlet
        self._chance = chance

    async def open(self, card: bytes) -> None:
        """See `Inlet`."""
        await self._inlet.open(card)

    async def arrived(self, ready: Ready) -> None:
        """See `Inlet`."""
        await self._inlet.arrived(ready)

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """See `Inlet`."""
        await asyncio.sleep(COPY_S * self._chance.random())
        return await self._inlet.place(ready, moves)

    def done(self, ready: Ready) -> None:
        """See `Inlet`."""
        self._inlet.done(ready)

    def close(self) -> None:
        """See `Inlet`."""
        self._inlet.close()
