"""A pod's part in the KV plane: what it takes from others, what it ships to them, and the links for both.

Glue that both services share. Frames of shipments end here, all others go to the service. Knows nothing of prompts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import grpc

from pagewire.core.clock import Clock
from pagewire.core.errors import EngineFailed, ErrorInfo, InvalidRequest, PagewireError
from pagewire.core.load import Load
from pagewire.core.messages import (
    ChangeRole,
    Fence,
    Fetch,
    FirstToken,
    Landed,
    LinkMessage,
    Resend,
    Role,
    RoleAnswer,
)
from pagewire.core.timeline import Stopwatch
from pagewire.core.trace_context import TraceContext
from pagewire.engine.exchange.export import Export
from pagewire.engine.exchange.exports import Exports
from pagewire.engine.exchange.peers import DialBulk, Peers, open_bulk_channel
from pagewire.engine.exchange.permits import Permits
from pagewire.engine.exchange.taking import Taker, Taking
from pagewire.engine.front import Front
from pagewire.kvtransfer.transports.stream_sender import StreamSender
from pagewire.serving.link import Link, LinkEvents
from pagewire.serving.link_server import LinkServer
from pagewire.serving.sample import Sample

log = logging.getLogger(__name__)

TICK_S = 0.2
LINK_FALLBACK = "1 where blocks come by another transport than the best that both pods have, 0 where by that one"


class Job(Protocol):
    """What a service does with the frames that are not of shipments."""

    def on_message(self, link: Link, message: LinkMessage) -> None:
        """Take a frame."""
        ...

    def on_down(self, link: Link) -> None:
        """A link that was dialled to this pod is down; its exports are ending."""
        ...

    def check_fetch(self) -> None:
        """Raise why nobody may fetch cached blocks now."""
        ...

    def on_export_end(self, export: Export) -> None:
        """An export is over: its blocks were given back."""
        ...

    def on_tick(self, now_s: float) -> None:
        """Time has passed."""
        ...


class Exchange:
    """One pod's. `wall` is the wall clock, for tickets alone; `sender` serves the bulk streams of those who take."""

    def __init__(
        self,
        front: Front,
        job: Job,
        sender: StreamSender,
        *,
        clock: Clock,
        wall: Callable[[], float],
        dial_bulk: DialBulk | None = None,
    ) -> None:
        self.clock = clock
        self._front = front
        self._job = job
        self._sender = sender
        permits = Permits(front.identity.peer_id, front.identity.secret, wall)
        bulk = dial_bulk or functools.partial(open_bulk_channel, wire=front.wire)
        self.peers = Peers(front.identity, front.engine.pool, front.engine.ready.layout, front.offers, bulk, front.wire)
        self.exports = Exports(
            front.engine,
            sender,
            permits,
            clock,
            max_exports=front.config.max_num_waiting,
            landing_s=front.config.transfer_timeout_s,
            check_fetch=job.check_fetch,
            on_end=self._on_export_end,
            trace_of=front.trace_of,
        )
        self._taker = Taker(
            engine=front.engine,
            peers=self.peers,
            permits=permits,
            clock=clock,
            lease_s=front.config.lease_s,
            transfer_timeout_s=front.config.transfer_timeout_s,
        )
        self._links_of: defaultdict[str, set[Link]] = defaultdict(set)  # that are up, by pod
        self._links = LinkServer(
            lambda: front.identity,
            LinkEvents(on_message=self._on_message, on_up=self._on_up, on_down=self._on_down),
            load=self.load,
            door=front.door,
        )
        self._ticker = asyncio.create_task(self._keep_ticking())

    def load(self) -> Load:
        """Return the pod's load, what comes in from other pods, and what taking blocks costs it in the mean."""
        load = dataclasses.replace(
            self._front.load(),
            blocks_arriving=self.peers.num_arriving,
            inflows=self.peers.inflows(),
            at_s=self.clock.now(),
        )
        cost = self.peers.mean_cost()
        if cost is None:
            return load
        layout = self._front.engine.ready.layout
        token_s = cost.s_per_byte * layout.block_bytes / layout.block_size
        return dataclasses.replace(load, link_rtt_s=cost.rtt_s, link_s_per_token=token_s)

    def taking(
        self,
        request_id: str,
        deadline_s: float,
        watch: Stopwatch,
        on_first_token: Callable[[FirstToken], None] = lambda _: None,
        trace: TraceContext | None = None,
    ) -> Taking:
        """Return what the sequence `request_id` will take. `deadline_s` is absolute; `trace` is that of `Taking`."""
        return Taking(
            self._taker, request_id, deadline_s=deadline_s, watch=watch, on_first_token=on_first_token, trace=trace
        )

    def handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        """Return the links and the bulk streams, for the pod's gRPC server."""
        return (self._links.handler(), self._sender.handler())

    def counters(self) -> dict[str, float]:
        """Return totals since the start. Called from the thread that serves metrics."""
        received, sent = self.peers.counters(), self._sender.counters
        block_bytes = self._front.engine.ready.layout.block_bytes  # what travels may be parts of blocks
        return {
            "kv_blocks_received": received.bytes / block_bytes,
            "kv_bytes_received": float(received.bytes),
            "kv_blocks_placed": received.placed_bytes / block_bytes,
            "kv_blocks_corrupt": float(received.corrupt),
            "kv_blocks_late": float(received.late),
            "kv_blocks_sent": sent.bytes / block_bytes,
            "kv_bytes_sent": float(sent.bytes),
            **{f"exports_{name}": float(count) for name, count in self.exports.counters.items()},
            **{f"shipments_lost_{cause}": float(count) for cause, count in list(self.peers.lost.items())},
            **{f"shipments_refused_{cause}": float(count) for cause, count in list(self.peers.refused.items())},
            **{f"pods_unreached_{cause}": float(count) for cause, count in list(self.peers.unreached.items())},
        }

    def gauges(self) -> Iterator[Sample]:
        """Yield what links are known to cost, and the blocks that nobody may touch until a write is over.

        Called from the thread that serves metrics.
        """
        for pod_id, peer in self.peers.all().items():
            of_peer, cost = {"peer": pod_id}, peer.meter.cost
            yield Sample("link_seconds_per_byte", of_peer, cost.s_per_byte, "Measured cost of a byte from that pod")
            yield Sample("link_rtt_seconds", of_peer, cost.rtt_s, "Measured exchange with that pod")
            if transport := peer.receiver.transport:
                labels = {**of_peer, "transport": transport}
                yield Sample("link_fallback", labels, peer.receiver.is_fallback, LINK_FALLBACK)
        quarantined, exports = self.peers.num_quarantined, self.exports
        yield Sample("kv_blocks_quarantined", {}, quarantined, "Blocks that nobody may touch until a write is over")
        yield Sample("leases_held", {}, len(exports), "Shipments whose blocks are held for a pod that takes them")
        yield Sample("leases_orphaned", {}, exports.num_orphaned, "Of those, the ones whose taker is gone or too late")

    def tick(self) -> None:
        """Look at the clock, as it does by itself every `TICK_S`."""
        now_s = self.clock.now()
        self.peers.tick(now_s)
        self.exports.tick()
        self._job.on_tick(now_s)

    def engine_failed(self, error: EngineFailed) -> None:
        """The engine is gone, and all that it held."""
        self.exports.forget_all(ErrorInfo.of(error))

    async def aclose(self) -> None:
        """End links and streams, and what was going on for them."""
        self._ticker.cancel()
        await self._links.aclose("the pod stops")
        self._sender.close("the pod stops")
        await asyncio.gather(self._ticker, self.exports.aclose(), self.peers.aclose(), return_exceptions=True)

    def _on_up(self, link: Link) -> None:
        log.info("%s linked", link.peer.peer_id)
        self._links_of[link.peer.peer_id].add(link)

    def _on_down(self, link: Link) -> None:
        links = self._links_of[link.peer.peer_id]
        links.discard(link)
        # A pod may have several: it dialled again, or still dials one in whose place we came. With any up, it is there.
        if not links:
            del self._links_of[link.peer.peer_id]
            self._sender.drop(link.peer.peer_id, "the link is down")
        self.exports.link_lost(link)
        self._front.cache_feed.on_down(link)
        self._job.on_down(link)

    def _on_export_end(self, export: Export) -> None:
        if export.trace is not None and self._front.tracing is not None:
            self._front.tracing.record(export.span(self.clock.now()), export.trace)
        self._job.on_export_end(export)

    def _on_message(self, link: Link, message: LinkMessage) -> None:
        self.exports.renew(link)
        self._front.cache_feed.on_message(link, message)
        if isinstance(message, Fetch | Landed | Resend | Fence):
            self.exports.on_message(link, message)
        elif isinstance(message, ChangeRole):
            self._on_change_role(link, message.role)
        else:
            self._job.on_message(link, message)

    def _on_change_role(self, link: Link, role: Role) -> None:
        error = None
        try:
            if link.peer.role is not Role.ROUTER:
                raise InvalidRequest(f"{link.peer.peer_id} is no router: it changes nobody's role")
            self._front.change_role(role)
        except PagewireError as refusal:
            log.info("%s asked for a %s pod: %s", link.peer.peer_id, role, refusal.message)
            error = ErrorInfo.of(refusal)
        link.say(RoleAnswer(role=role, error=error))

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            except Exception:  # our own bug in one tick must not stop leases and deadlines for good
                log.exception("a look at the clock failed")


def block_sender(front: Front) -> StreamSender:
    """Return the sender of a pod's bulk streams.

    Nobody here has to hear of a lost one: the taker hears of the same loss and fences; if it cannot, its link or its
    lease ends the shipment.
    """
    return StreamSender(
        pod_id=front.identity.peer_id,
        secret=front.identity.secret,
        memory=front.engine.pool,
        carriers=front.offers.carriers,
        layout=front.engine.ready.layout,
        num_groups=front.engine.ready.layer_groups,
    )
