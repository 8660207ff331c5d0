"""The prefill pods that this decode pod has met: a link and a bulk stream to each, kept while they are used.

Knows addresses and streams; nothing of requests, except to tell the deliveries of a peer that it is gone.
Invariant: a delivery hears of the loss of its link and of its stream exactly while it is open.
"""

from __future__ import annotations

import asyncio
import logging

import grpc

from pagewire.core.messages import ChunkReady, Fenced, FirstToken, LinkMessage, PrefillFailed, RunAccepted, RunRefused
from pagewire.decode_service.delivery import Delivery
from pagewire.kvtransfer.transport import ShipmentKey, TransferCounters
from pagewire.kvtransfer.transports.grpc import CHANNEL_OPTIONS, GrpcReceiver
from pagewire.serving.handshake import Identity
from pagewire.serving.link import Link, LinkDialer, LinkEvents

log = logging.getLogger(__name__)

CONNECT_S = 5.0


class PrefillPeer:
    """One prefill pod: what was dialled, and the deliveries from it that are not settled."""

    def __init__(self, pod_id: str, address: str, identity: Identity, block_bytes: int) -> None:
        self._deliveries: dict[tuple[str, int], Delivery] = {}
        self._dialer = LinkDialer(
            address,
            lambda: identity,
            LinkEvents(on_message=self._on_message, on_up=self._on_up, on_down=self._on_down),
        )
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.receiver = GrpcReceiver(
            self._channel,
            pod_id=identity.peer_id,
            sender_id=pod_id,
            secret=identity.secret,
            block_bytes=block_bytes,
            on_lost=self._on_stream_lost,
        )
        self._tasks = [asyncio.create_task(self._dialer.run()), asyncio.create_task(self.receiver.run())]

    async def link(self) -> Link:
        """Return the link once the bulk stream is up too. Raises Unavailable, PeerMismatch or TransferFailed."""
        link = await self._dialer.up(CONNECT_S)
        await self.receiver.connected(CONNECT_S)
        return link

    def add(self, delivery: Delivery) -> None:
        """Route the frames of this delivery to it until it is settled."""
        self._deliveries[delivery.key] = delivery
        delivery.handed_over.add_done_callback(lambda _: self._deliveries.pop(delivery.key, None))

    def tick(self) -> None:
        """Let every delivery look at the clock."""
        for delivery in list(self._deliveries.values()):
            delivery.tick()

    async def aclose(self) -> None:
        """Hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def _on_message(self, link: Link, message: LinkMessage) -> None:
        if isinstance(message, RunAccepted | RunRefused | ChunkReady | FirstToken | PrefillFailed | Fenced):
            delivery = self._deliveries.get((message.request_id, message.generation))
            if delivery is not None and delivery.link is link:
                delivery.on_message(message)

    def _on_up(self, link: Link) -> None:
        log.info("linked to prefill pod %s", link.peer.peer_id)

    def _on_down(self, link: Link) -> None:
        log.info("the link to prefill pod %s is down: %s", link.peer.peer_id, link.reason)
        self.receiver.drop("the link is down")  # the bulk stream has no heartbeat of its own
        for delivery in list(self._deliveries.values()):
            if delivery.link is link:
                delivery.peer_lost()

    def _on_stream_lost(self, _peer_id: str, keys: tuple[ShipmentKey, ...]) -> None:
        lost = set(keys)
        for delivery in list(self._deliveries.values()):
            if (delivery.shipment.shipment_id, delivery.shipment.generation) in lost:
                delivery.stream_lost()


class PrefillPeers:
    """All of them, by id and address; met on first use."""

    def __init__(self, identity: Identity, block_bytes: int) -> None:
        self._identity = identity
        self._block_bytes = block_bytes
        self._peers: dict[tuple[str, str], PrefillPeer] = {}

    def at(self, pod_id: str, address: str) -> PrefillPeer:
        """Return the pod that calls itself `pod_id` at `address`."""
        peer = self._peers.get((pod_id, address))
        if peer is None:
            peer = self._peers[pod_id, address] = PrefillPeer(pod_id, address, self._identity, self._block_bytes)
        return peer

    def tick(self) -> None:
        """Let every delivery look at the clock."""
        for peer in self._peers.values():
            peer.tick()

    def counters(self) -> list[TransferCounters]:
        """Return what came in, stream by stream."""
        return [peer.receiver.counters for peer in self._peers.values()]

    async def aclose(self) -> None:
        """Hang up on all."""
        for peer in self._peers.values():
            await peer.aclose()
