"""The shipments into one sequence's reserved blocks, one after another, each of its own generation.

Knows pods to ask and what they brought; nothing of why. Invariants: at most one shipment is open at a time; after
`settle` nobody writes into the sequence's blocks.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.clock import Clock
from pagewire.core.errors import InvalidRequest, PagewireError, Unavailable
from pagewire.core.messages import Fetch, FirstToken, Run, Source
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.core.trace_context import TraceContext
from pagewire.engine.exchange.delivery import Delivery, unheard
from pagewire.engine.exchange.peers import Peers
from pagewire.engine.exchange.permits import Permits
from pagewire.engine.exchange.prefix_plan import PrefixPlan
from pagewire.engine.running_engine import RunningEngine
from pagewire.kvtransfer.effects import Outcome
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.serving.tracing import new_span_id

log = logging.getLogger(__name__)

Question = Callable[[IncomingShipment, bytes, str], Run | Fetch]
"""Makes the message that begins a shipment, of the shipment, its ticket and its traceparent."""

Plan = Callable[[int, Sequence[Source]], PrefixPlan]
"""Says how to build a prompt of which so many blocks are here, where these sources may be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """What all takings of a pod share. A value: it does nothing itself."""

    engine: RunningEngine
    peers: Peers
    permits: Permits
    clock: Clock
    lease_s: float
    transfer_timeout_s: float


class Taking:
    """What one sequence takes. `deadline_s` is absolute; `on_first_token` hears of each first token that comes.

    `trace` is what is below the span that the shipments are part of; None where nobody traces.
    """

    def __init__(
        self,
        taker: Taker,
        request_id: str,
        *,
        deadline_s: float,
        watch: Stopwatch,
        on_first_token: Callable[[FirstToken], None] = unheard,
        trace: TraceContext | None = None,
    ) -> None:
        self.runs: list[Delivery] = []  # those that reached a pod, the last one last
        self.fetches: list[Delivery] = []
        self.losses: list[tuple[str, str]] = []  # pods that could not be asked for runs, or lost them, each with why
        self._taker = taker
        self._request_id = request_id
        self._deadline_s = deadline_s
        self._watch = watch
        self._on_first_token = on_first_token
        self._trace = trace
        self._is_settled = False

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline, 0 after it."""
        return max(0.0, self._deadline_s - self._taker.clock.now())

    async def run(
        self, pod_id: str, address: str, *, first_block: int, max_blocks: int, question: Question
    ) -> Delivery | None:
        """Have a prompt built by one pod, and see its shipment to the end; None when the pod cannot be reached."""
        return await self._take(pod_id, address, first_block, max_blocks, question, self.runs, self._deadline_s)

    async def fetch_prefix(self, spec: SequenceSpec, num_blocks: int, sources: Sequence[Source], plan: Plan) -> int:
        """Have other pods ship what they hold of a prompt behind its first `num_blocks`, as far as the plan says.

        A source that is gone, or holds less than was said, costs an exchange: the next best is asked for the rest,
        unless all of it took as long as one transfer may. Returns how many blocks of the chain are here then.
        """
        ends_s = self._taker.clock.now() + self._taker.transfer_timeout_s
        tokens, block_size = spec.tokens + spec.output, self._taker.engine.ready.layout.block_size
        while not self._is_settled and (best := plan(num_blocks, sources)).source is not None:
            hashes = chain(spec.root, tokens, block_size)[num_blocks : best.num_blocks]
            num_blocks += await self._fetch(best.source, num_blocks, hashes, ends_s)
            sources = [each for each in sources if each.pod_id != best.source.pod_id]
            if self._taker.clock.now() >= ends_s:
                break
        return num_blocks

    async def _fetch(self, source: Source, first_block: int, hashes: Sequence[BlockHash], ends_s: float) -> int:
        """Have cached blocks shipped by one pod, from `first_block` of the chain on; return how many came by then."""

        def question(shipment: IncomingShipment, ticket: bytes, traceparent: str) -> Fetch:
            return Fetch(
                request_id=shipment.request_id,
                generation=shipment.generation,
                shipment_id=shipment.shipment_id,
                first_block=first_block,
                hashes=tuple(hashes),
                ticket=ticket,
                lease_s=self._taker.lease_s,
                deadline_s=self.remaining_s,
                traceparent=traceparent,
            )

        delivery = await self._take(
            source.pod_id, source.address, first_block, len(hashes), question, self.fetches, ends_s
        )
        self._watch.stamp(Phase.PREFIX_FETCHED, self._taker.clock.now())
        return delivery.kept_blocks if delivery is not None else 0

    async def settle(self) -> None:
        """End what is on its way and begin nothing more; returns when nobody writes into the sequence's blocks."""
        self._is_settled = True
        for delivery in (*self.fetches, *self.runs):
            delivery.cancel()
            await asyncio.shield(delivery.handed_over)  # which resolves once, whoever waits no longer
        self._on_first_token = unheard  # whoever listens holds this: neither shall keep the other

    async def _take(
        self,
        pod_id: str,
        address: str,
        first_block: int,
        max_blocks: int,
        question: Question,
        kind: list[Delivery],
        ends_s: float,
    ) -> Delivery | None:
        peer = self._taker.peers.at(pod_id, address)
        try:
            link = await peer.link()
            if self._is_settled:
                return None  # it took a while, and nobody wants it any more: there are no blocks to write into
            shipment = self._shipment(first_block, max_blocks, peer.receiver.num_groups, ends_s)
            trace = self._trace.below(new_span_id()) if self._trace is not None else None
            delivery = Delivery(
                shipment,
                link=link,
                receiver=peer.receiver,
                bind=self._taker.engine.bind,
                clock=self._taker.clock,
                watch=self._watch,
                on_first_token=self._on_first_token,
                trace=trace,
            )
        except PagewireError as error:
            log.warning(
                "%s: %s not used: %s", self._request_id, pod_id, error.message, extra={"request_id": self._request_id}
            )
            self._taker.peers.unreached[error.cause] += 1
            if kind is self.runs:
                self.losses.append((pod_id, error.cause))
            return None
        kind.append(delivery)
        peer.add(delivery)
        try:
            ticket = self._taker.permits.mint(shipment, pod_id)
            link.send(question(shipment, ticket, trace.header if trace is not None else ""))
        except Unavailable:
            delivery.peer_lost()
        await asyncio.shield(delivery.handed_over)
        if delivery.cause and kind is self.runs:
            self.losses.append((pod_id, delivery.cause))
        if delivery.outcome in (Outcome.LOST, Outcome.REFUSED):
            is_wrong = InvalidRequest.cause in (delivery.cause, delivery.refusal)  # nobody's trouble but the caller's
            log.log(
                logging.INFO if is_wrong else logging.WARNING,
                "%s: %s by %s: %s",
                self._request_id,
                delivery.outcome,
                pod_id,
                delivery.why,
                extra={"request_id": self._request_id},
            )
        return delivery

    def _shipment(self, first_block: int, max_blocks: int, num_groups: int, ends_s: float) -> IncomingShipment:
        return IncomingShipment(
            request_id=self._request_id,
            generation=len(self.runs) + len(self.fetches) + 1,
            shipment_id=secrets.randbits(63),
            first_block=first_block,
            max_blocks=max_blocks,
            deadline_s=min(self._deadline_s, ends_s),
            landing_s=self._taker.transfer_timeout_s,
            num_groups=num_groups,
        )
