"""The contract of a transport: how blocks get from a prefill pod's memory to a decode pod's sink.

The decode pod dials and registers; the prefill pod sends. A shipment on the wire is named by `ShipmentKey`; the pair
of pods is part of the stream, so that no pod can touch another's shipments. Knows nothing of why a block travels.

Invariants that every transport keeps (the contract suite runs them all):

1. A sink hears only of keys that are registered, and never again after `unregister` or a loss.
2. What is in flight, held back included, is bounded by the window; a receiver that credits falsely floods itself alone.
3. After `fence` returned nothing of that key is read from memory or sent.
4. A loss ends every registration of that peer, and is told once. Nothing is carried over to the next stream.
5. Bytes that arrive other than they were sent are delivered with `is_intact` False, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pagewire.kvtransfer.effects import Verdict


class ShipmentKey(NamedTuple):
    """What bytes on a stream belong to."""

    shipment_id: int
    generation: int


@dataclass(slots=True)
class TransferCounters:
    """What went through one end of a transport since it began. Receivers count verdicts, senders the first three."""

    bytes: int = 0  # payload alone
    blocks: int = 0
    messages: int = 0
    late: int = 0
    duplicate: int = 0
    corrupt: int = 0
    dropped: int = 0  # unknown or stale key, or not of the shipment


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportTimes:
    """Seconds: the bounds of greeting and of one write, and the delays between attempts to connect."""

    connect_s: float = 5.0
    write_s: float = 10.0
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Bytes: how much may be in flight on a stream, and how large a message is aimed at.

    One shipment gets half of the window at most, so that one whose ids are not bound cannot hold up the others. A
    block larger than that travels alone.
    """

    window_bytes: int = 16 << 20
    message_bytes: int = 2 << 20

    def __post_init__(self) -> None:
        if not 0 < self.message_bytes * 2 <= self.window_bytes:
            raise ValueError(f"a window of {self.window_bytes} bytes for messages of {self.message_bytes}")


class BlockMemory(Protocol):
    """A pod's pool as blocks of bytes. Nobody else may write a block that is read or written."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        ...

    def read(self, block_id: int) -> memoryview:
        """Return the block's bytes, in place; valid while the block is pinned. Raises IndexError outside the pool."""
        ...

    def write(self, block_id: int, data: memoryview) -> None:
        """Copy `data` into the block. Raises IndexError outside the pool, ValueError on a wrong length."""
        ...


class Sink(Protocol):
    """Where a registered shipment's blocks go."""

    def deliver(
        self, shipment_id: int, generation: int, block_index: int, data: memoryview, is_intact: bool
    ) -> Verdict:
        """Decide on one block and place it before returning; `data` is valid during the call alone.

        WAIT keeps the block in flight, and it is offered again on `retry`. May unregister its own shipment.
        """
        ...


class Receiver(Protocol):
    """The decode pod's end of a stream to one prefill pod."""

    counters: TransferCounters

    @property
    def is_connected(self) -> bool:
        """True while a stream is up: registrations are taken."""
        ...

    async def connected(self, timeout_s: float) -> None:
        """Wait for a stream; raises TransferFailed with the reason when there is none in time."""
        ...

    def register(self, shipment_id: int, generation: int, sink: Sink) -> None:
        """Take blocks of this key from now on. Raises TransferFailed without a stream, ValueError on a key in use."""
        ...

    def unregister(self, shipment_id: int, generation: int) -> None:
        """Drop what is held of this key and everything still to come; at once, any number of times."""
        ...

    def retry(self, shipment_id: int, generation: int) -> None:
        """Offer the blocks that had to wait again: their ids are bound."""
        ...


class Sender(Protocol):
    """The prefill pod's end of its streams to all decode pods."""

    counters: TransferCounters

    def is_connected(self, peer_id: str) -> bool:
        """True while that decode pod's stream is up."""
        ...

    def send(self, peer_id: str, shipment_id: int, generation: int, blocks: list[tuple[int, int]]) -> None:
        """Queue (index, block id) pairs; memory is read in their turn, so they stay pinned until `fence` returned.

        Raises TransferFailed without a stream to that pod, or for a key that was fenced.
        """
        ...

    async def fence(self, peer_id: str, shipment_id: int, generation: int) -> None:
        """Forget what is queued; returns when nothing more of this key is read or sent, at once for an unknown one."""
        ...


SentCallback = Callable[[str, ShipmentKey, tuple[int, ...]], None]
"""Called with (peer id, key, block indices) when a message was handed to the network."""

StreamLost = Callable[[str, tuple[ShipmentKey, ...]], None]
"""Called once per lost stream with (peer id, keys): registered at a receiver, queued or in flight at a sender."""
