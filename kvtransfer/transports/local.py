"""Blocks within one process: straight from the source's memory into the taker's.

Colocated pods and tests. Knows no streams: `LocalReceiver.connect` and `disconnect` stand for them. Invariant: the
same contract as over a network, in particular nothing is delivered from within `send`.
"""

from __future__ import annotations

import asyncio

from pagewire.core.errors import TransferFailed
from pagewire.kvtransfer.inbox import Inbox
from pagewire.kvtransfer.outbox import Outbox
from pagewire.kvtransfer.transport import (
    BlockMemory,
    Flow,
    LostCallback,
    SentCallback,
    ShipmentKey,
    Sink,
    TransferCounters,
)
from pagewire.kvtransfer.wire import Credit, Ready, checksums


class LocalSender:
    """The `Sender` of a source whose takers live in the same process."""

    def __init__(
        self, *, pod_id: str, memory: BlockMemory, on_lost: LostCallback, on_sent: SentCallback | None = None
    ) -> None:
        self.pod_id = pod_id
        self.memory = memory
        self.counters = TransferCounters()
        self._on_lost = on_lost
        self._on_sent = on_sent
        self._receivers: dict[str, tuple[LocalReceiver, Outbox]] = {}

    def is_connected(self, peer_id: str) -> bool:
        """True while that taker is attached."""
        return peer_id in self._receivers

    def num_groups(self, peer_id: str) -> int:
        """Blocks travel whole."""
        return 1

    def send(self, peer_id: str, shipment_id: int, generation: int, blocks: list[tuple[int, int]]) -> None:
        """Queue (index, block id) pairs; see `Sender`."""
        key = ShipmentKey(shipment_id, generation)
        if peer_id not in self._receivers:
            raise TransferFailed(f"{peer_id} has no stream for blocks")
        outbox = self._receivers[peer_id][1]
        if outbox.is_fenced(key):
            raise TransferFailed(f"{key} to {peer_id} is fenced")
        outbox.add(key, blocks)
        asyncio.get_running_loop().call_soon(self.pump, peer_id)

    async def fence(self, peer_id: str, shipment_id: int, generation: int) -> None:
        """Forget what is queued, and what waits at the receiver, since that is our memory; see `Sender`."""
        if peer_id in self._receivers:
            key = ShipmentKey(shipment_id, generation)
            receiver, outbox = self._receivers[peer_id]
            outbox.purge(key)
            receiver.inbox.drop_waiting(key)

    def attach(self, peer_id: str, receiver: LocalReceiver, flow: Flow) -> None:
        """A receiver connects; an older one of the same pod is lost."""
        self.detach(peer_id)
        self._receivers[peer_id] = receiver, Outbox(self.memory.block_bytes, flow)

    def detach(self, peer_id: str) -> None:
        """A receiver is gone: told once."""
        if peer_id in self._receivers:
            receiver, outbox = self._receivers.pop(peer_id)
            self._on_lost(peer_id, outbox.keys())
            receiver.lost()

    def credit(self, peer_id: str, credit: Credit) -> None:
        """The receiver disposed of bytes."""
        if peer_id in self._receivers:
            self._receivers[peer_id][1].credit(credit)
            asyncio.get_running_loop().call_soon(self.pump, peer_id)

    def pump(self, peer_id: str) -> None:
        """Deliver all that the window lets through."""
        while peer_id in self._receivers:
            receiver, outbox = self._receivers[peer_id]
            batch = outbox.take()
            if batch is None:
                return
            payloads = tuple(self.memory.read(block_id) for block_id in batch.block_ids)
            self.counters.messages += 1
            self.counters.blocks += len(payloads)
            self.counters.bytes += len(payloads) * self.memory.block_bytes
            if self._on_sent is not None:
                self._on_sent(peer_id, batch.key, tuple(batch.indices))
            sums = tuple(checksums(batch.key, batch.indices, payloads))
            ready = Ready(batch.key, batch.first_block, sums, payloads=payloads, stride=batch.stride)
            receiver.inbox.accept(ready)
            receiver.place()


class LocalReceiver:
    """The `Receiver` of a taker beside its source."""

    def __init__(
        self,
        sender: LocalSender,
        *,
        pod_id: str,
        memory: BlockMemory,
        on_lost: LostCallback,
        flow: Flow | None = None,
    ) -> None:
        self.counters = TransferCounters()
        self.inbox = Inbox(memory.block_bytes, self.counters, lambda credit: sender.credit(pod_id, credit))
        self._memory = memory
        self._sender = sender
        self._pod_id = pod_id
        self._on_lost = on_lost
        self._flow = flow or Flow()
        self._up = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """True between `connect` and a loss."""
        return self._up.is_set()

    @property
    def transport(self) -> str:
        """What carries blocks: nothing but a copy."""
        return "local"

    @property
    def num_groups(self) -> int:
        """Blocks travel whole."""
        return 1

    async def connected(self, timeout_s: float) -> None:
        """Wait for `connect`; raises TransferFailed when it does not come in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise TransferFailed(f"{self._sender.pod_id} is not connected") from None

    def connect(self) -> None:
        """Come up."""
        self._sender.attach(self._pod_id, self, self._flow)
        self._up.set()

    def disconnect(self) -> None:
        """Be lost, on both sides."""
        self._sender.detach(self._pod_id)

    def lost(self) -> None:
        """The sender let us go: told once."""
        self._up.clear()
        self._on_lost(self._sender.pod_id, self.inbox.clear())

    def register(self, shipment_id: int, generation: int, sink: Sink) -> None:
        """Take blocks of this key; see `Receiver`."""
        if not self.is_connected:
            raise TransferFailed(f"{self._sender.pod_id} is not connected")
        self.inbox.register(ShipmentKey(shipment_id, generation), sink)

    def unregister(self, shipment_id: int, generation: int) -> None:
        """Drop what is held and what comes; see `Receiver`."""
        self.inbox.unregister(ShipmentKey(shipment_id, generation))

    def retry(self, shipment_id: int, generation: int) -> None:
        """Offer what waits again; see `Receiver`."""
        self.inbox.retry(ShipmentKey(shipment_id, generation))
        self.place()

    def place(self) -> None:
        """Copy what has its turn, block by block."""
        while claimed := self.inbox.claims(1):
            block = claimed[0]
            ready = block.parcel.ready
            self._memory.write(block.block_id, ready.payloads[block.position])
            self.inbox.settle(block, ready.is_intact(block.position, self._memory.read(block.block_id)))
