"""What a shipment wants done, as values: the machines decide, the services act.

An event returns a tuple of effects, to be carried out in order. Knows nothing of who carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """How a shipment ended."""

    LANDED = "landed"  # every block of the manifest is verified
    LOST = "lost"  # the peer, its stream or its time is gone, or it broke the contract
    CANCELLED = "cancelled"  # nobody wants it any more
    REFUSED = "refused"  # the prefill pod did not take the prompt
    FINISHED = "finished"  # the first token ended the sequence: nothing to ship


class Verdict(StrEnum):
    """What to do with a block that is ready."""

    PLACE = "place"  # write it into its block: a claim, open until it is settled
    WAIT = "wait"  # its block id is not bound yet: keep it and offer it again
    DUPLICATE = "duplicate"  # it is here, or on its way into its block
    LATE = "late"  # the shipment has ended
    DROP = "drop"  # not of this shipment


# ---------------------------------------------------------------------------------------------------- decode pod


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBind:
    """Ask the engine for ids until the block table is `num_blocks` long (the whole chain, from block 0)."""

    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskResend:
    """Ask the prefill pod once more for these blocks, or for one layer group of them."""

    first_block: int
    num_blocks: int
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Detach:
    """Unregister from the transport, at once: afterwards nothing of this shipment is claimed."""


@dataclass(frozen=True, slots=True)
class SendFence:
    """Tell the prefill pod, if it can still be reached, to stop."""


@dataclass(frozen=True, slots=True)
class SendLanded:
    """Tell the prefill pod that it may release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """The blocks leave the shipment, exactly once: nobody writes into them for it any more.

    The first `kept_blocks` of the manifest are verified. LANDED: the sequence owns them all; LOST: the sequence goes on
    from what is kept, here or with another prefill pod; CANCELLED, REFUSED, FINISHED: nothing is kept.
    """

    outcome: Outcome
    kept_blocks: int = 0


# --------------------------------------------------------------------------------------------------- prefill pod


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBlocks:
    """Queue these parts, as (index in the chain, id in the pool), on the transport; see `parts`."""

    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """Tell the decode pod that these blocks, or one layer group of them, are final and on their way."""

    first_block: int
    num_blocks: int
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Purge:
    """Have the transport forget the shipment, then say `purged`: until then it may still read the blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The pins end, exactly once. The engine is told `Release` when `is_computed`, else `Abort`; then say `freed`."""

    outcome: Outcome
    is_computed: bool


@dataclass(frozen=True, slots=True)
class SendFenced:
    """Tell the decode pod that nothing more is sent and the blocks are released."""


Effect = (
    AskBind
    | AskResend
    | Detach
    | SendFence
    | SendLanded
    | HandOver
    | SendBlocks
    | Announce
    | Purge
    | Release
    | SendFenced
)
Effects = tuple[Effect, ...]


class Claim(NamedTuple):
    """The answer to a part that is ready. PLACE: it is written into `block_id`, and then settled, exactly once."""

    verdict: Verdict
    block_id: int = -1
