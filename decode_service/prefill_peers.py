"""The prefill pods that this decode pod has met: a link and a bulk stream to each, kept until they are gone for good.

Knows addresses and streams; nothing of requests, except to tell the deliveries of a peer that it is gone.
Invariant: a delivery hears of the loss of its link and of its stream exactly while it is open.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable

import grpc

from pagewire.core.errors import PeerMismatch
from pagewire.core.messages import (
    ChunkReady,
    Fenced,
    FirstToken,
    LinkMessage,
    PrefillFailed,
    RunAccepted,
    RunRefused,
    Welcome,
)
from pagewire.decode_service.delivery import Delivery
from pagewire.kvtransfer.transport import ShipmentKey, TransferCounters
from pagewire.kvtransfer.transports.grpc import CHANNEL_OPTIONS, GrpcReceiver
from pagewire.serving.handshake import Identity
from pagewire.serving.link import Link, LinkDialer, LinkEvents

log = logging.getLogger(__name__)

CONNECT_S = 5.0
TRANSPORT = "grpc"
FORGET_S = 60.0  # a pod that restarts in time is met again at once

BulkChannel = Callable[[str], grpc.aio.Channel]


def open_bulk_channel(address: str) -> grpc.aio.Channel:
    """Return a channel to `address` that is fit for blocks."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


class PrefillPeer:
    """One prefill pod: what was dialled, and the deliveries from it that are not settled."""

    def __init__(
        self, pod_id: str, address: str, identity: Identity, block_bytes: int, channel: grpc.aio.Channel
    ) -> None:
        self._pod_id = pod_id
        self._deliveries: dict[tuple[str, int], Delivery] = {}
        self._alone_since_s: float | None = None
        self._dialer = LinkDialer(
            address,
            lambda: identity,
            LinkEvents(on_message=self._on_message, on_up=self._on_up, on_down=self._on_down),
        )
        self._channel = channel  # of the bulk stream alone
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
        if link.peer.peer_id != self._pod_id:
            raise PeerMismatch(f"{self._dialer.address} is {link.peer.peer_id}, not {self._pod_id}")
        if isinstance(link.peer, Welcome) and link.peer.transport != TRANSPORT:
            raise PeerMismatch(f"{self._pod_id} ships by {link.peer.transport or 'no transport'}, not by {TRANSPORT}")
        await self.receiver.connected(CONNECT_S)
        return link

    def add(self, delivery: Delivery) -> None:
        """Route the frames of this delivery to it until it is settled."""
        self._deliveries[delivery.key] = delivery
        delivery.handed_over.add_done_callback(lambda _: self._deliveries.pop(delivery.key, None))

    def tick(self, now_s: float) -> None:
        """Let every delivery look at the clock."""
        for delivery in list(self._deliveries.values()):
            delivery.tick()
        if self._dialer.link is not None or self._deliveries:
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
    """All of them, by id and address; met on first use. `bulk_channel` opens the channel of a bulk stream."""

    def __init__(self, identity: Identity, block_bytes: int, bulk_channel: BulkChannel) -> None:
        self._identity = identity
        self._block_bytes = block_bytes
        self._bulk_channel = bulk_channel
        self._peers: dict[tuple[str, str], PrefillPeer] = {}
        self._forgotten = TransferCounters()
        self._closing: set[asyncio.Task[None]] = set()

    def at(self, pod_id: str, address: str) -> PrefillPeer:
        """Return the pod that calls itself `pod_id` at `address`."""
        peer = self._peers.get((pod_id, address))
        if peer is None:
            channel = self._bulk_channel(address)
            peer = PrefillPeer(pod_id, address, self._identity, self._block_bytes, channel)
            self._peers[pod_id, address] = peer
        return peer

    def tick(self, now_s: float) -> None:
        """Let every delivery look at the clock; hang up on pods that are gone."""
        for key, peer in list(self._peers.items()):
            peer.tick(now_s)
            if peer.is_gone(now_s):
                log.info("prefill pod %s at %s is forgotten", *key)
                del self._peers[key]
                self._forgotten = _sum(self._forgotten, peer.receiver.counters)
                task = asyncio.create_task(peer.aclose())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def counters(self) -> TransferCounters:
        """Return what came in since the start."""
        return _sum(self._forgotten, *(peer.receiver.counters for peer in self._peers.values()))

    async def aclose(self) -> None:
        """Hang up on all."""
        await asyncio.gather(*self._closing, *(peer.aclose() for peer in self._peers.values()))


def _sum(*parts: TransferCounters) -> TransferCounters:
    names = [field.name for field in dataclasses.fields(TransferCounters)]
    return TransferCounters(**{name: sum(getattr(part, name) for part in parts) for name in names})
