"""A shipment as its decode pod sees it: one request's KV on its way in.

Knows which blocks are announced, bound and verified, and when; knows nothing of bytes, links or engines. Time is a
parameter (seconds of this pod's monotonic clock), what is wanted comes back as `effects`.

    reserved --accepted, or the first sign of the prompt--> shipping
       |                                                       |-- every block of the manifest verified --> landed
       |                                                       |-- peer_lost, prefill_failed -------------> resumable
       |                                                       |-- stream_lost, deadline, corrupt twice,
       |                                                       |   contract broken, cancel ---------------> fencing
       |-- refused, cancel, deadline, stream_lost, --> closed  |-- first token ended the sequence, refused > closed
           peer_lost, prefill_failed
    fencing --no open claim, and fenced, peer_lost, prefill_failed or deadline--> resumable, or closed when cancelled
    landed, resumable --close--> closed

Blocks travel whole, or in parts (see `parts`): claims are of parts, all else speaks of blocks, and a block is there
when all its parts are. A part is written in two steps: a claim says which, and from then on the transport may write it;
settled, it does not any more, and what arrived is judged. A shipment that ends with open claims is fencing until the
last is settled: those blocks are quarantined, whatever the link, the stream or the clock say.

Invariants: `HandOver` is returned exactly once in a shipment's life, with no claim open, and `Detach` before or with
it; after `Detach` nothing is claimed; no index is claimed twice at a time, or once it is verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import repeat

from pagewire.core.errors import (
    BlockCorrupt,
    ContractBroken,
    PagewireError,
    PrefillLost,
    TransferTimeout,
)
from pagewire.kvtransfer.arrivals import Arrivals
from pagewire.kvtransfer.effects import (
    AskBind,
    AskResend,
    Claim,
    Detach,
    Effects,
    HandOver,
    Outcome,
    SendFence,
    SendLanded,
    Verdict,
)  # fmt: skip
from pagewire.kvtransfer.manifest import Manifest
from pagewire.kvtransfer.parts import parts_of
from pagewire.kvtransfer.transfer_times import TransferTimes


class IncomingState(StrEnum):
    """See the automaton above."""

    RESERVED = "reserved"
    SHIPPING = "shipping"
    LANDED = "landed"
    FENCING = "fencing"
    RESUMABLE = "resumable"
    CLOSED = "closed"


class IncomingShipment:
    """One generation of one request's shipment; indices are those of the chain.

    `max_blocks` bounds the manifest (what was reserved from `first_block` on). `deadline_s` is absolute; once the first
    token is here the bytes have `landing_s` more at most, and a fence waits `fence_s`. A block has `num_groups` parts.
    """

    def __init__(
        self,
        *,
        request_id: str,
        generation: int,
        shipment_id: int,
        first_block: int,
        max_blocks: int,
        deadline_s: float,
        landing_s: float = 30.0,
        fence_s: float = 2.0,
        num_groups: int = 1,
    ) -> None:
        self.request_id = request_id
        self.generation = generation
        self.shipment_id = shipment_id
        self.state = IncomingState.RESERVED
        self.manifest: Manifest | None = None  # known with the first token, or the answer to a fetch
        self.times = TransferTimes()
        self.deadline_s = deadline_s
        self.error: PagewireError | None = None  # why it was lost or refused: the first reason stands
        self._room = Manifest(first_block=first_block, num_blocks=max_blocks)
        self._announced = Manifest(first_block=first_block, num_blocks=0)
        self._told: dict[int | None, int] = {}  # up to which block, of each group that was announced
        self._bind_asked = first_block
        self._block_ids: tuple[int, ...] = ()
        self._arrivals = Arrivals(num_groups)
        self._outcome = Outcome.LOST
        self._awaits_claims = False  # nothing but open claims delays the hand-over
        self._landing_s = landing_s
        self._fence_s = fence_s

    # ------------------------------------------------------------------------------------------------------ queries

    @property
    def first_block(self) -> int:
        """The index in the chain of the first block that travels."""
        return self._room.first_block

    @property
    def num_groups(self) -> int:
        """How many parts a block travels in."""
        return self._arrivals.num_groups

    @property
    def is_open(self) -> bool:
        """True while blocks are still taken."""
        return self.state in (IncomingState.RESERVED, IncomingState.SHIPPING)

    @property
    def is_landed(self) -> bool:
        """True when every block of the manifest is verified."""
        return self.manifest is not None and self._arrivals.num_parts == self.manifest.num_blocks * self.num_groups

    @property
    def num_verified(self) -> int:
        """How many blocks were placed, whole."""
        return self._arrivals.count(self._room.indices())

    @property
    def num_arriving(self) -> int:
        """How many blocks are bound here, and wait for their KV or for that of the others."""
        return max(0, len(self._block_ids) - self.first_block) if self.is_open else 0

    @property
    def num_quarantined(self) -> int:
        """How many blocks may still be written although nobody waits for them any more."""
        return self._arrivals.num_blocks_claimed if self.state is IncomingState.FENCING else 0

    @property
    def landed_prefix_blocks(self) -> int:
        """How many blocks from `first_block` on are verified without a gap: what can be kept."""
        return self._arrivals.prefix(self.first_block)

    @property
    def transfer_s(self) -> float:
        """See `TransferTimes.transfer_s`."""
        return self.times.transfer_s

    @property
    def exposed_s(self) -> float:
        """See `TransferTimes.exposed_s`."""
        return self.times.exposed_s

    # --------------------------------------------------------------------------------- events: from the prefill pod

    def accepted(self) -> Effects:
        """The prefill pod queued the prompt."""
        if self.state is IncomingState.RESERVED:
            self.state = IncomingState.SHIPPING
        return ()

    def refused(self, error: PagewireError | None = None) -> Effects:
        """The prefill pod does not run the prompt and holds nothing for it."""
        if not self.is_open:
            return ()
        self.error = error
        return self._end(Outcome.REFUSED)

    def chunk_ready(self, first_block: int, num_blocks: int, now_s: float, group: int | None = None) -> Effects:
        """Blocks, or a group of them, are announced; asks for their ids.

        One outside the reservation, or past a gap, breaks the contract.
        """
        if not self.is_open:
            return ()
        self.accepted()
        end = first_block + num_blocks
        limit = (self.manifest or self._room).end
        if num_blocks <= 0 or not self.first_block <= first_block <= self._announced.end or end > limit:
            return self._lose(ContractBroken(f"chunk of {num_blocks} blocks from {first_block} does not fit"), now_s)
        if group is not None and group >= self.num_groups:
            return self._lose(ContractBroken(f"group {group} of {self.num_groups}"), now_s)
        self._announced = Manifest(
            first_block=self.first_block, num_blocks=max(self._announced.end, end) - self.first_block
        )
        if end > self._told.get(group, first_block):  # what says nothing new is not kept
            self._told[group] = end
            self.times.announced(parts_of(first_block, num_blocks, self.num_groups, group), now_s)
        return self._ask_bind(end)

    def first_token(self, num_blocks: int, now_s: float) -> Effects:
        """The prompt is done and its manifest is `num_blocks` long; 0 when the first token ended the sequence."""
        if not self.is_open or self.manifest is not None:
            return ()
        self.times.first_token(now_s)
        return self._complete(num_blocks, now_s)

    def fetch_ready(self, num_blocks: int, now_s: float) -> Effects:
        """The source holds `num_blocks` of what was asked for, and they are on their way; 0 when it holds nothing."""
        return self._complete(num_blocks, now_s) if self.is_open and self.manifest is None else ()

    def prefill_failed(self, error: PagewireError | None = None) -> Effects:
        """The prefill pod gave up, for a reason of its own, and sends nothing more: as good as lost and fenced."""
        return self._gone(error or PrefillLost("the prefill pod gave up"))

    def fenced(self) -> Effects:
        """The prefill pod stopped; outside fencing this is an answer to an older question, and ignored."""
        return self._end(self._outcome) if self.state is IncomingState.FENCING else ()

    # ------------------------------------------------------------------------------------------ events: the blocks

    def bound(self, block_ids: tuple[int, ...]) -> Effects:
        """The engine's block table, from block 0 of the chain; empty when it is gone. ValueError when ids change."""
        if not self.is_open:
            return ()
        if not block_ids:
            return self._end(Outcome.CANCELLED, and_first=(SendFence(),))
        common = min(len(block_ids), len(self._block_ids))
        if block_ids[:common] != self._block_ids[:common]:
            raise ValueError(f"{self.request_id}: the engine bound other ids than before")
        if len(block_ids) > common:
            self._block_ids = block_ids
        return ()

    def claim_all(self, indices: Sequence[int]) -> Sequence[tuple[Verdict, int]]:
        """Return what `claim` says of each. A message has hundreds of parts, which mostly are all to be placed."""
        room, groups, ids = self.manifest or self._room, self.num_groups, self._block_ids
        end = min(room.end, len(ids))
        is_plain = self.state is IncomingState.SHIPPING and room.first_block * groups <= min(indices)
        if not is_plain or max(indices) >= end * groups or not self._arrivals.claim_all(indices):
            return [self.claim(index) for index in indices]
        parts = [ids[index] if groups == 1 else ids[index // groups] * groups + index % groups for index in indices]
        return list(zip(repeat(Verdict.PLACE), parts, strict=False))

    def claim(self, index: int) -> Claim:
        """A part is ready. With PLACE the transport writes it from now on, until `settle` is called for it."""
        if self.state is not IncomingState.SHIPPING:
            if not self.is_open:
                return Claim(Verdict.LATE)
            self.accepted()
        block, group = divmod(index, self.num_groups)
        room = self.manifest or self._room
        if not room.first_block <= block < room.end:
            return Claim(Verdict.DROP)
        if self._arrivals.is_taken(index):
            return Claim(Verdict.DUPLICATE)
        if block >= len(self._block_ids):
            return Claim(Verdict.WAIT)
        self._arrivals.claim(index)
        return Claim(Verdict.PLACE, self._block_ids[block] * self.num_groups + group)

    def settle(self, index: int, is_intact: bool, now_s: float) -> Effects:
        """As `settle_all` of one part."""
        return self.settle_all((index,), is_intact, now_s)

    def settle_all(self, indices: Sequence[int], is_intact: bool, now_s: float) -> Effects:
        """Nothing writes claimed parts any more; what is in them is right, or is not. ValueError without a claim."""
        self._arrivals.settle(indices, is_intact)
        if is_intact:
            self.times.verified(indices, now_s)
        effects: Effects = ()
        for index in () if is_intact else indices:
            if self.is_open:
                effects += self._corrupt(index, now_s)
        if self.is_open:
            return self._land() if is_intact else effects
        return effects + (self._end(self._outcome) if self._awaits_claims else ())

    # ----------------------------------------------------------------------------------------- events: what ends it

    def cancel(self, now_s: float) -> Effects:
        """Nobody wants it any more; the blocks are handed over once the prefill pod has stopped."""
        if self.state is IncomingState.RESERVED:
            return self._end(Outcome.CANCELLED, and_first=(SendFence(),))
        if self.state is IncomingState.SHIPPING:
            return self._fence(Outcome.CANCELLED, now_s)
        if self.state is IncomingState.FENCING:
            self._outcome = Outcome.CANCELLED
        return ()

    def stream_lost(self, error: PagewireError, now_s: float) -> Effects:
        """The bulk stream broke, by `error`; the link may still be up."""
        return self._lose(error, now_s) if self.is_open else ()

    def peer_lost(self) -> Effects:
        """The link is gone as well: there is nobody to fence."""
        return self._gone(PrefillLost("the link to the prefill pod is gone"))

    def expired(self, now_s: float) -> Effects:
        """Look at the clock. A fence without an answer ends too: we claimed nothing since it began."""
        if now_s < self.deadline_s:
            return ()
        return self._lose(TransferTimeout("its deadline passed"), now_s) if self.is_open else self.fenced()

    def close(self) -> None:
        """The hand-over was acted upon; a shipment that still owns blocks stays as it is."""
        if self.state in (IncomingState.LANDED, IncomingState.RESUMABLE):
            self.state = IncomingState.CLOSED

    # ---------------------------------------------------------------------------------------------------- decisions

    def _complete(self, num_blocks: int, now_s: float) -> Effects:
        """The manifest is known."""
        self.accepted()
        if num_blocks == 0:
            return self._end(Outcome.FINISHED)
        end = self.first_block + num_blocks
        if not max(self._announced.end, self._arrivals.end) <= end <= self._room.end:
            why = f"manifest of {num_blocks} blocks contradicts what was reserved or announced"
            return self._lose(ContractBroken(why), now_s)
        self.manifest = Manifest(first_block=self.first_block, num_blocks=num_blocks)
        if end > self._announced.end:  # the last chunk's announcement comes behind the first token
            self.times.announced(parts_of(self._announced.end, end - self._announced.end, self.num_groups), now_s)
        self.deadline_s = min(self.deadline_s, now_s + self._landing_s)
        return self._ask_bind(end) + self._land()

    def _ask_bind(self, end: int) -> Effects:
        if end <= self._bind_asked:
            return ()
        self._bind_asked = end
        return (AskBind(num_blocks=end),)

    def _corrupt(self, index: int, now_s: float) -> Effects:
        block, group = divmod(index, self.num_groups)
        if not self._arrivals.take_second_try(index):
            return self._lose(BlockCorrupt(f"block {block} arrived corrupt twice"), now_s)
        return (AskResend(first_block=block, num_blocks=1, group=group if self.num_groups > 1 else None),)

    def _land(self) -> Effects:
        if self.manifest is None or not self.is_landed:
            return ()
        self.state = IncomingState.LANDED
        return Detach(), SendLanded(), HandOver(outcome=Outcome.LANDED, kept_blocks=self.manifest.num_blocks)

    def _gone(self, error: PagewireError) -> Effects:
        if self.is_open:
            self.error = error
            return self._end(Outcome.LOST)
        return self.fenced()

    def _lose(self, error: PagewireError, now_s: float) -> Effects:
        self.error = error
        if self.state is IncomingState.RESERVED:
            return self._end(Outcome.LOST, and_first=(SendFence(),))
        return self._fence(Outcome.LOST, now_s)

    def _fence(self, outcome: Outcome, now_s: float) -> Effects:
        self.state = IncomingState.FENCING
        self._outcome = outcome
        self.deadline_s = now_s + self._fence_s
        return Detach(), SendFence()

    def _end(self, outcome: Outcome, and_first: Effects = ()) -> Effects:
        """The one transition that hands over without landing; fencing has detached already."""
        detach: Effects = () if self.state is IncomingState.FENCING else (Detach(),)
        if self._arrivals.has_claims:
            self.state = IncomingState.FENCING
            self._outcome = outcome
            self._awaits_claims = True
            return *detach, *and_first
        may_resume = outcome is Outcome.LOST and self.state is not IncomingState.RESERVED
        self.state = IncomingState.RESUMABLE if may_resume else IncomingState.CLOSED
        kept = self.landed_prefix_blocks if may_resume else 0
        return (*detach, *and_first, HandOver(outcome=outcome, kept_blocks=kept))
