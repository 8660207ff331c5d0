"""A decode or colocated pod without an engine: a real gRPC server with real links, whose tokens follow from the prompt.

The answer repeats the prompt: output token k of sequence i is `prompt[(k + i) % len(prompt)]`, ended by max_tokens, a
stop token, or the end-of-sequence id. A beam search finds these too, with made-up scores. So any pod continues any
request, as the contract demands, and tests know every token beforehand.

It can prove what a router does with frames: placement, streaming, order, stop strings, cancellation, continuation,
and what happens when a pod refuses, dies, or breaks the contract. It cannot prove anything about engines, caches,
transfers or timing: its reports are invented, its blocks do not exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import zlib
from collections.abc import AsyncIterator

import byte_tokenizer
import grpc

from pagewire.core.errors import ErrorInfo, PagewireError
from pagewire.core.fingerprint import Fingerprint, tokenizer_digest
from pagewire.core.index_member import MAX_INDEX_ID
from pagewire.core.load import Load
from pagewire.core.messages import (
    Cancel,
    ChangeRole,
    Ended,
    Heartbeat,
    LinkMessage,
    Role,
    RoleAnswer,
    Stop,
    Submit,
    Tokens,
)
from pagewire.core.report import Report
from pagewire.core.sampling import FinishReason
from pagewire.core.side_door import SideDoor
from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.core.token_record import TokenLogprobs, TokenRecord
from pagewire.serving.cache_feed import CacheFeed
from pagewire.serving.handshake import Identity
from pagewire.serving.link import CHANNEL_OPTIONS, Link, LinkEvents, LinkTimes
from pagewire.serving.link_server import LinkServer
from pagewire.serving.registration import Registration
from pagewire.serving.registry import REGISTRATION_TTL_S, Registry
from pagewire.serving.tls import CLEAR

SECRET = b"test-secret"
TIMES = LinkTimes(heartbeat_s=0.05, silence_s=5.0, connect_s=5.0, reconnect_min_s=0.02, reconnect_max_s=0.1)


def fingerprint(**changes: object) -> Fingerprint:
    """Return what fake pods serve: the byte tokenizer, blocks of 16, a context of 512."""
    values: dict[str, object] = {
        "model_name": "fake",
        "model_digest": "m",
        "tokenizer_digest": tokenizer_digest(byte_tokenizer.build().to_str(pretty=True).encode()),
        "kv_fingerprint": "k",
        "kv_layout": "l",
        "block_size": 16,
        "hash_version": 1,
        "max_model_len": 512,
    }
    return Fingerprint(**{**values, **changes})  # type: ignore[arg-type]


def logprobs(token: int, num_top: int) -> TokenLogprobs:
    """Return what a fake pod says of a token: the ids after it are the likeliest."""
    return TokenLogprobs(
        token=token,
        logprob=-0.5 - token / 64,
        rank=token + 1,
        top_tokens=tuple(range(token + 1, token + 1 + num_top)),
        top_logprobs=tuple(-0.25 * (1 + place) for place in range(num_top)),
    )


def _index_id(name: str) -> int:
    return 1 + zlib.crc32(name.encode()) % MAX_INDEX_ID


class FakePod:
    """One fake pod. Tests set how it behaves, and read what it was told."""

    def __init__(self, pod_id: str, *, role: Role = Role.COLOCATED, serves: Fingerprint | None = None) -> None:
        self.pod_id = pod_id
        self.role = role
        self.serves = serves or fingerprint()
        self.incarnation = "1"
        self.index_id = _index_id(pod_id)
        self.submits: list[Submit] = []
        self.cancels: list[Cancel] = []
        self.stops: list[Stop] = []
        self.load = Load()
        self.cache_feed = CacheFeed()  # the real one: tests note what no engine is there to store
        self.heartbeats_asking: list[bool] = []
        self.notes: tuple[str, ...] = ()  # of every report
        self.causes: tuple[str, ...] = ()  # of the shipments that every report says were lost
        self.lost_on = ""  # the pod that lost them, where it was not the first candidate
        self.timelines: tuple[Timeline, ...] | None = None  # instead of one that is made up
        self.refusal: PagewireError | None = None  # what every Submit is answered with
        self.role_refusal: PagewireError | None = None  # what every ChangeRole is answered with
        self.orders: list[Role] = []  # roles that it was told to take
        self.hold_at: int | None = None  # no token from this position on, until `release`
        self.fail_at: tuple[int, PagewireError] | None = None  # the request ends so at this position
        self.searched = 0  # tokens of each beam that are told before `hold_at` holds a search
        self.finds: int | None = None  # answers of a beam search, where not all
        self.breaks_search: str = ""  # how a search is told wrong: "parts", "worst first" or "twice"
        self.shift = 0  # added to positions from 1 on: a pod that loses (1) or repeats (-1) tokens
        self.tokens_per_record = 1
        self.cached_tokens = 0
        self.fetched_tokens = 0
        self.wire = CLEAR
        self.changed = asyncio.Event()
        self._released = asyncio.Event()
        self._up: set[Link] = set()
        self._links = LinkServer(self._identity, self._events(), times=TIMES, load=lambda: self.load, door=SideDoor())
        self._server: grpc.aio.Server | None = None
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, Link] = {}  # of what runs: a router that goes away takes its own requests alone
        self._positions: dict[str, dict[int, int]] = {}  # by request and sequence
        self.port = 0

    @property
    def registration(self) -> Registration:
        """What it would write into Redis."""
        return Registration(
            pod_id=self.pod_id,
            incarnation=self.incarnation,
            role=self.role,
            address=f"127.0.0.1:{self.port}",
            metrics="",
            fingerprint=self.serves,
            index_id=self.index_id,
        )

    @property
    def running(self) -> int:
        """Requests that it works on."""
        return len(self._runs)

    @property
    def is_linked(self) -> bool:
        """True while a router has a link to it."""
        return bool(self._up)

    async def start(self) -> FakePod:
        """Serve on a port of its own; after `die`, on the same one."""
        self._server = grpc.aio.server(options=CHANNEL_OPTIONS)
        self._server.add_generic_rpc_handlers((self._links.handler(),))
        credentials, where = self.wire.credentials(), f"127.0.0.1:{self.port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(where)
        else:
            self.port = self._server.add_secure_port(where, credentials)
        await self._server.start()
        return self

    async def die(self) -> None:
        """Go away at once, with everything."""
        for task in list(self._runs.values()):
            task.cancel()
        for link in list(self._up):
            link.close("the fake pod died")
        if self._server is not None:
            await self._server.stop(0)

    def come_back(self, role: Role) -> None:
        """Be another incarnation, with this role, as a pod is that has drained for it."""
        self.role, self.incarnation = role, f"{int(self.incarnation) + 1}"
        self.index_id = _index_id(f"{self.pod_id}@{self.incarnation}")
        for link in list(self._up):
            link.close("the pod stops")

    def release(self) -> None:
        """Let go of what `hold_at` holds."""
        self._released.set()

    async def until(self, condition: object) -> None:
        """Wait until `condition()` is true; it is looked at whenever a frame came or a request ended."""
        async with asyncio.timeout(60):
            while not condition():  # type: ignore[operator]
                self.changed.clear()
                await self.changed.wait()

    def _identity(self) -> Identity:
        return Identity(
            peer_id=self.pod_id,
            incarnation=self.incarnation,
            role=self.role,
            secret=SECRET,
            fingerprint=self.serves,
        )

    def _events(self) -> LinkEvents:
        return LinkEvents(on_message=self._receive, on_up=self._up.add, on_down=self._down)

    def _down(self, link: Link) -> None:
        self._up.discard(link)
        self.cache_feed.on_down(link)
        for request_id in [each for each, owner in self._owners.items() if owner is link]:
            self._runs[request_id].cancel()
        self.changed.set()

    def _receive(self, link: Link, message: LinkMessage) -> None:
        self.cache_feed.on_message(link, message)
        if isinstance(message, Heartbeat) and message.wants_cache is not None:
            self.heartbeats_asking.append(message.wants_cache)
        if isinstance(message, Submit):
            self.submits.append(message)
            if self.refusal is not None:
                self._end(link, message.spec.request_id, self.refusal)
            else:
                task = asyncio.create_task(self._run(link, message))
                self._runs[message.spec.request_id] = task
                self._owners[message.spec.request_id] = link
                task.add_done_callback(lambda _: self._over(message.spec.request_id))
        elif isinstance(message, ChangeRole):
            self.orders.append(message.role)
            error = ErrorInfo.of(self.role_refusal) if self.role_refusal is not None else None
            link.send(RoleAnswer(role=message.role, error=error))
        elif isinstance(message, Stop):
            self.stops.append(message)
            self._positions.get(message.request_id, {}).pop(message.index, None)
        elif isinstance(message, Cancel):
            self.cancels.append(message)
            if message.request_id in self._runs:
                self._runs[message.request_id].cancel()
                self._end(link, message.request_id, None)
        self.changed.set()

    def _over(self, request_id: str) -> None:
        self._runs.pop(request_id, None)
        self._owners.pop(request_id, None)
        self._positions.pop(request_id, None)
        self.changed.set()

    async def _run(self, link: Link, submit: Submit) -> None:
        spec = submit.spec
        num_top = spec.sampling.prompt_logprobs
        if num_top is not None:
            for token in spec.tokens[1:]:  # one by one, as small chunks would
                scored = (logprobs(token, num_top),)
                record = TokenRecord(request_id=spec.request_id, index=0, position=0, tokens=(), prompt_logprobs=scored)
                link.send(Tokens(records=(record,)))
        if spec.sampling.use_beam_search:
            return await self._search(link, submit)
        outputs = (spec.output, *(branch.output for branch in spec.branches))
        indices = (spec.index, *(branch.index for branch in spec.branches))
        running = self._positions[spec.request_id] = {
            index: len(output) for index, output in zip(indices, outputs, strict=True)
        }
        while running:
            position = min(running.values())
            if self.fail_at is not None and position >= self.fail_at[0]:
                return self._end(link, spec.request_id, self.fail_at[1])
            if self.hold_at is not None and position >= self.hold_at:
                await self._released.wait()
            records = tuple(self._record(submit, index, at) for index, at in running.items())
            link.send(Tokens(records=records))
            for record in records:
                running[record.index] += 1
                if record.finish_reason is not None:
                    del running[record.index]
            if running:
                await asyncio.sleep(0)
        return self._end(link, spec.request_id, None)

    async def _search(self, link: Link, submit: Submit) -> None:
        spec = submit.spec
        for _ in range(self.searched):
            link.send(Tokens(records=(TokenRecord(request_id=spec.request_id, index=0, position=0, tokens=()),)))
        if self.hold_at is not None:
            await self._released.wait()
        if self.fail_at is not None:
            return self._end(link, spec.request_id, self.fail_at[1])
        found = [self._found(submit, index) for index in range(spec.sampling.n if self.finds is None else self.finds)]
        frames = {
            "parts": [[dataclasses.replace(record, finish_reason=None) for record in found]],
            "worst first": [found[::-1]],
            "twice": [found[:1], found[1:]],
        }.get(self.breaks_search, [found])
        for records in frames:
            link.send(Tokens(records=tuple(records)))
        return self._end(link, spec.request_id, None)

    def _found(self, submit: Submit, index: int) -> TokenRecord:
        records: list[TokenRecord] = []
        while not records or records[-1].finish_reason is None:
            records.append(self._record(submit, index, len(records)))
        return dataclasses.replace(
            records[-1],
            position=0,
            tokens=tuple(token for record in records for token in record.tokens),
            cumulative_logprob=-1.0 - index,
            score=-0.5 - index,
        )

    def _record(self, submit: Submit, index: int, position: int) -> TokenRecord:
        spec = submit.spec
        token = spec.tokens[(position + index) % len(spec.tokens)]
        return TokenRecord(
            request_id=spec.request_id,
            index=index,
            position=position + (self.shift if position else 0),
            tokens=(token,),
            finish_reason=self._reason(submit, position, token),
            logprobs=() if spec.sampling.logprobs is None else (logprobs(token, spec.sampling.logprobs),),
        )

    def _reason(self, submit: Submit, position: int, token: int) -> FinishReason | None:
        sampling = submit.spec.sampling
        if token in sampling.stop_token_ids or (token == byte_tokenizer.EOS_ID and not sampling.ignore_eos):
            return FinishReason.STOP
        return FinishReason.LENGTH if position + 1 >= sampling.max_tokens else None

    def _end(self, link: Link, request_id: str, error: PagewireError | None) -> None:
        submit = next(submit for submit in self.submits if submit.spec.request_id == request_id)
        report = Report(
            placement="remote" if submit.candidates else "local",
            prefill_pod=submit.candidates[0].pod_id if submit.candidates else "",
            decode_pod=self.pod_id,
            prompt_tokens=len(submit.spec.tokens),
            prefill_cached_tokens=self.cached_tokens if submit.candidates else 0,
            prefill_fetched_tokens=self.fetched_tokens if submit.candidates else 0,
            decode_cached_tokens=0 if submit.candidates else self.cached_tokens,
            decode_fetched_tokens=0 if submit.candidates else self.fetched_tokens,
            notes=self.notes,
            causes=self.causes,
            lost_on=tuple(self.lost_on or submit.candidates[0].pod_id for _ in self.causes),
        )
        info = ErrorInfo.of(error) if error is not None else None
        timeline = Timeline(process=self.pod_id, stamps=(Stamp(Phase.ACCEPTED, 1.0), Stamp(Phase.FINISHED, 2.0)))
        if link.is_up:
            timelines = (timeline,) if self.timelines is None else self.timelines
            link.send(Ended(request_id=request_id, error=info, report=report, timelines=timelines))


@contextlib.asynccontextmanager
async def registered(registry: Registry, *pods: FakePod) -> AsyncIterator[None]:
    """Keep pods in discovery, as real ones keep themselves: a process may take longer to start than one entry lives."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(REGISTRATION_TTL_S / 5)
            for pod in pods:
                with contextlib.suppress(OSError):
                    await registry.register(pod.registration)

    for pod in pods:
        await registry.register(pod.registration)
    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)


@contextlib.asynccontextmanager
async def fake_pods(*pods: FakePod) -> AsyncIterator[tuple[FakePod, ...]]:
    """Start pods and see that they are gone afterwards."""
    for pod in pods:
        await pod.start()
    try:
        yield pods
    finally:
        for pod in pods:
            await pod.die()
