"""Pods that come and go, each behind a wire, and a router that goes on elsewhere as the real one does.

What `pods.py` has, and more of them: a pod that is lost is replaced by a fresh one at once. Bulk messages are handed to
whoever spoils those of their request. The router's part is its rule for the next attempt alone; the real router is in
tests/cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine_runs import spec
from patience import comes_true
from pod_wire import Wire
from pods import FREE, Asked, Pod, RouterEnd

from pagewire.core.block_hash import BlockHash
from pagewire.core.errors import HandedOver, Overloaded, PagewireError, PodLost, Unavailable, status_of
from pagewire.core.messages import Candidate, Role, Source, Submit
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.sequence_spec import Branch
from pagewire.core.side_door import SideDoor
from pagewire.engine.exchange.delivery import Delivery
from pagewire.kvtransfer import wire as blocks_wire
from pagewire.kvtransfer.offers import Offers
from pagewire.kvtransfer.transports.local import LocalPools
from pagewire.kvtransfer.transports.offered import offered
from pagewire.serving.link import Link

WAIT_S = 40.0  # other work may share the cores
LOOK_S = 0.02
MAX_LOOKS = round(WAIT_S / LOOK_S)
MAX_ATTEMPTS = 10
HANDOVERS_END_S = 11.0
POOL_BLOCKS = 48
BLOCK_BYTES = 12288

Spoiler = Callable[[bytes], list[bytes]]
"""Given a message of a request's blocks, what its taker reads instead."""


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return once `condition()` holds; fails by saying `what` did not come."""
    assert await comes_true(condition, within_s=WAIT_S, every_s=0.002), f"never: {what}"


class WiredPod(Pod):
    """A pod behind a wire; `spoil` sees every message of blocks that it takes, and for which delivery."""

    def __init__(self, pod_id: str, role: Role, model: Path, offers: Offers, spoil: Callable[..., list[bytes]]) -> None:
        settings = {"kv_memory_bytes": POOL_BLOCKS * BLOCK_BYTES, "max_num_waiting": 16}
        super().__init__(pod_id, role, model, settings, offers)
        self.role = role
        self.wire = Wire(self.server)
        self.late: list[bytes] = []  # what comes when something else does
        self.is_gone = False  # nobody is to be sent here any more
        self.was_killed = False
        self._spoil = spoil
        self.take_copying_for(FREE)

    async def start(self) -> None:
        await super().start()
        await self.wire.start()
        self.address = self.front.address = self.wire.address

    def kill(self) -> None:
        """Go away as a killed process does: nobody is told anything."""
        self.is_gone = self.was_killed = True
        self.wire.cut()
        self.engine.die()

    async def aclose(self) -> None:
        self.wire.thaw()
        await self.wire.aclose()
        await super().aclose()

    def _read(self, _number: int, message: bytes) -> list[bytes]:
        key = blocks_wire.decode_ready(message, self.engine.pool.block_bytes).key
        for_whom = [each for each in self.deliveries if each.shipment.shipment_id == key.shipment_id]
        late, self.late = self.late, []
        return [*late, *(self._spoil(for_whom[0], message) if for_whom else [message])]


@dataclass(slots=True)
class Hearing(Asked):
    """An attempt that tells how many tokens the request has now."""

    on_token: Callable[[int], None] = lambda num_tokens: None

    def hear_tokens(
        self, position: int, tokens: tuple[int, ...], reason: FinishReason | None, index: int | None = None
    ) -> None:
        Asked.hear_tokens(self, position, tokens, reason, index)
        if index in (None, self.spec.index):
            self.on_token(len(self.spec.output) + len(self.tokens))


@dataclass(slots=True)
class Conversation:
    """One request, over all its attempts."""

    name: str
    prompt: Sequence[int]
    sampling: SamplingParams
    root: BlockHash
    on: WiredPod | None = None  # the first attempt's decode pod
    candidates: Sequence[Candidate] | None = None  # all prefill pods of the moment, when None
    prefill: str = "remote"
    deadline_s: float = 10_000.0
    sources: tuple[Source, ...] = ()
    may_retry: bool = True
    on_submit: Callable[[], None] = lambda: None
    on_token: Callable[[int], None] = lambda num_tokens: None
    streams: dict[int, list[int]] = field(default_factory=dict)  # of all sequences
    ended: set[int] = field(default_factory=set)
    pod: WiredPod | None = None  # where the latest attempt runs
    attempt: Hearing | None = None
    history: list[str] = field(default_factory=list)
    cause: str = ""
    is_over: bool = False

    def __post_init__(self) -> None:
        self.streams = {index: [] for index in range(self.sampling.n)}

    @property
    def running(self) -> list[Branch]:
        """The sequences that have not ended, with what they have said."""
        running = [index for index in self.streams if index not in self.ended]
        return [Branch(index=index, output=tuple(self.streams[index])) for index in running]


class Fleet:
    """2P2D at any moment. `transports` says what the next pod ships by; `spoil` sees all messages of blocks."""

    def __init__(self, model: Path, transports: Callable[[], str]) -> None:
        self.spoilers: dict[str, Spoiler] = {}  # by the request's name
        self.pods: list[WiredPod] = []
        self.refusing: set[str] = set()  # pods that refused what would have waited, for a while
        self.router = RouterEnd()
        self._model = model
        self._transports = transports
        self._pools = LocalPools()
        self.messages: Counter[str] = Counter()  # of blocks, by transport
        self._num_pods = 0

    def _offers(self) -> Offers:
        """What the next pod offers; all of them are in one process."""
        first, _, others = self._transports().partition(",")
        if first == "local":
            return Offers((self._pools.offer(), *offered(others, door=SideDoor()).offers))
        return offered(",".join(filter(None, (first, others))), door=SideDoor())

    def of(self, role: Role) -> list[WiredPod]:
        """The pods that may be used."""
        return [pod for pod in self.pods if pod.role is role and not pod.is_gone]

    async def add(self, role: Role) -> WiredPod:
        """Start a pod."""
        self._num_pods += 1
        pod = WiredPod(f"{role.value}-{self._num_pods}", role, self._model, self._offers(), self._spoil)
        await pod.start()
        self.pods.append(pod)
        return pod

    async def replace(self, pod: WiredPod) -> None:
        """Send nobody there any more, and start another in its place."""
        pod.is_gone = True
        await self.add(pod.role)

    def _spoil(self, delivery: Delivery, message: bytes) -> list[bytes]:
        self.messages[delivery.transport] += 1
        spoiler = self.spoilers.get(delivery.shipment.request_id.split(".")[0])
        return spoiler(message) if spoiler is not None else [message]

    # ---------------------------------------------------------------------------------------------------------- asking

    async def converse(self, asked: Conversation) -> Conversation:
        """See a request to its end, on one decode pod after another where that is the router's rule."""
        failed: list[Link] = []
        for number in range(MAX_ATTEMPTS):
            pod, link = await self._place(asked, failed)
            if link is None:
                break
            error = await self._attempt(asked, pod, link, f"{asked.name}.{number}")
            asked.cause = error.cause if error is not None else ""
            counts = [len(tokens) for tokens in asked.streams.values()]
            asked.history.append(f"{pod.pod_id}: {asked.cause or 'finished'} after {counts} tokens")
            if error is None or not asked.may_retry:
                break
            if isinstance(error, HandedOver):
                known = len(asked.prompt) + len(asked.running[0].output)
                asked.sources = (pod.source(known), *asked.sources)
            elif not status_of(error).retryable:
                break
            failed.append(link)
        asked.is_over = True
        return asked

    async def _place(self, asked: Conversation, failed: list[Link]) -> tuple[WiredPod, Link | None]:
        """Return a decode pod by a link that has not failed the request; waits for one, unless all are full."""
        for _ in range(MAX_LOOKS):
            fit = [pod for pod in self.of(Role.DECODE) if pod.front.lifecycle.is_ready]
            for pod in sorted(fit, key=lambda pod: pod is not asked.on):
                with contextlib.suppress(Unavailable):
                    link = await self.router.link(pod)
                    if link.is_up and link not in failed:
                        return pod, link
            if asked.cause == Overloaded.cause:
                return fit[0], None
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"never: a decode pod for {asked.name}")

    async def _attempt(self, asked: Conversation, pod: WiredPod, link: Link, name: str) -> PagewireError | None:
        first, *others = asked.running
        begun = spec(
            name, asked.prompt, asked.sampling, output=first.output, index=first.index, branches=tuple(others)
        )  # fmt: skip
        # The root is the request's own: what others left in caches is not its.
        attempt = Hearing(dataclasses.replace(begun, root=asked.root), on_token=asked.on_token)
        asked.pod, asked.attempt = pod, attempt
        self.router.asked[name] = attempt
        candidates = asked.candidates
        if candidates is None:
            candidates = [each.candidate for each in self.of(Role.PREFILL)]
        try:
            link.send(
                Submit(
                    spec=attempt.spec, candidates=tuple(candidates), prefill=asked.prefill,
                    deadline_s=asked.deadline_s, sources=asked.sources,
                )
            )  # fmt: skip
        except Unavailable as error:
            return error
        asked.on_submit()
        try:
            await until(lambda: attempt.ended is not None or not link.is_up, f"an end of {name} on {pod.pod_id}")
        except AssertionError as error:
            for each in self.pods:
                error.add_note(f"{each.pod_id}: {held_by(each)}")
            raise
        for index, tokens in attempt.streams.items():
            asked.streams[index].extend(tokens)
        asked.ended.update(attempt.reasons)
        if not asked.running:
            return None  # whatever was said later, the answer is complete
        if attempt.ended is None:
            return PodLost(f"the link to {pod.pod_id} is down")
        return attempt.ended.error.error() if attempt.ended.error is not None else None

    # ------------------------------------------------------------------------------------------------------- resting

    async def settle(self) -> None:
        """Repair what is broken; then every pod that is not dead comes to rest, and those that were given up go."""
        for pod in self.pods:
            pod.wire.thaw()
            pod.engine.let_go()
            pod.late.clear()
        for pod in list(self.pods):
            if not pod.was_killed:
                if pod.is_gone:
                    pod.advance(HANDOVERS_END_S)  # a continued request need not fetch
                await self._rest(pod)
        for pod in [pod for pod in self.pods if pod.is_gone]:
            self.pods.remove(pod)
            await self.router.hang_up(pod)
            await pod.aclose()

    async def _rest(self, pod: WiredPod) -> None:
        try:
            await pod.assert_at_rest()
        except (AssertionError, TimeoutError) as error:
            error.add_note(f"{pod.pod_id}: {held_by(pod)}")
            raise

    async def aclose(self) -> None:
        """Stop all."""
        await self.router.aclose()
        for pod in self.pods:
            await pod.aclose()


def held_by(pod: WiredPod) -> str:
    """Describe what keeps a pod from resting."""
    exchange = pod.service._exchange
    return (
        f"exports {[(export.key, export.shipment.state) for export in exchange.exports.all()]}, "
        f"shipments {[(each.request_id, each.state, each.num_verified, each.error) for each in pod.open_shipments]}, "
        f"requests {list(getattr(pod.service, '_requests', ()))}, load {pod.engine.loop.load()}"
    )


@contextlib.asynccontextmanager
async def fleet(model: Path, transports: Callable[[], str]) -> AsyncIterator[Fleet]:
    """Start 2P2D; at the end nothing may be left behind in any pod that lives."""
    them = Fleet(model, transports)
    try:
        for role in (Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE):
            await them.add(role)
        yield them
        await them.settle()
    finally:
        await them.aclose()
