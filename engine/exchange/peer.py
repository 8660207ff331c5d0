"""One pod that this one takes blocks from: a link and a bulk stream to it.

Knows its address, its stream and what that costs; nothing of requests, except to tell the deliveries from it that it is
gone. Invariant: a delivery hears of the loss of its link and of its stream exactly while it is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pagewire.core.errors import PagewireError, PeerMismatch, Unavailable
from pagewire.core.kv_layout import KVLayout
from pagewire.core.load import Load
from pagewire.core.messages import Heartbeat, LinkMessage, Welcome
from pagewire.engine.exchange.delivery import Delivery, SourceMessage
from pagewire.kvtransfer.effects import Outcome
from pagewire.kvtransfer.link_cost import LinkMeter
from pagewire.kvtransfer.offers import Offers
from pagewire.kvtransfer.transport import BlockMemory, ShipmentKey
from pagewire.kvtransfer.transports.stream_receiver import Dial, StreamReceiver
from pagewire.serving.handshake import Identity
from pagewire.serving.link import Link, LinkEvents
from pagewire.serving.link_dialer import LinkDialer
from pagewire.serving.tls import Wire

log = logging.getLogger(__name__)

CONNECT_S = 5.0
FORGET_S = 60.0  # a pod that restarts in time is met again at once


class Peer:
    """One source: what was dialled, and the deliveries from it that are not settled."""

    def __init__(
        self,
        pod_id: str,
        address: str,
        identity: Identity,
        memory: BlockMemory,
        layout: KVLayout,
        offers: Offers,
        dial: Dial,
        on_settled: Callable[[Delivery], None],
        wire: Wire,
    ) -> None:
        self._pod_id = pod_id
        self._offers = offers
        self.load: Load | None = None  # its own latest word
        self._on_settled = on_settled
        self.meter = LinkMeter()
        self._ticked_s: float | None = None
        self._block_bytes = memory.block_bytes
        self._deliveries: dict[tuple[str, int], Delivery] = {}
        self._alone_since_s: float | None = None
        self._dialer = LinkDialer(
            address,
            lambda: identity,
            LinkEvents(on_message=self._on_message, on_up=self._on_up, on_down=self._on_down),
            wire=wire,
        )
        self.receiver = StreamReceiver(
            dial,
            pod_id=identity.peer_id,
            source_id=pod_id,
            secret=identity.secret,
            memory=memory,
            layout=layout,
            on_lost=self._on_stream_lost,
        )
        self._tasks = [asyncio.create_task(self._dialer.run()), asyncio.create_task(self.receiver.run())]

    async def link(self) -> Link:
        """Return the link once the bulk stream is up too. Raises Unavailable, PeerMismatch or TransferFailed."""
        link = await self._dialer.up(CONNECT_S)
        if not self._is_its(link):
            raise PeerMismatch(f"{self._dialer.address} is {link.peer.peer_id}, not {self._pod_id}")
        if isinstance(link.peer, Welcome) and not self._offers.common(link.peer.transports):
            ours = ", ".join(self._offers.texts)
            raise PeerMismatch(f"{self._pod_id} ships by {link.peer.transports or 'no transport'}, not by {ours}")
        if not self.receiver.is_connected:
            await self._connected_beside(link)
        return link

    async def _connected_beside(self, link: Link) -> None:
        """Wait for the bulk stream while the link is up: a pod that goes away meanwhile is not waited for."""
        connected, ended = asyncio.create_task(self.receiver.connected(CONNECT_S)), asyncio.create_task(link.ended())
        is_either = asyncio.Event()
        for task in (connected, ended):
            task.add_done_callback(lambda _: is_either.set())
        try:
            await is_either.wait()
            if not connected.done():
                raise Unavailable(f"the link to {self._pod_id} is down: {link.reason}")
            await connected
        finally:
            connected.cancel()
            ended.cancel()

    def _is_its(self, link: Link | None) -> bool:
        """True for a link to this very pod, and not to one that came in its place at the address."""
        return link is not None and link.peer.peer_id == self._pod_id

    @property
    def belief(self) -> float:
        """What share of its own word is believed where that speaks against asking it, 0 to 1; see `Rest`."""
        return self.meter.belief

    @property
    def num_quarantined(self) -> int:
        """Blocks of shipments that are being fenced."""
        return sum(delivery.shipment.num_quarantined for delivery in list(self._deliveries.values()))

    @property
    def num_arriving(self) -> int:
        """Blocks of shipments that have not landed."""
        return sum(delivery.shipment.num_arriving for delivery in list(self._deliveries.values()))

    def add(self, delivery: Delivery) -> None:
        """Route the frames of this delivery to it until it is settled."""
        self._deliveries[delivery.key] = delivery
        delivery.handed_over.add_done_callback(lambda _: self._settled(delivery))

    def _settled(self, delivery: Delivery) -> None:
        self._deliveries.pop(delivery.key, None)
        self._on_settled(delivery)
        if delivery.answered_s is not None:
            self.meter.answered(delivery.answered_s)
        if delivery.outcome is Outcome.LANDED:
            self.meter.landed(delivery.kept_blocks * self._block_bytes, delivery.shipment.transfer_s)

    def tick(self, now_s: float) -> None:
        """Let every delivery look at the clock, and what the link was measured to cost fade."""
        self.meter.rested(now_s - (now_s if self._ticked_s is None else self._ticked_s))
        self._ticked_s = now_s
        for delivery in list(self._deliveries.values()):
            delivery.tick()
        if self._is_its(self._dialer.link) or self._deliveries:
            self._alone_since_s = None
        elif self._alone_since_s is None:
            self._alone_since_s = now_s

    def is_gone(self, now_s: float) -> bool:
        """True when nobody has answered for so long that nobody will."""
        return self._alone_since_s is not None and now_s - self._alone_since_s >= FORGET_S

    async def aclose(self) -> None:
        """Hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_message(self, link: Link, message: LinkMessage) -> None:
        if isinstance(message, Heartbeat):
            self.load = message.load or self.load
        elif isinstance(message, SourceMessage):
            delivery = self._deliveries.get((message.request_id, message.generation))
            if delivery is not None and delivery.link is link:
                delivery.on_message(message)

    def _on_up(self, link: Link) -> None:
        log.info("linked to %s", link.peer.peer_id)
        if isinstance(link.peer, Welcome):
            self.receiver.offer(self._offers.common(link.peer.transports) if self._is_its(link) else ())

    def _on_down(self, link: Link) -> None:
        log.info("the link to %s is down: %s", link.peer.peer_id, link.reason)
        self.receiver.drop("the link is down")  # the bulk stream has no heartbeat of its own
        for delivery in list(self._deliveries.values()):
            if delivery.link is link:
                delivery.peer_lost()

    def _on_stream_lost(self, _peer_id: str, keys: tuple[ShipmentKey, ...], error: PagewireError) -> None:
        lost = set(keys)
        for delivery in list(self._deliveries.values()):
            if (delivery.shipment.shipment_id, delivery.shipment.generation) in lost:
                delivery.stream_lost(error)
