"""A carrier whose ends misbehave as told, around a real one: they fail or hang, and the taker's spoils what it placed.

Proves what stream and shipment make of a carrier's faults; cannot show what the carrier's own library does.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.carrier import Carrier, Inlet, Line, Move, Outlet
from pagewire.kvtransfer.offers import Offers
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.transport import BlockMemory
from pagewire.kvtransfer.wire import Ready


class Faults:
    """What is to go wrong, from now on; `num_places` counts the placements of all streams, `num_carried` messages.

    `on_carried` hears of each message that was carried, and to which taker.
    """

    def __init__(self) -> None:
        self.spoil: dict[int, int] = {}  # chain index -> how many times it arrives spoilt
        self.fail_at: int | None = None  # the number of a placement
        self.hang_at: int | None = None
        self.hanging = asyncio.Event()
        self.before: Callable[[], Awaitable[None]] | None = None  # done once, before a placement
        self.num_places = 0
        self.carry_fails_at: int | None = None  # the number of a message that is carried
        self.carry_hangs_at: int | None = None
        self.num_carried = 0
        self.around_line: Callable[[Line], Line] = lambda line: line
        self.on_carried: Callable[[str, Batch], None] = lambda _taker_id, _batch: None

    def around(self, carrier: Carrier) -> Carrier:
        """Return the carrier with these faults."""
        return dataclasses.replace(
            carrier,
            inlet=lambda memory, source_id: FaultyInlet(carrier.inlet(memory, source_id), memory, self),
            outlet=lambda memory, taker_id: FaultyOutlet(carrier.outlet(memory, taker_id), taker_id, self),
        )

    def around_all(self, offers: Offers) -> Offers:
        """The same of what a pod offers."""
        return Offers(tuple(dataclasses.replace(offer, carrier=self.around(offer.carrier)) for offer in offers.offers))


class FaultyOutlet:
    """An `Outlet` around a real one."""

    def __init__(self, outlet: Outlet, taker_id: str, faults: Faults) -> None:
        self.announces, self.lends, self.checksums = outlet.announces, outlet.lends, outlet.checksums
        self.open, self.tag, self.close = outlet.open, outlet.tag, outlet.close
        self._outlet = outlet
        self._taker_id = taker_id
        self._faults = faults

    @property
    def line(self) -> Line | None:
        return self._outlet.line

    async def carry(self, batch: Batch) -> None:
        faults = self._faults
        number, faults.num_carried = faults.num_carried, faults.num_carried + 1
        if number == faults.carry_fails_at:
            raise TransferFailed("the test says so")
        if number == faults.carry_hangs_at:
            await asyncio.Event().wait()
        await self._outlet.carry(batch)
        faults.on_carried(self._taker_id, batch)


class FaultyInlet:
    """An `Inlet` around a real one."""

    def __init__(self, inlet: Inlet, memory: BlockMemory, faults: Faults) -> None:
        self.card = inlet.card
        self.place_bytes, self.max_places = inlet.place_bytes, inlet.max_places
        self.needs_checksums = inlet.needs_checksums
        self.open, self.arrived = inlet.open, inlet.arrived
        self.done, self.close = inlet.done, inlet.close
        self._inlet = inlet
        self._memory = memory
        self._faults = faults

    @property
    def line(self) -> Line | None:
        line = self._inlet.line
        return line and self._faults.around_line(line)

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        faults = self._faults
        number, faults.num_places = faults.num_places, faults.num_places + 1
        if number == faults.fail_at:
            raise TransferFailed("the test says so")
        if number == faults.hang_at:
            faults.hanging.set()
            await asyncio.Event().wait()
        if faults.before is not None:
            before, faults.before = faults.before, None
            await before()
        sums = await self._inlet.place(ready, moves)
        for position, block_id in moves:
            index = ready.index(position)
            if faults.spoil.get(index, 0) > 0:
                faults.spoil[index] -= 1
                spoilt = bytearray(self._memory.read(block_id))
                spoilt[0] ^= 1
                self._memory.write(block_id, memoryview(spoilt))
                sums = ()  # whoever verifies reads what is there
        return sums
