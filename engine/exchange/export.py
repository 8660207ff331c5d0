"""One outgoing shipment and the words that it says to its taker.

Knows frames; knows no engine and no transport. Invariant: all that it says carries its request and generation.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from pagewire.core.block_hash import BlockHash
from pagewire.core.errors import ErrorInfo
from pagewire.core.messages import Fenced, FetchReady, ShipmentFailed
from pagewire.core.span import Span, SpanKind
from pagewire.core.trace_context import TraceContext
from pagewire.kvtransfer.effects import Announce
from pagewire.kvtransfer.outgoing import OutgoingShipment
from pagewire.serving.link import Link

log = logging.getLogger(__name__)

ExportKey = tuple[str, str, int]
"""The taker's pod id, the request id and the generation that its frames carry."""


@dataclass(slots=True, kw_only=True)
class Export:
    """Blocks on their way to `link`'s pod; here, cached ones that it fetches.

    `engine_id` names what holds the blocks in our engine. `deadline_s` is absolute, on this pod's clock, and so is
    `lands_by_s`, when it is to be with its taker. `hashes` are those that a fetch asked for.
    """

    link: Link
    request_id: str
    generation: int
    engine_id: str
    shipment: OutgoingShipment
    deadline_s: float
    lands_by_s: float = math.inf  # until all of it is computed
    hashes: tuple[BlockHash, ...] = ()
    opened_s: float = 0.0
    trace: TraceContext | None = None  # what its span is below, where the request is traced

    @property
    def key(self) -> ExportKey:
        """The name of this export among all of the pod."""
        return (self.link.peer.peer_id, self.request_id, self.generation)

    def say_ready(self, announced: Announce) -> None:
        """Announce blocks: of a fetch all there are, once."""
        self.link.say(FetchReady(**self._names(), num_blocks=announced.num_blocks))

    def say_failed(self, error: ErrorInfo) -> None:
        """Give the shipment up."""
        self.link.say(ShipmentFailed(**self._names(), error=error))

    def say_fenced(self) -> None:
        """Tell that nothing more comes and the blocks are released."""
        self.link.say(Fenced(**self._names()))

    def span(self, now_s: float) -> Span:
        """Return what a trace shows of it, once it is over."""
        return Span(
            name="serve_fetch",
            start_s=self.opened_s,
            end_s=now_s,
            attributes={"pagewire.blocks_asked": len(self.hashes), "pagewire.outcome": self._outcome},
            kind=SpanKind.SERVER,
        )

    @property
    def _outcome(self) -> str:
        outcome = self.shipment.outcome
        return outcome.value if outcome is not None else "open"

    async def stop(self) -> None:
        """Return when nobody but the engine writes into the blocks any more; nobody does into cached ones."""

    def _names(self) -> dict[str, Any]:
        return {"request_id": self.request_id, "generation": self.generation}
