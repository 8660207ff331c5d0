"""The pods that this one takes blocks from, met on first use and kept until they are gone for good.

Knows who they are and sums up what they are to this pod; nothing of requests. Invariant: what came from a pod that is
forgotten stays counted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable

import grpc

from pagewire.core.errors import (
    BY_CAUSE,
    Draining,
    InvalidRequest,
    Overloaded,
    PeerMismatch,
    PrefillLost,
    TransferFailed,
    Unauthenticated,
    Unavailable,
)
from pagewire.core.kv_layout import KVLayout
from pagewire.core.load import Inflow
from pagewire.engine.exchange.delivery import Delivery
from pagewire.engine.exchange.peer import Peer
from pagewire.kvtransfer.link_cost import LinkCost
from pagewire.kvtransfer.offers import Offers
from pagewire.kvtransfer.transport import BlockMemory, TransferCounters
from pagewire.kvtransfer.transports.stream import CHANNEL_OPTIONS
from pagewire.serving.handshake import Identity
from pagewire.serving.tls import CLEAR, Wire

log = logging.getLogger(__name__)

MAX_INFLOWS = 32  # in one load: it goes out every second

CAUSES = [cause for cause, error in BY_CAUSE.items() if issubclass(error, TransferFailed)]
UNREACHED = (Unavailable.cause, PeerMismatch.cause, Unauthenticated.cause, TransferFailed.cause)
REFUSED = (Overloaded.cause, Draining.cause, Unauthenticated.cause, InvalidRequest.cause, PrefillLost.cause)

DialBulk = Callable[[str], grpc.aio.Channel]


def open_bulk_channel(address: str, wire: Wire = CLEAR) -> grpc.aio.Channel:
    """Return a channel to `address` that is fit for blocks."""
    return wire.channel(address, CHANNEL_OPTIONS)


class Peers:
    """All of them, by id and address; met on first use. `dial_bulk` opens the channel of one bulk stream."""

    def __init__(
        self,
        identity: Identity,
        memory: BlockMemory,
        layout: KVLayout,
        offers: Offers,
        dial_bulk: DialBulk,
        wire: Wire,
    ) -> None:
        self._identity = identity
        self._memory = memory
        self._layout = layout
        self._offers = offers
        self._dial_bulk = dial_bulk
        self._wire = wire
        self._peers: dict[tuple[str, str], Peer] = {}
        self.lost = Counter(dict.fromkeys(CAUSES, 0))  # shipments to us, by the cause of their loss
        self.refused = Counter(dict.fromkeys(REFUSED, 0))  # shipments to us that their source did not begin, likewise
        self.unreached = Counter(dict.fromkeys(UNREACHED, 0))  # pods that were to ship and could not be asked, likewise
        self._forgotten = TransferCounters()
        self._counting = threading.Lock()  # metrics are asked for in a thread of their own
        self._closing: set[asyncio.Task[None]] = set()

    def at(self, pod_id: str, address: str) -> Peer:
        """Return the pod that calls itself `pod_id` at `address`."""
        peer = self._peers.get((pod_id, address))
        if peer is None:
            peer = Peer(
                pod_id,
                address,
                self._identity,
                self._memory,
                self._layout,
                self._offers,
                functools.partial(self._dial_bulk, address),
                self._settled,
                self._wire,
            )
            self._peers[pod_id, address] = peer
        return peer

    def _settled(self, delivery: Delivery) -> None:
        if delivery.cause not in ("", InvalidRequest.cause):  # a wrong request is nobody's loss
            self.lost[delivery.cause] += 1
        if delivery.refusal:
            self.refused[delivery.refusal] += 1

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
                with self._counting:
                    del self._peers[key]
                    self._forgotten = _sum(self._forgotten, peer.receiver.counters)
                task = asyncio.create_task(peer.aclose())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def counters(self) -> TransferCounters:
        """Return what came in since the start."""
        with self._counting:
            return _sum(self._forgotten, *(peer.receiver.counters for peer in list(self._peers.values())))

    async def aclose(self) -> None:
        """Hang up on all."""
        await asyncio.gather(*self._closing, *(peer.aclose() for peer in list(self._peers.values())))


def _sum(*parts: TransferCounters) -> TransferCounters:
    names = [field.name for field in dataclasses.fields(TransferCounters)]
    return TransferCounters(**{name: sum(getattr(part, name) for part in parts) for name in names})
