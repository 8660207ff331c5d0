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

from pagewire.kvtransfer.effects import Announce, Effects, Outcome, Purge, Release, SendBlocks, SendFenced
from pagewire.kvtransfer.manifest import Manifest


class OutgoingState(StrEnum):
    """See the automaton above."""

    SHIPPING = "shipping"
    FENCING = "fencing"
    CLOSED = "closed"


class OutgoingShipment:
    """One generation of one request's shipment to `peer_id`. With `ships` False only the token is wanted."""

    def __init__(
        self, *, request_id: str, generation: int, shipment_id: int, peer_id: str, first_block: int, ships: bool = True
    ) -> None:
        self.request_id = request_id
        self.generation = generation
        self.shipment_id = shipment_id
        self.peer_id = peer_id
        self.first_block = first_block
        self.state = OutgoingState.SHIPPING
        self.outcome: Outcome | None = None
        self.is_computed = False
        self._ships = ships
        self._block_ids: dict[int, int] = {}
        self._sent: set[int] = set()
        self._resent: set[int] = set()
        self._is_released = False
        self._owes_fenced = False

    @property
    def manifest(self) -> Manifest:
        """What is ready so far; after `prompt_done`, what the shipment holds."""
        return Manifest(first_block=self.first_block, num_blocks=len(self._block_ids))

    @property
    def unsent(self) -> tuple[int, ...]:
        """Indices that are ready and were not written to the stream yet; ascending."""
        return tuple(sorted(self._block_ids.keys() - self._sent))

    @property
    def is_pinned(self) -> bool:
        """True until `Release` was returned."""
        return not self._is_released

    # ---------------------------------------------------------------------------------------- events: from the engine

    def chunk_done(self, first_block: int, block_ids: tuple[int, ...]) -> Effects:
        """A step completed blocks; those before `first_block` of the shipment, or ready before, are left out.

        Raises ValueError when blocks are skipped: chunks come in the order of the chain.
        """
        if self.state is not OutgoingState.SHIPPING or not self._ships:
            return ()
        start = self.manifest.end
        if first_block > start:
            raise ValueError(f"{self.request_id}: blocks {start}..{first_block - 1} were never reported")
        fresh = tuple((index, block_id) for index, block_id in enumerate(block_ids, first_block) if index >= start)
        if not fresh:
            return ()
        self._block_ids.update(fresh)
        return Announce(first_block=start, num_blocks=len(fresh)), SendBlocks(blocks=fresh)

    def prompt_done(self, *, is_finished: bool) -> Effects:
        """The first token is sampled; `is_finished` when it ended the sequence, which then ships nothing more."""
        if self.state is not OutgoingState.SHIPPING:
            return ()
        self.is_computed = True
        return self._end(Outcome.FINISHED) if is_finished or not self._ships else ()

    def failed(self) -> Effects:
        """The engine gave the sequence up."""
        return self._end(Outcome.LOST)

    def freed(self) -> Effects:
        """The engine let the blocks go, after it was told to."""
        if self.state is not OutgoingState.FENCING or not self._is_released:
            return ()
        self.state = OutgoingState.CLOSED
        return (SendFenced(),) if self._owes_fenced else ()

    # ------------------------------------------------------------------------------------- events: from the transport

    def sent(self, indices: tuple[int, ...]) -> Effects:
        """These blocks were written to the stream."""
        self._sent.update(index for index in indices if index in self._block_ids)
        return ()

    def purged(self) -> Effects:
        """The transport will not read the blocks again."""
        if self.state is not OutgoingState.FENCING or self._is_released or self.outcome is None:
            return ()
        self._is_released = True
        return (Release(outcome=self.outcome, is_computed=self.is_computed),)

    # ------------------------------------------------------------------------------------ events: from the decode pod

    def resend(self, first_block: int, num_blocks: int) -> Effects:
        """Blocks arrived corrupt; each is sent once more at most, unknown ones never."""
        if self.state is not OutgoingState.SHIPPING:
            return ()
        asked = Manifest(first_block=max(0, first_block), num_blocks=max(0, num_blocks))
        again = tuple(
            (index, block_id)
            for index, block_id in sorted(self._block_ids.items())
            if index in asked and index not in self._resent
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
        """The decode pod is gone."""
        return self._end(Outcome.LOST)

    def lease_expired(self) -> Effects:
        """The decode pod showed no sign of life for the length of the lease."""
        return self._end(Outcome.LOST)

    def _end(self, outcome: Outcome) -> Effects:
        if self.state is not OutgoingState.SHIPPING:
            return ()
        self.state = OutgoingState.FENCING
        self.outcome = outcome
        return (Purge(),)
