"""A shipment as its prefill pod sees it: blocks that stay pinned until the decode pod has them or nobody wants them.

Knows which blocks are ready, sent and asked for again; knows nothing of bytes, links or engines. What is wanted comes
back as `effects`. There is one way out, whatever the reason, so that the transport never reads a block that is free:

    shipping --landed, finished, fence, peer_lost, lease_expired, failed--> fencing   (Purge)
    fencing  --purged--> fencing                                                      (Release, exactly once)
    fencing  --freed, after Release--> closed                                         (SendFenced, where a fence asked)

Invariants: `Release` is returned exactly once and only after `purged`; nothing is sent after `Purge`; every fence is
answered once, even one that comes after the end.
"""

from __future__ import annotations

from enum import StrEnum

from pagewire.core.errors import LeaseExpired, PagewireError, PodLost
from pagewire.kvtransfer.effects import Announce, Effects, Outcome, Purge, Release, SendBlocks, SendFenced
from pagewire.kvtransfer.manifest import Manifest
from pagewire.kvtransfer.parts import part_ids, parts_of


class OutgoingState(StrEnum):
    """See the automaton above."""

    SHIPPING = "shipping"
    FENCING = "fencing"
    CLOSED = "closed"


class OutgoingShipment:
    """One generation of one request's shipment to `peer_id`. With `ships` False only the token is wanted.

    A block travels in `num_groups` parts; those of a group may be ready before the others are.
    """

    def __init__(
        self,
        *,
        request_id: str,
        generation: int,
        shipment_id: int,
        peer_id: str,
        first_block: int,
        ships: bool = True,
        num_groups: int = 1,
    ) -> None:
        self.request_id = request_id
        self.generation = generation
        self.shipment_id = shipment_id
        self.peer_id = peer_id
        self.first_block = first_block
        self.state = OutgoingState.SHIPPING
        self.outcome: Outcome | None = None
        self.error: PagewireError | None = None  # why it was lost
        self.is_computed = False
        self._ships = ships
        self._num_groups = num_groups
        self._ready_end = first_block
        self._part_ids: dict[int, int] = {}  # by index, like the next
        self._resent: set[int] = set()
        self._is_released = False
        self._owes_fenced = False

    @property
    def manifest(self) -> Manifest:
        """What is ready so far, in some group at least; after `prompt_done`, what the shipment holds."""
        return Manifest(first_block=self.first_block, num_blocks=self._ready_end - self.first_block)

    # ---------------------------------------------------------------------------------------- events: from the engine

    def chunk_done(self, first_block: int, block_ids: tuple[int, ...], group: int | None = None) -> Effects:
        """A step completed blocks, or one group of them; what was ready before, or is before `first_block` of the
        shipment, is left out. A group of blocks that travel whole is left out too: they are complete later.

        Raises ValueError when blocks are skipped: chunks come in the order of the chain.
        """
        num_groups = self._num_groups
        if self.state is not OutgoingState.SHIPPING or not self._ships or (group is not None and num_groups == 1):
            return ()
        if first_block > self._ready_end:
            raise ValueError(f"{self.request_id}: blocks {self._ready_end}..{first_block - 1} were never reported")
        indices = parts_of(first_block, len(block_ids), num_groups, group)
        fresh = tuple(
            (index, part_id)
            for index, part_id in zip(indices, part_ids(block_ids, num_groups, group), strict=True)
            if index >= self.first_block * num_groups and index not in self._part_ids
        )
        if not fresh:
            return ()
        self._part_ids.update(fresh)
        start, end = fresh[0][0] // num_groups, fresh[-1][0] // num_groups + 1
        self._ready_end = max(self._ready_end, end)
        return Announce(first_block=start, num_blocks=end - start, group=group), SendBlocks(blocks=fresh)

    def prompt_done(self, *, is_finished: bool) -> Effects:
        """The first token is sampled; `is_finished` when it ended the sequence, which then ships nothing more."""
        if self.state is not OutgoingState.SHIPPING:
            return ()
        self.is_computed = True
        return self._end(Outcome.FINISHED) if is_finished or not self._ships else ()

    def failed(self, error: PagewireError | None = None) -> Effects:
        """The engine gave the sequence up, or its blocks cannot be sent."""
        return self._end(Outcome.LOST, error)

    def freed(self) -> Effects:
        """The engine let the blocks go, after it was told to."""
        if self.state is not OutgoingState.FENCING or not self._is_released:
            return ()
        self.state = OutgoingState.CLOSED
        return (SendFenced(),) if self._owes_fenced else ()

    # ------------------------------------------------------------------------------------- events: from the transport

    def purged(self) -> Effects:
        """The transport will not read the blocks again."""
        if self.outcome is None or self._is_released:
            return ()
        self._is_released = True
        return (Release(outcome=self.outcome, is_computed=self.is_computed),)

    # ------------------------------------------------------------------------------------ events: from the decode pod

    def resend(self, first_block: int, num_blocks: int, group: int | None = None) -> Effects:
        """Blocks, or a group of them, arrived corrupt; each part is sent once more at most, unknown ones never."""
        if self.state is not OutgoingState.SHIPPING:
            return ()
        start, end = max(first_block, self.first_block), min(first_block + num_blocks, self._ready_end)
        asked = parts_of(start, max(0, end - start), self._num_groups, group)
        again = tuple(
            (index, self._part_ids[index]) for index in asked if index in self._part_ids and index not in self._resent
        )
        self._resent.update(index for index, _ in again)
        return (SendBlocks(blocks=again),) if again else ()

    def landed(self) -> Effects:
        """The decode pod has verified everything."""
        return self._end(Outcome.LANDED)

    def fence(self) -> Effects:
        """The decode pod wants an end, and an answer when it is certain."""
        if self.state is OutgoingState.CLOSED:
            return (SendFenced(),)
        self._owes_fenced = True
        return self._end(Outcome.CANCELLED)

    def peer_lost(self) -> Effects:
        """The decode pod, or the link to it, is gone."""
        return self._end(Outcome.LOST, PodLost(f"the link to {self.peer_id} is gone"))

    def lease_expired(self) -> Effects:
        """The decode pod showed no sign of life for the length of the lease."""
        return self._end(Outcome.LOST, LeaseExpired(f"{self.peer_id} showed no sign of life"))

    def _end(self, outcome: Outcome, error: PagewireError | None = None) -> Effects:
        if self.state is not OutgoingState.SHIPPING:
            return ()
        self.state = OutgoingState.FENCING
        self.outcome = outcome
        self.error = error
        return (Purge(),)
