"""Real prefill and decode pods in one process, over loopback links and bulk streams, and a router's end of the links.

Services, shipments, transports, engines and models are the real ones; only processes, Redis and metrics are left out
(tests/cluster has them). Tests own the pods' clocks, may stop an engine between two steps and spoil the bulk bytes.
`Asked` proves on the way that no token is lost, repeated or late.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_pod
import grpc
from engine_runs import assert_at_rest, engine, greedy, run_all, spec
from faulty_carrier import Faults
from faulty_channel import FaultyPath
from patience import comes_true
from reference import NEAR_TIE, Reference
from threaded_engine import ThreadedEngine

from pagewire.core.cache_events import CacheEvents
from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import StepDone
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Cancel, Candidate, Ended, LinkMessage, Role, Source, Stop, Submit, Tokens
from pagewire.core.report import Report
from pagewire.core.sampling import FinishReason
from pagewire.core.sequence_spec import Branch, SequenceSpec, branches
from pagewire.core.side_door import SideDoor
from pagewire.core.token_record import TokenLogprobs, TokenRecord
from pagewire.decode_service.service import DecodeService
from pagewire.engine.exchange.delivery import Delivery
from pagewire.engine.exchange.peers import open_bulk_channel
from pagewire.engine.front import Front
from pagewire.kvtransfer.link_cost import LinkCost
from pagewire.kvtransfer.offers import Offers
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.kvtransfer.transports.offered import offered
from pagewire.kvtransfer.transports.stream_sender import StreamSender
from pagewire.prefill_service.service import PrefillService
from pagewire.serving.grpc_server import GrpcServer
from pagewire.serving.handshake import Identity
from pagewire.serving.link import Link, LinkEvents, LinkTimes
from pagewire.serving.link_dialer import LinkDialer
from pagewire.serving.pod_config import PodConfig

SECRET = fake_pod.SECRET.decode()  # one for all tests: the real router knows real pods and fake ones alike
BLOCK = 16
CHUNK = 16
WAIT_S = 20.0
FREE = LinkCost(rtt_s=0.0, s_per_byte=0.0)
DEAR = LinkCost(rtt_s=1e6, s_per_byte=1.0)
TIMES = LinkTimes(heartbeat_s=0.2, silence_s=WAIT_S, reconnect_min_s=0.01, reconnect_max_s=0.05)


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition()` holds. It is looked at again and again: threads and gRPC tell nobody of a change."""
    if not await comes_true(condition, within_s=WAIT_S, every_s=0.001):
        raise TimeoutError


@dataclass(slots=True)
class Asked:
    """One submitted request, and what its router was told of it; fails on a gap, a repeat, or a word after `Ended`."""

    spec: SequenceSpec
    streams: dict[int, list[int]] = field(default_factory=dict)  # the new tokens of each sequence
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    ended: Ended | None = None

    def __post_init__(self) -> None:
        self.streams = {index: [] for index in self.outputs}

    @property
    def outputs(self) -> dict[int, tuple[int, ...]]:
        """What each sequence came with."""
        return {self.spec.index: self.spec.output} | {each.index: each.output for each in self.spec.branches}

    @property
    def tokens(self) -> list[int]:
        """The new tokens of the first sequence."""
        return self.streams[self.spec.index]

    @property
    def reason(self) -> FinishReason | None:
        """Why the first sequence ended."""
        return self.reasons.get(self.spec.index)

    def hear(self, record: TokenRecord) -> None:
        """Take a record."""
        self.logprobs.extend(record.logprobs)
        self.prompt_logprobs.extend(record.prompt_logprobs)
        self.hear_tokens(record.position, record.tokens, record.finish_reason, record.index)

    def hear_tokens(
        self, position: int, tokens: tuple[int, ...], reason: FinishReason | None, index: int | None = None
    ) -> None:
        """Take new tokens of a sequence, the first one unless said otherwise."""
        index = self.spec.index if index is None else index
        name, said = f"{self.spec.request_id}, sequence {index}", self.streams[index]
        assert self.ended is None, f"{tokens} after the end of {name}"
        assert index not in self.reasons, f"{tokens} after the last token of {name}"
        assert position == len(self.outputs[index]) + len(said), f"a gap or a repeat in {name}"
        said.extend(tokens)
        if reason is not None:
            self.reasons[index] = reason

    def hear_end(self, ended: Ended) -> None:
        """Take the end."""
        assert self.ended is None, f"{self.spec.request_id} ended twice"
        self.ended = ended

    @property
    def report(self) -> Report:
        """What it cost."""
        assert self.ended is not None
        assert self.ended.report is not None
        return self.ended.report

    @property
    def cause(self) -> str:
        """The error's name, "" for a good end."""
        assert self.ended is not None
        return self.ended.error.cause if self.ended.error is not None else ""


class Pod:
    """One pod: engine, front, service, server."""

    def __init__(
        self, pod_id: str, role: Role, model: Path, settings: dict[str, Any], offers: Offers | None = None
    ) -> None:
        engine_settings: dict[str, Any] = {
            "kv_memory_bytes": 4 << 20,
            "chunk_size": CHUNK,
            "block_size": BLOCK,
            "kv_order": "layer_outer",
            "layer_groups": 1,
            "weight_dtype": "auto",
            "kv_dtype": "auto",
            "host_kv_memory_bytes": 0,
            "scheduling": "fcfs",
            "preemption": "auto",
            "tensor_parallel": 1,
            "adapters": (),
            "speculative_tokens": 0,
        }
        engine_settings |= {name: settings.pop(name) for name in list(settings) if name in engine_settings}
        self.pod_id = pod_id
        self.address = ""  # where others dial it; a test may put a wire in front
        self.clock = ManualClock()
        self.wall_s = 1_000_000.0
        self.engine = ThreadedEngine.assemble(model, role, **engine_settings)
        config = PodConfig(
            model=str(model), role=role, cluster_secret=SECRET, pod_id=pod_id, **({"transports": "grpc"} | settings)
        )
        self._paths: dict[str, FaultyPath] = {}  # of bulk streams, by the address of the source
        faults = Faults()
        faults.around_line = lambda line: self.bulk[-1].line(line)
        offers = faults.around_all(offers or offered(config.transports, door=SideDoor()))
        self.front = Front(config, role, self.engine, offers, config.wire())
        self.sender = StreamSender(
            pod_id=self.pod_id,
            secret=SECRET.encode(),
            memory=self.engine.pool,
            carriers=self.front.offers.carriers,
            layout=self.engine.ready.layout,
            on_lost=lambda peer_id, keys, error: None,
            message_bytes=self.engine.pool.block_bytes,  # a message is a block: faults hit what they name
            num_groups=self.engine.ready.layer_groups,
        )
        kind = PrefillService if role is Role.PREFILL else DecodeService
        self.service = kind(
            self.front, clock=self.clock, wall=lambda: self.wall_s, sender=self.sender, dial_bulk=self._dial_bulk
        )
        self.server = GrpcServer("127.0.0.1", 0, self.service.handlers())
        self.engine.on_step = self._on_step

    @property
    def bulk(self) -> list[FaultyPath]:
        """What blocks come by, of each pod that was met."""
        return list(self._paths.values())

    def _dial_bulk(self, address: str) -> grpc.aio.Channel:
        if address not in self._paths:
            self._paths[address] = FaultyPath(functools.partial(open_bulk_channel, address), self._read)
        return self._paths[address].dial()

    def _read(self, _number: int, message: bytes) -> list[bytes]:
        """Return what is read in the place of a message of blocks."""
        return [message]

    def _on_step(self, step: StepDone) -> None:
        self.front.note(step)
        self.service.on_step(step)

    @property
    def candidate(self) -> Candidate:
        """This pod as one that may run a prompt."""
        return Candidate(pod_id=self.pod_id, address=self.address)

    def source(self, num_tokens: int) -> Source:
        """This pod as one that holds a beginning of a prompt."""
        return Source(pod_id=self.pod_id, address=self.address, num_tokens=num_tokens)

    def take_copying_for(self, cost: LinkCost) -> None:
        """Have this pod believe that copying costs this, from anybody."""
        self.service._exchange.peers.cost = lambda pod_id, address: cost  # type: ignore[method-assign]

    @property
    def deliveries(self) -> list[Delivery]:
        """Of what is on its way to this pod."""
        peers = self.service._exchange.peers.all().values()
        return [delivery for peer in peers for delivery in peer._deliveries.values()]

    @property
    def open_shipments(self) -> list[IncomingShipment]:
        """What is on its way to this pod."""
        return [delivery.shipment for delivery in self.deliveries]

    @property
    def num_landed(self) -> int:
        """Blocks of these that are in their places; more may have been received that wait for their ids."""
        return sum(shipment.num_verified for shipment in self.open_shipments)

    @property
    def num_waiting(self) -> int:
        """Requests of this decode pod that have no blocks yet."""
        assert isinstance(self.service, DecodeService)
        return self.service._admission.num_waiting

    def advance(self, seconds: float) -> None:
        """Let time pass, and the service look at the clock."""
        self.clock.advance(seconds)
        self.service.tick()

    def counter(self, name: str) -> float:
        """One of the service's counters."""
        return self.service.counters()[name]

    async def die(self) -> None:
        """Lose the engine, as `Front` would tell it."""
        self.engine.die()
        self.front.lifecycle.drain("the engine died")
        await self.service.fail(EngineFailed("the engine process died"))

    async def start(self) -> None:
        """Serve."""
        await self.server.start()
        self.address = self.front.address = self.server.address
        self.front.lifecycle.ready()

    async def aclose(self) -> None:
        """Stop."""
        self.engine.let_go()
        await self.service.aclose()
        await self.server.stop(0)
        await self.engine.close()

    async def assert_at_rest(self) -> None:
        """Wait until all is settled; then every block is free or cached, and nothing is left behind anywhere."""
        draining = asyncio.ensure_future(self.service.drained())
        await until(draining.done)
        await draining
        if self.engine.exited.is_set():
            return
        await until(lambda: self.engine.loop.load().blocks_held == 0)
        assert_at_rest(self.engine.loop)
        assert not self.engine.engine.scheduler.sequences
        exchange = self.service._exchange
        assert (len(exchange.exports), len(exchange.exports._leases), self.open_shipments) == (0, 0, [])
        assert exchange.peers.num_quarantined == 0
        if isinstance(self.service, DecodeService):
            assert (self.num_waiting, len(self.service._handovers)) == (0, 0)
        for peer in exchange.peers.all().values():
            if peer.receiver._stream is not None:
                assert peer.receiver._stream.inbox.keys() == ()
                assert peer.receiver._stream.inbox.num_waiting == 0


class RouterEnd:
    """A router's links to decode pods."""

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}
        self.cache_events: defaultdict[str, list[CacheEvents]] = defaultdict(list)  # by pod
        self.frames: list[Tokens] = []
        self._identity = Identity(peer_id="router", incarnation="1", role=Role.ROUTER, secret=SECRET.encode())
        self._dialers: dict[str, LinkDialer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def link(self, pod: Pod) -> Link:
        """Return the link to a pod, dialling it first where there is none."""
        if pod.pod_id not in self._dialers:
            events = LinkEvents(on_message=self._on_message, on_up=lambda link: None, on_down=lambda link: None)
            dialer = LinkDialer(pod.address, lambda: self._identity, events, times=TIMES)
            self._dialers[pod.pod_id] = dialer
            self._tasks[pod.pod_id] = asyncio.create_task(dialer.run())
        return await self._dialers[pod.pod_id].up(WAIT_S)

    async def hang_up(self, pod: Pod) -> None:
        """Lose the link to a pod for good; no-op without one."""
        if pod.pod_id not in self._dialers:
            return
        del self._dialers[pod.pod_id]
        task = self._tasks.pop(pod.pod_id)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def aclose(self) -> None:
        """Hang up on all."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _on_message(self, link: Link, message: LinkMessage) -> None:
        match message:
            case CacheEvents():
                self.cache_events[link.peer.peer_id].append(message)
            case Tokens():
                self.frames.append(message)
                for record in message.records:
                    self.asked[record.request_id].hear(record)
            case Ended():
                self.asked[message.request_id].hear_end(message)


@contextlib.asynccontextmanager
async def going_slowly(pod: Pod) -> AsyncIterator[None]:
    """Have a pod step at a pace at which it hears of being drained before its answers are over; then let it go."""

    async def step() -> None:
        while True:
            pod.engine.allow(1)
            await asyncio.sleep(0.005)

    stepping = asyncio.create_task(step())
    try:
        yield
    finally:
        stepping.cancel()
        pod.engine.let_go()


class Pods:
    """xPyD, and what a test does to them."""

    def __init__(self, prefill: Sequence[Pod], decode: Sequence[Pod]) -> None:
        self.prefill = list(prefill)
        self.decode = list(decode)
        self.router = RouterEnd()
        for pod in (*self.prefill, *self.decode):  # what tiny models take would be a matter of luck
            pod.take_copying_for(FREE)

    @property
    def p(self) -> Pod:
        """The first prefill pod."""
        return self.prefill[0]

    @property
    def d(self) -> Pod:
        """The first decode pod."""
        return self.decode[0]

    async def submit(
        self,
        name: str,
        tokens: Sequence[int],
        max_tokens: int = 8,
        *,
        on: Pod | None = None,
        candidates: Sequence[Candidate] | None = None,
        prefill: str = "remote",
        deadline_s: float = 60.0,
        output: tuple[int, ...] = (),
        sources: Sequence[Source] = (),
        index: int = 0,
        others: tuple[Branch, ...] | None = None,
        **sampling: Any,
    ) -> Asked:
        """Submit a request to a decode pod, with all prefill pods as candidates unless told otherwise."""
        link = await self.router.link(on or self.d)
        params = greedy(max_tokens, **sampling)
        asked = Asked(
            spec(
                name,
                tokens,
                params,
                output=output,
                index=index,
                branches=branches(params.n) if others is None else others,
            )
        )
        self.router.asked[name] = asked
        chosen = tuple(pod.candidate for pod in self.prefill) if candidates is None else tuple(candidates)
        link.send(
            Submit(spec=asked.spec, candidates=chosen, prefill=prefill, deadline_s=deadline_s, sources=tuple(sources))
        )
        return asked

    async def ask(self, name: str, tokens: Sequence[int], max_tokens: int = 8, **options: Any) -> Asked:
        """Submit a request and wait for its end."""
        return await self.end(await self.submit(name, tokens, max_tokens, **options))

    async def end(self, asked: Asked) -> Asked:
        """Wait for the end of a request."""
        await until(lambda: asked.ended is not None)
        return asked

    async def stop(self, asked: Asked, index: int = 0, on: Pod | None = None) -> None:
        """Stop one sequence of a request, as over a stop string."""
        (await self.router.link(on or self.d)).send(Stop(request_id=asked.spec.request_id, index=index))

    async def cancel(self, asked: Asked, reason: str = "client", on: Pod | None = None) -> None:
        """Cancel a request."""
        (await self.router.link(on or self.d)).send(Cancel(request_id=asked.spec.request_id, reason=reason))

    async def assert_at_rest(self) -> None:
        """Nothing is left behind, in any pod."""
        for pod in (*self.decode, *self.prefill):
            await pod.assert_at_rest()


@contextlib.asynccontextmanager
async def pods(
    model: Path,
    num_prefill: int = 1,
    num_decode: int = 1,
    *,
    p: dict[str, Any] | None = None,
    d: dict[str, Any] | None = None,
    d_role: Role = Role.DECODE,
) -> AsyncIterator[Pods]:
    """Start pods, with settings `p` and `d`; at the end nothing may be left behind in them."""
    prefill = [Pod(f"p{i}", Role.PREFILL, model, dict(p or {})) for i in range(num_prefill)]
    decode = [Pod(f"d{i}", d_role, model, dict(d or {})) for i in range(num_decode)]
    cluster = Pods(prefill, decode)
    try:
        for pod in (*prefill, *decode):
            await pod.start()
        yield cluster
        await cluster.assert_at_rest()
    finally:
        await cluster.router.aclose()
        for pod in (*decode, *prefill):
            await pod.aclose()


class Colocated:
    """The answers of one engine that does everything itself: what every other way must come to.

    A prompt whose greedy answer passes a near-tie proves nothing, as its steps' company may turn it: it is refused.
    """

    def __init__(self, model: Path, **settings: Any) -> None:
        self._loop = engine(model, kv_memory_bytes=8 << 20, **settings).loop
        self._reference = Reference(model)
        self._margins: dict[tuple[tuple[int, ...], int], float] = {}
        self._num_asked = 0

    def answer(self, tokens: Sequence[int], max_tokens: int = 8, *, index: int = 0, **sampling: Any) -> list[int]:
        """Return what the sequence `index` of a request says."""
        key = (tuple(tokens), max_tokens)
        if key not in self._margins:
            self._margins[key] = min(self._reference.greedy([list(tokens)], max_tokens)[0].margins)
        assert self._margins[key] > NEAR_TIE, f"take another prompt: a near-tie of {self._margins[key]}"
        self._num_asked += 1
        name = str(self._num_asked)
        return run_all(self._loop, [spec(name, tokens, greedy(max_tokens, **sampling), index=index)]).tokens[name]


def prompt(seed: int, num_tokens: int) -> list[int]:
    """Return byte tokens that no other seed begins with."""
    return [(seed * 37 + i * i * 7 + i * (seed + 3)) % 256 for i in range(num_tokens)]
