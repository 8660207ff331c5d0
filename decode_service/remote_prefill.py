"""One request's prompt on prefill pods: tried one after another, each try a delivery of its own generation.

Knows tries and what they brought; nothing of the engine's batch and of the client. Invariants: at most one delivery is
open at a time; the first first token stands, whoever samples it again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from pagewire.core.errors import PagewireError, Unavailable
from pagewire.core.messages import Candidate, FirstToken, Run, SequenceSpec
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.decode_service.delivery import Delivery
from pagewire.decode_service.surroundings import Surroundings
from pagewire.kvtransfer.effects import Outcome
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.kvtransfer.ticket import TicketClaims
from pagewire.kvtransfer.transport import Receiver
from pagewire.serving.link import Link

log = logging.getLogger(__name__)

TICKET_GRACE_S = 60.0


class RemotePrefill:
    """The tries of one request. `deadline_s` is absolute; `on_first_token` is called once at most."""

    def __init__(
        self,
        spec: SequenceSpec,
        around: Surroundings,
        *,
        deadline_s: float,
        watch: Stopwatch,
        on_first_token: Callable[[FirstToken], None],
    ) -> None:
        self.first_token: FirstToken | None = None
        self.deliveries: list[Delivery] = []  # the tries that reached a pod, the last one last
        self._spec = spec
        self._around = around
        self._deadline_s = deadline_s
        self._watch = watch
        self._on_first_token = on_first_token
        self._num_tokens = len(spec.tokens) + len(spec.output)

    @property
    def is_finished(self) -> bool:
        """True when the first token ended the sequence."""
        return self.first_token is not None and self.first_token.record.finish_reason is not None

    async def sample(self, candidates: tuple[Candidate, ...]) -> None:
        """Have the first token sampled and nothing shipped, by the first candidate that does."""
        for candidate in candidates:
            await self._run_on(candidate, first_block=0, ship=False)
            if self.first_token is not None:
                return

    async def ship(self, candidates: tuple[Candidate, ...], hit_blocks: int) -> int:
        """Have the KV behind the `hit_blocks` cached ones brought here; return the tokens that need no computing.

        A pod that is not there or refuses costs nothing, and the next one is asked. One that was lost on the way is
        not made good by another, which would begin from nothing: what landed stays, and the rest is computed here.
        """
        num_blocks = hit_blocks
        for candidate in candidates:
            delivery = await self._run_on(candidate, first_block=hit_blocks, ship=True)
            if delivery is None or delivery.outcome is Outcome.REFUSED:
                continue
            if delivery.outcome is Outcome.LANDED:
                return self._num_tokens
            num_blocks += delivery.kept_blocks
            break
        # Without a first token the last prompt token is computed here, for its logits; a partial block never is kept.
        block_size = self._around.layout.block_size
        return min(num_blocks, (self._num_tokens - 1) // block_size) * block_size

    async def settle(self) -> None:
        """End what is on its way; returns when nobody writes into the request's blocks any more."""
        for delivery in self.deliveries:
            delivery.cancel()
            await delivery.handed_over

    async def _run_on(self, candidate: Candidate, *, first_block: int, ship: bool) -> Delivery | None:
        """Run the prompt on one prefill pod and see it to its end; None when the pod cannot be reached."""
        peer = self._around.peers.at(candidate.pod_id, candidate.address)
        try:
            link = await peer.link()
            delivery = self._delivery(link, peer.receiver, first_block)
        except PagewireError as error:
            log.warning("%s: prefill pod %s not used: %s", self._spec.request_id, candidate.pod_id, error.message)
            return None
        self.deliveries.append(delivery)
        peer.add(delivery)
        self._watch.stamp(Phase.RUN_SENT, self._around.clock.now())
        try:
            link.send(self._run_message(delivery.shipment, candidate, ship))
        except Unavailable:
            delivery.peer_lost()
        await asyncio.shield(delivery.handed_over)
        if delivery.outcome in (Outcome.LOST, Outcome.REFUSED):
            why = delivery.error.message if delivery.error else delivery.shipment.error or "the link is down"
            log.warning("%s: %s by %s: %s", self._spec.request_id, delivery.outcome, candidate.pod_id, why)
        return delivery

    def _delivery(self, link: Link, receiver: Receiver, first_block: int) -> Delivery:
        around = self._around
        shipment = IncomingShipment(
            request_id=self._spec.request_id,
            generation=len(self.deliveries) + 1,
            shipment_id=secrets.randbits(63),
            first_block=first_block,
            max_blocks=around.layout.num_blocks(self._num_tokens) - first_block,
            deadline_s=self._deadline_s,
            landing_s=around.transfer_timeout_s,
        )
        return Delivery(
            shipment,
            link=link,
            receiver=receiver,
            memory=around.engine.pool,
            bind=around.engine.bind,
            clock=around.clock,
            watch=self._watch,
            on_first_token=self._take_first_token,
        )

    def _run_message(self, shipment: IncomingShipment, candidate: Candidate, ship: bool) -> Run:
        around = self._around
        claims = TicketClaims(
            request_id=shipment.request_id,
            source=candidate.pod_id,
            target=around.pod_id,
            shipment_id=shipment.shipment_id,
            first_block=shipment.first_block,
            generation=shipment.generation,
        )
        return Run(
            spec=self._spec,
            generation=shipment.generation,
            shipment_id=shipment.shipment_id,
            first_block=shipment.first_block,
            ship=ship,
            ticket=around.tickets.mint(claims, around.wall() + TICKET_GRACE_S),
            lease_s=around.lease_s,
            deadline_s=max(0.0, self._deadline_s - around.clock.now()),
        )

    def _take_first_token(self, message: FirstToken) -> None:
        if self.first_token is None:
            self.first_token = message
            self._on_first_token(message)
