"""The pods that this one takes blocks from: a link and a bulk stream to each, kept until they are gone for good.

Knows addresses, streams and what they cost; nothing of requests, except to tell the deliveries of a peer that it is
gone. Invariant: a delivery hears of the loss of its link and of its stream exactly while it is open.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable

import grpc

from pagewire.core.errors import BY_CAUSE, PeerMismatch, TransferFailed, Unavailable
from pagewire.core.kv_layout import KVLayout
from pagewire.core.load import Inflow, Load
from pagewire.core.messages import Heartbeat, LinkMessage, Welcome
from pagewire.engine.exchange.delivery import Delivery, SourceMessage
from pagewire.kvtransfer.effects import Outcome
from pagewire.kvtransfer.link_cost import LinkCost, LinkMeter
from pagewire.kvtransfer.offers import Offers
from pagewire.kvtransfer.transport import BlockMemory, ShipmentKey, TransferCounters
from pagewire.kvtransfer.transports.stream import CHANNEL_OPTIONS
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver
from pagewire.serving.handshake import Identity
from pagewire.serving.link import Link, LinkDialer, LinkEvents
from pagewire.serving.tls import CLEAR, Wire

log = logging.getLogger(__name__)

CONNECT_S = 5.0
FORGET_S = 60.0  # a pod that restarts in time is met again at once
MAX_INFLOWS = 32  # in one load: it goes out every second

CAUSES = [cause for cause, error in BY_CAUSE.items() if issubclass(error, TransferFailed)]
UNREACHED = (Unavailable.cause, PeerMismatch.cause, TransferFailed.cause)

BulkChannel = Callable[[str], grpc.aio.Channel]


def open_bulk_channel(address: str, wire: Wire = CLEAR) -> grpc.aio.Channel:
    """Return a channel to `address` that is fit for blocks."""
    return wire.channel(address, CHANNEL_OPTIONS)


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
        channel: grpc.aio.Channel,
        lost: Counter[str],
        wire: Wire,
    ) -> None:
        self._pod_id = pod_id
        self._offers = offers
        self.load: Load | None = None  # its own latest word
        self._lost = lost
        self.meter = LinkMeter()
        self._block_bytes = memory.block_bytes
        self._deliveries: dict[tuple[str, int], Delivery] = {}
        self._alone_since_s: float | None = None
        self._dialer = LinkDialer(
            address,
            lambda: identity,
            LinkEvents(on_message=self._on_message, on_up=self._on_up, on_down=self._on_down),
            wire=wire,
        )
        self._channel = channel  # of the bulk stream alone
        self.receiver = StreamReceiver(
            self._channel,
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
        await self.receiver.connected(CONNECT_S)
        return link

    def _is_its(self, link: Link | None) -> bool:
        """True for a link to this very pod, and not to one that came in its place at the address."""
        return link is not None and link.peer.peer_id == self._pod_id

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
        if delivery.cause:
            self._lost[delivery.cause] += 1
        if delivery.answered_s is not None:
            self.meter.answered(delivery.answered_s)
        if delivery.outcome is Outcome.LANDED:
            self.meter.landed(delivery.kept_blocks * self._block_bytes, delivery.shipment.transfer_s)

    def tick(self, now_s: float) -> None:
        """Let every delivery look at the clock."""
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
        await self._channel.close()

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

    def _on_stream_lost(self, _peer_id: str, keys: tuple[ShipmentKey, ...]) -> None:
        lost = set(keys)
        for delivery in list(self._deliveries.values()):
            if (delivery.shipment.shipment_id, delivery.shipment.generation) in lost:
                delivery.stream_lost()


class Peers:
    """All of them, by id and address; met on first use. `bulk_channel` opens the channel of a bulk stream."""

    def __init__(
        self,
        identity: Identity,
        memory: BlockMemory,
        layout: KVLayout,
        offers: Offers,
        bulk_channel: BulkChannel,
        wire: Wire,
    ) -> None:
        self._identity = identity
        self._memory = memory
        self._layout = layout
        self._offers = offers
        self._bulk_channel = bulk_channel
        self._wire = wire
        self._peers: dict[tuple[str, str], Peer] = {}
        self.lost = Counter(dict.fromkeys(CAUSES, 0))  # shipments to us, by the cause of their loss
        self.unreached = Counter(dict.fromkeys(UNREACHED, 0))  # pods that were to ship and could not be asked, likewise
        self._forgotten = TransferCounters()
        self._closing: set[asyncio.Task[None]] = set()

    def at(self, pod_id: str, address: str) -> Peer:
        """Return the pod that calls itself `pod_id` at `address`."""
        peer = self._peers.get((pod_id, address))
        if peer is None:
            channel = self._bulk_channel(address)
            peer = Peer(
                pod_id,
                address,
                self._identity,
                self._memory,
                self._layout,
                self._offers,
                channel,
                self.lost,
                self._wire,
            )
            self._peers[pod_id, address] = peer
        return peer

    def known(self, pod_id: str, address: str) -> Peer | None:
        """Return the pod if it was met; nothing is dialled."""
        return self._peers.get((pod_id, address))

    def cost(self, pod_id: str, address: str) -> LinkCost:
        """Return what taking blocks from that pod costs, as far as it is known."""
        peer = self.known(pod_id, address)
        return peer.meter.cost if peer is not None else LinkCost()

    def mean_cost(self) -> LinkCost | None:
        """Return what taking blocks costs in the mean over the pods that it was measured with; None before any."""
        costs = [peer.meter.cost for peer in list(self._peers.values()) if peer.meter.is_measured]
        if not costs:
            return None
        return LinkCost(
            rtt_s=sum(cost.rtt_s for cost in costs) / len(costs),
            s_per_byte=sum(cost.s_per_byte for cost in costs) / len(costs),
        )

    def all(self) -> dict[str, Peer]:
        """Return who was met and is not forgotten, by pod id."""
        return {pod_id: peer for (pod_id, _), peer in list(self._peers.items())}

    @property
    def num_quarantined(self) -> int:
        """Blocks whose shipment is over for its request and not yet for their writers."""
        return sum(peer.num_quarantined for peer in list(self._peers.values()))

    @property
    def num_arriving(self) -> int:
        """Blocks that are bound here and whose KV is on its way."""
        return sum(peer.num_arriving for peer in list(self._peers.values()))

    def inflows(self) -> tuple[Inflow, ...]:
        """Return how much came from whom, of the `MAX_INFLOWS` pods that most came from."""
        taken = Counter({pod_id: peer.receiver.counters.bytes for pod_id, peer in self.all().items()})
        return tuple(Inflow(source=pod_id, num_bytes=num_bytes) for pod_id, num_bytes in taken.most_common(MAX_INFLOWS))

    def tick(self, now_s: float) -> None:
        """Let every delivery look at the clock; hang up on pods that are gone."""
        for key, peer in list(self._peers.items()):
            peer.tick(now_s)
            if peer.is_gone(now_s):
                log.info("%s at %s is forgotten", *key)
                del self._peers[key]
                self._forgotten = _sum(self._forgotten, peer.receiver.counters)
                task = asyncio.create_task(peer.aclose())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def counters(self) -> TransferCounters:
        """Return what came in since the start."""
        return _sum(self._forgotten, *(peer.receiver.counters for peer in list(self._peers.values())))

    async def aclose(self) -> None:
        """Hang up on all."""
        await asyncio.gather(*self._closing, *(peer.aclose() for peer in list(self._peers.values())))


def _sum(*parts: TransferCounters) -> TransferCounters:
    names = [field.name for field in dataclasses.fields(TransferCounters)]
    return TransferCounters(**{name: sum(getattr(part, name) for part in parts) for name in names})
