"""The seam of a bulk stream: how a message's payload gets from the source's blocks into the taker's.

Every networked transport has one stream per (taker, source) pair: greeting, turns, window, credit, fences, loss. What
differs is the carrier. In band, the payload is part of the message; out of band, the message only says which blocks are
ready (`Ready`), and the carrier moves the bytes: mapped memory, device copies, a communicator, a transfer library. One
that has a shorter way for messages too brings a `Line` for them.

    taker   Inlet()  --card in HELLO-->    source  Outlet(), open(card) --card in WELCOME-->    taker  open(card)
    source  message written, carry(batch)  ...  taker  arrived(ready), place(ready, moves), done(ready), credit

Knows nothing of shipments and streams. Invariants that every carrier keeps:

1. A taker's block is written only between the begin and the end of a `place` that names it. When `place` has ended, by
   returning, raising or being cancelled, nothing writes any more: a carrier that cannot call its writes back waits for
   them. So a block whose `place` has ended may be given away.
2. What the taker gets of a source's block was read before the end of `carry`; where it is lent, before the taker's
   credit or `close`. A `carry` that was cancelled may still read, into what nobody sends.
3. `close` is final, does not block, and may come at any time, also while something is awaited, which then raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import sub
from typing import Protocol

from pagewire.core.errors import ContractBroken
from pagewire.kvtransfer.outbox import Batch
from pagewire.kvtransfer.plan import Span
from pagewire.kvtransfer.transport import BlockMemory, Flow
from pagewire.kvtransfer.wire import Ready

Move = tuple[int, int]
"""One block of a message and where it goes: its position in the message, the taker's block id."""


def spans(ready: Ready, moves: Sequence[Move], memory: BlockMemory, num_source_blocks: int) -> list[Span]:
    """Return what to copy between the source's pool and ours, `memory`, in bytes of each; adjacent blocks are one.

    Raises ContractBroken on a block that the source does not have, IndexError on one that we do not.
    """
    size, told = memory.block_bytes, ready.block_ids
    if not moves:
        return []
    positions, block_ids = zip(*moves, strict=True)
    if min(positions) < 0 or max(positions) >= len(told) or max(told) >= num_source_blocks:
        raise ContractBroken(f"the source has {num_source_blocks} blocks and announced another")
    if min(block_ids) < 0 or max(block_ids) >= memory.num_blocks:
        raise IndexError(f"blocks up to {max(block_ids)} of {memory.num_blocks}")
    source_ids = [told[position] for position in positions]
    steps = zip(map(sub, source_ids[1:], source_ids), map(sub, block_ids[1:], block_ids), strict=True)
    starts = [0, *(at for at, step in enumerate(steps, 1) if step != (1, 1))]
    return [
        Span(source_ids[start] * size, block_ids[start] * size, (end - start) * size)
        for start, end in pairwise((*starts, len(moves)))
    ]


class Line(Protocol):
    """One end of what a stream's messages go over once it is greeted: whole, in order, both ways."""

    async def read(self) -> bytes | None:
        """Return the next message; None at the end. Raises TransferFailed, or as gRPC does."""
        ...

    async def write(self, message: bytes) -> None:
        """Return when the message is on its way. Raises as `read` does."""
        ...


class Outlet(Protocol):
    """The source's end, of one stream. Calls come from one task, except `close`."""

    @property
    def line(self) -> Line | None:
        """Once it is open: what messages go over instead of the stream that the greeting came by, at both ends."""
        ...

    announces: bool
    """True: the payload goes out of band. False: in band."""

    lends: bool
    """True: the taker reads our blocks, in use until its credit. False: nobody does once `carry` has ended."""

    checksums: bool
    """True: the stream computes a checksum of each block before it says that it is ready; a CPU can read the pool."""

    async def open(self, card: bytes) -> bytes:
        """Take the taker's card, return ours, at most `MAX_CARD_BYTES` long; both are proven. Raises TransferFailed."""
        ...

    def tag(self, batch: Batch) -> int:
        """Say what the inlet has to know of a message that is about to be written: 32 bits, `Ready.tag` over there."""
        ...

    async def carry(self, batch: Batch) -> None:
        """Do what belongs to a message once it is written, before the next is. Raises TransferFailed: it ends."""
        ...

    def close(self) -> None:
        """Abort and let go of everything; any number of times."""
        ...


class Inlet(Protocol):
    """The taker's end, of one stream; writes into the pool that it was made for."""

    @property
    def line(self) -> Line | None:
        """See `Outlet`."""
        ...

    card: bytes
    """What the source's outlet is to know of us; at most `MAX_CARD_BYTES` long."""

    place_bytes: int
    """How much payload one `place` is given at most. A carrier that copies with the CPU gives the loop a turn between
    two, and its blocks are verified while they are in the cache; one that posts work wants a whole message."""

    needs_checksums: bool
    """True: a CPU reads what it places, so that a source that sends no checksums breaks the contract."""

    max_places: int
    """How many `place`s may be under way at a time; they begin in the order of messages. More than one suits whoever
    posts work that others do: the next is posted while one runs."""

    async def open(self, card: bytes) -> None:
        """Take the source's card. Raises TransferFailed: this carrier cannot be used with this source."""
        ...

    async def arrived(self, ready: Ready) -> None:
        """A message was read; in order, before the next one is read. A carrier that is sent to receives now."""
        ...

    async def place(self, ready: Ready, moves: Sequence[Move]) -> Sequence[int]:
        """Copy those blocks into ours; returns when all are there. Raises TransferFailed: it ends.

        Where this very copy computed the checksums of what it wrote, they are returned; else none, and whoever verifies
        reads the blocks."""
        ...

    def done(self, ready: Ready) -> None:
        """Every block of the message is disposed of: what was staged for it may be reused."""
        ...

    def close(self) -> None:
        """Abort and let go of everything; any number of times."""
        ...


MakeOutlet = Callable[[BlockMemory, str], Outlet]
"""Given our pool and the taker's id. Raises TransferFailed when this pool cannot be read that way."""

MakeInlet = Callable[[BlockMemory, str], Inlet]
"""Given our pool and the source's id. Raises TransferFailed when this pool cannot be written that way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """One way that a pod can ship (`outlet`) and take (`inlet`). `flow` is what suits it unless told otherwise."""

    name: str
    outlet: MakeOutlet
    inlet: MakeInlet
    flow: Flow = field(default_factory=Flow)
