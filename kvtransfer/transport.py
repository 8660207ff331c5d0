"""The contract of a transport: how blocks get from a source pod's memory into a taker pod's.

The taker dials and registers; the source sends. A shipment on the wire is named by `ShipmentKey`; the pair of pods is
part of the stream, so that no pod can touch another's shipments. A block here is what the stream carries: a block of
the pool, or with layer groups one of its equal parts (see `parts`). Knows nothing of why it travels.

Invariants that every transport keeps (the contract suite runs them all):

1. A sink is asked only about keys that are registered, and never again after `unregister` or a loss. What it granted
   before is settled, exactly once.
2. What is in flight, held back included, is bounded by the window; a taker that credits falsely floods itself alone,
   and a source that minds no credit loses its stream.
3. After `fence` returned nothing of that key is read from memory for it or sent.
4. A loss ends every registration of that peer, and is told once. Nothing is carried over to the next stream.
5. Bytes that are there other than they were sent are settled with `is_intact` False, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pagewire.core.errors import PagewireError
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
    placed_bytes: int = 0  # of what came, those that were right where they were written
    late: int = 0
    duplicate: int = 0
    corrupt: int = 0
    dropped: int = 0  # unknown or stale key, or not of the shipment


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportTimes:
    """Seconds: the bounds of greeting, of one message's write, its carrying and its placement, and of credit for what
    is fenced; and the delays between attempts to connect. A carrier may have bounds of its own, as for building a
    communicator: whichever is over first ends the stream."""

    connect_s: float = 5.0
    write_s: float = 10.0
    carry_s: float = 25.0
    place_s: float = 10.0
    credit_s: float = 15.0
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Bytes: how much may be in flight on a stream, and how large a message is aimed at.

    One shipment gets half of the window at most, so that one whose ids are not bound cannot hold up the others. A
    block larger than that travels alone. A message of `sums_follow_bytes` whose payload the taker fetches goes ahead of
    its checksums, which take longer to compute than a message of their own.
    """

    window_bytes: int = 16 << 20
    message_bytes: int = 2 << 20
    sums_follow_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        if not 0 < self.message_bytes * 2 <= self.window_bytes:
            raise ValueError(f"a window of {self.window_bytes} bytes for messages of {self.message_bytes}")


class BlockMemory(Protocol):
    """A pod's pool as blocks of bytes. Nobody else may write a block that is read or written."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        ...

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        ...

    def split(self, count: int) -> BlockMemory:
        """Return the same memory as blocks of which `count` are one of ours. Raises ValueError where they cannot be."""
        ...

    def read(self, block_id: int) -> memoryview:
        """Return the block's bytes, in place; valid while the block is pinned. Raises IndexError outside the pool."""
        ...

    def write(self, block_id: int, data: memoryview) -> None:
        """Copy `data` into the block. Raises IndexError outside the pool, ValueError on a wrong length."""
        ...

    def write_summed(self, block_id: int, data: memoryview, seed: int) -> int:
        """Copy `data` into the block; return xxh3_64 of what was written, seeded. Raises as `write` does."""
        ...

    def write_summed_from(self, block_id: int, address: int, seed: int) -> int:
        """The same, of a block's length of bytes at `address` in this process, which are the caller's to keep there."""
        ...


class PodMemory(BlockMemory, Protocol):
    """A pod's whole pool, which somebody lets go of at the end."""

    def close(self) -> None:
        """Let go of the memory; nothing may be reading or writing it."""
        ...


class Sink(Protocol):
    """Where a registered shipment's blocks go. A claim with the verdict PLACE is settled exactly once, whatever comes:
    the transport says when it has stopped writing, also after `unregister` and after a loss."""

    def claim(self, shipment_id: int, generation: int, indices: Sequence[int]) -> Sequence[tuple[Verdict, int]]:
        """Decide on each of some blocks that are ready, as a `Claim`. WAIT: it stays in flight, and is offered again on
        `retry`."""
        ...

    def settle(self, shipment_id: int, generation: int, indices: Sequence[int], is_intact: bool) -> None:
        """Nothing writes these claimed blocks any more; what is in them is right, or is not. May unregister its key."""
        ...


class Receiver(Protocol):
    """The taker's end of a stream to one source."""

    counters: TransferCounters

    @property
    def is_connected(self) -> bool:
        """True while a stream is up: registrations are taken."""
        ...

    @property
    def transport(self) -> str:
        """The name of what carries blocks now; empty without a stream."""
        ...

    @property
    def num_groups(self) -> int:
        """In how many parts a block travels on the stream that is up."""
        ...

    async def connected(self, timeout_s: float) -> None:
        """Wait for a stream; raises TransferFailed with the reason when there is none in time, or PeerMismatch."""
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

    def drop(self, reason: str) -> None:
        """Give the stream up, if one is up; a new one is dialled."""
        ...


class Sender(Protocol):
    """The source's end of its streams to all takers."""

    counters: TransferCounters

    def is_connected(self, peer_id: str) -> bool:
        """True while that taker's stream is up."""
        ...

    def num_groups(self, peer_id: str) -> int:
        """In how many parts a block travels to that taker while its stream is up; 1 without one."""
        ...

    def send(self, peer_id: str, shipment_id: int, generation: int, blocks: list[tuple[int, int]]) -> None:
        """Queue (index, id) pairs of parts; memory is read in their turn, so they stay pinned until `fence` returned.

        Raises TransferFailed without a stream to that pod, or for a key that was fenced.
        """
        ...

    async def fence(self, peer_id: str, shipment_id: int, generation: int) -> None:
        """Forget what is queued; returns when nothing more of this key is read or sent, at once for an unknown one."""
        ...


LostCallback = Callable[[str, tuple[ShipmentKey, ...], PagewireError], None]
"""Called once per lost stream with (peer id, keys, what it was lost by): registered at a receiver, queued or in flight
at a sender."""
