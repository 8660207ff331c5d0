"""One shipment from a source (here or in another process) to a taker, with the real machine of the taker's side.

Carries out its effects as a pod does, with direct calls for the link's frames; fails on a hand-over with open claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sources import Source
from transport_rigs import NUM_BLOCKS, Recorder

from pagewire.core.clock import ManualClock
from pagewire.core.errors import PagewireError, TransferFailed
from pagewire.kvtransfer.effects import AskBind, AskResend, Detach, Effects, HandOver, SendFence, Verdict
from pagewire.kvtransfer.intake import Intake
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.kvtransfer.transport import BlockMemory, Receiver

ODD = 1  # chain index i lies in D's block i ^ ODD: the two pools agree on nothing


class Shipping:
    """Blocks `first` .. `first + num - 1`, chain index i being the source's block i."""

    def __init__(
        self, source: Source, receiver: Receiver, memory: BlockMemory, recorder: Recorder, key: tuple[int, int],
        *, first: int, num: int, pod_id: str = "D",
    ) -> None:  # fmt: skip
        self.key, self.first, self.num, self.pod_id = key, first, num, pod_id
        self.clock = ManualClock()
        self.handed: HandOver | None = None
        self.open: set[int] = set()
        self.shipment = IncomingShipment(
            request_id="r", generation=key[1], shipment_id=key[0], first_block=first, max_blocks=num, deadline_s=100.0
        )
        self._source, self._receiver, self._memory, self._recorder = source, receiver, memory, recorder
        self._intake = Intake(self.shipment, self.clock, lambda _, effects: self.act(effects))
        self._tasks: set[asyncio.Task[None]] = set()
        receiver.register(*key, self)

    @property
    def cause(self) -> str:
        """What it was lost by; empty while nothing is wrong."""
        return self.shipment.error.cause if self.shipment.error is not None else ""

    def claim(self, shipment_id: int, generation: int, indices: Sequence[int]) -> Sequence[tuple[Verdict, int]]:
        assert self.handed is None, "asked after it was handed over"
        claims = self._intake.claim(shipment_id, generation, indices)
        claimed = {index for index, (verdict, _) in zip(indices, claims, strict=True) if verdict is Verdict.PLACE}
        assert self.open.isdisjoint(claimed)
        self.open |= claimed
        return claims

    def settle(self, shipment_id: int, generation: int, indices: Sequence[int], is_intact: bool) -> None:
        assert self.open.issuperset(indices)
        self.open.difference_update(indices)
        self._intake.settle(shipment_id, generation, indices, is_intact)
        self._recorder.note()

    async def ship(self) -> None:
        """Have all of it sent; its manifest is known from the start."""
        self.shipment.accepted()
        self.act(self.shipment.fetch_ready(self.num, self.clock.now()))
        await self._send(range(self.first, self.first + self.num))

    def lost(self, error: PagewireError) -> None:
        """The stream is."""
        self.act(self.shipment.stream_lost(error, self.clock.now()))

    def expire(self) -> None:
        """Its time is over."""
        self.clock.advance(1000.0)
        self.act(self.shipment.expired(self.clock.now()))

    def act(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case AskBind(num_blocks=num_blocks):
                    self.act(self.shipment.bound(tuple(index ^ ODD for index in range(num_blocks))))
                    self._receiver.retry(*self.key)
                case AskResend(first_block=first, num_blocks=num):
                    self._spawn(range(first, first + num))
                case Detach():
                    self._receiver.unregister(*self.key)
                case SendFence():
                    self._tasks.add(asyncio.create_task(self._fence()))
                case HandOver():
                    assert self.handed is None
                    assert not self.open, "handed over while blocks may be written"
                    self.handed = effect
                    self._recorder.note()

    async def over(self) -> HandOver:
        """Wait for its end; what was kept has the source's bytes."""
        await self._recorder.until(lambda: self.handed is not None)
        assert self.handed is not None
        return self.handed

    def matches(self, original: BlockMemory) -> bool:
        """Return whether what was kept is right."""
        kept = self.handed.kept_blocks if self.handed is not None else 0
        indices = range(self.first, self.first + kept)
        assert set(indices) <= set(range(NUM_BLOCKS))
        return all(self._memory.read(index ^ ODD) == original.read(index) for index in indices)

    async def settled(self) -> None:
        """Wait for what was asked of the source on the way."""
        await asyncio.gather(*self._tasks)

    def _spawn(self, indices: range) -> None:
        self._tasks.add(asyncio.create_task(self._send(indices)))

    async def _send(self, indices: range) -> None:
        try:
            await self._source.send(self.pod_id, *self.key, [(index, index) for index in indices])
        except TransferFailed:
            self.act(self.shipment.prefill_failed())

    async def _fence(self) -> None:
        await self._source.fence(self.pod_id, *self.key)
        self.act(self.shipment.fenced())
