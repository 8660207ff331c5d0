"""What may go wrong with one request, drawn at random: each fault, its moment, and the ends that it may have.

A fault works on one request of a `Fleet`; others may be hit as well, and must come right all the same. Its moment is
the submission, the k-th message of blocks, or the k-th token, whichever its request comes to; one that ends before is
none the worse for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn

from engine_runs import greedy, spec
from pods import BLOCK
from wired_pods import Conversation, Fleet, WiredPod

from pagewire.core.engine_messages import Reserve
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Cancel, Role, Source, Stop

TIMEOUT_S = 31.0  # beyond leases, transfers and fences
PATIENCE_S = 0.3  # until a request that waits for what never comes sees its clock move

Fault = Callable[["Case"], None]
FAULTS: dict[str, Fault] = {}


def fault(make: Fault) -> Fault:
    """Add a fault under its function's name."""
    FAULTS[make.__name__] = make
    return make


@dataclass(slots=True)
class Case:
    """A request and the fault that meets it. `draw` decides everything about both."""

    asked: Conversation
    fleet: Fleet
    draw: random.Random
    holder: WiredPod | None = None  # of a beginning of the prompt
    may_end: frozenset[str] = frozenset()  # by these causes, besides well
    may_be_short: bool = False
    has_struck: bool = False
    num_messages: int = 0
    act: Callable[[], Awaitable[None]] | None = None
    moment: tuple[str, int] = ("submit", 0)
    spoil: Callable[[bytes], list[bytes]] | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def source(self) -> WiredPod:
        """The prefill pod that is asked first."""
        assert self.asked.candidates is not None
        first = self.asked.candidates[0].pod_id
        return next(pod for pod in self.fleet.pods if pod.pod_id == first)

    @property
    def taker(self) -> WiredPod:
        """The decode pod that has the request now."""
        assert self.asked.pod is not None
        return self.asked.pod

    def at(self, act: Callable[[], Awaitable[None]], *kinds: str) -> None:
        """Do `act` once, at a moment of one of these kinds."""
        kind = self.draw.choice(kinds)
        match kind:
            case "message":
                number = self.draw.randrange(min(6, self.num_blocks))
            case "token":
                number = self.draw.randint(1, min(12, self.asked.sampling.max_tokens))
            case _:
                number = 0
        self.moment = (kind, number)
        self.act = act

    @property
    def num_blocks(self) -> int:
        """How many messages there may be: a moment that cannot come is none."""
        return -(-len(self.asked.prompt) // BLOCK)

    def came(self, kind: str, number: int) -> None:
        """The request has come to a moment."""
        if self.act is not None and not self.has_struck and (kind, number) >= self.moment and kind == self.moment[0]:
            self.has_struck = True
            self.tasks.append(asyncio.create_task(self._strike(self.act)))

    def read(self, message: bytes) -> list[bytes]:
        """A message of its blocks is here."""
        self.came("message", self.num_messages)
        messages = self.spoil(message) if self.spoil is not None else [message]
        self.num_messages += 1
        return messages

    async def _strike(self, act: Callable[[], Awaitable[None]]) -> None:
        await act()

    def spoil_from(self, spoil: Callable[[bytes], list[bytes]], *, once: bool) -> None:
        """Spoil a message that is drawn, or all from that one on."""
        first = self.draw.randrange(min(5, self.num_blocks))
        self.moment = ("spoil", first)

        def from_then_on(message: bytes) -> list[bytes]:
            if self.num_messages == first or (self.num_messages > first and not once):
                self.has_struck = True
                return spoil(message)
            return [message]

        self.spoil = from_then_on

    def be_patient(self) -> None:
        """Let time pass for whoever waits for this request's blocks, until it is over."""
        self.tasks.append(asyncio.create_task(self._pass_time()))

    async def _pass_time(self) -> None:
        while not self.asked.is_over:
            await asyncio.sleep(PATIENCE_S)
            for pod in list(self.fleet.pods):
                waits = any(each.request_id.startswith(self.asked.name + ".") for each in pod.open_shipments)
                if self.has_struck and waits:
                    pod.advance(TIMEOUT_S)

    async def finish(self) -> None:
        """End what still goes on; raises what went wrong with the fault itself."""
        self.asked.is_over = True
        await asyncio.gather(*self.tasks)


# ------------------------------------------------------------------------------------------------------- spoilt bytes


@fault
def corrupt_once(case: Case) -> None:
    case.spoil_from(lambda message: [_flip(message, case.draw.randrange(6, len(message)))], once=True)
    case.be_patient()  # where it hits the name of the shipment, the message is nobody's


@fault
def corrupt_always(case: Case) -> None:
    case.spoil_from(lambda message: [_flip(message, len(message) - 1)], once=False)


@fault
def garbage(case: Case) -> None:
    case.spoil_from(lambda message: [message[:6] + case.draw.randbytes(case.draw.randrange(200))], once=True)


@fault
def cut_short(case: Case) -> None:
    case.spoil_from(lambda message: [message[: case.draw.randrange(len(message))]], once=True)


@fault
def duplicate(case: Case) -> None:
    case.spoil_from(lambda message: [message, message], once=False)


@fault
def swallow(case: Case) -> None:
    case.spoil_from(lambda message: [], once=case.draw.random() < 0.5)
    case.be_patient()


@fault
def reorder(case: Case) -> None:
    held: list[bytes] = []

    def swap(message: bytes) -> list[bytes]:
        if not held:
            held.append(message)
            return []
        return [message, held.pop()]

    case.spoil_from(swap, once=False)
    case.be_patient()


@fault
def late(case: Case) -> None:
    """Those messages come when the request is over, with somebody else's."""

    def hold(message: bytes) -> list[bytes]:
        case.taker.late.append(message)
        return []

    case.spoil_from(hold, once=False)
    case.be_patient()


# -------------------------------------------------------------------------------------------------- streams and links


@fault
def stream_dropped(case: Case) -> None:
    async def drop() -> None:
        case.source.sender.drop(case.taker.pod_id, "the test says so")

    case.at(drop, "submit", "message")


@fault
def stream_slow(case: Case) -> None:
    async def stall() -> None:
        channels = list(case.taker.bulk)
        for channel in channels:
            channel.flowing.clear()
        await asyncio.sleep(case.draw.uniform(0.05, 0.3))
        for channel in channels:
            channel.flowing.set()

    case.at(stall, "submit", "message")


@fault
def link_cut(case: Case) -> None:
    async def cut() -> None:
        case.source.wire.drop()

    case.at(cut, "submit", "message", "token")


@fault
def half_cut(case: Case) -> None:
    """Some of the connections break: a link and not its stream, or the other way round."""

    async def cut() -> None:
        case.source.wire.drop(lambda: case.draw.random() < 0.5)

    case.at(cut, "submit", "message", "token")


@fault
def wire_frozen(case: Case) -> None:
    async def freeze() -> None:
        wire = case.source.wire
        wire.freeze()
        while not case.asked.is_over:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        wire.thaw()

    case.at(freeze, "submit", "message")
    case.be_patient()


@fault
def wire_frozen_for_a_moment(case: Case) -> None:
    async def freeze() -> None:
        wire = case.source.wire
        wire.freeze()
        await asyncio.sleep(case.draw.uniform(0.02, 0.5))
        wire.thaw()

    case.at(freeze, "submit", "message")
    case.be_patient()


@fault
def decode_pod_cut_off(case: Case) -> None:
    """The router and whoever takes blocks from the pod lose it for a moment."""

    async def cut() -> None:
        case.taker.wire.drop()

    case.at(cut, "submit", "message", "token")


# ------------------------------------------------------------------------------------------------------- prefill pods


@fault
def prefill_engine_dies(case: Case) -> None:
    async def die() -> None:
        pod = case.source
        if not pod.is_gone:
            await asyncio.gather(case.fleet.replace(pod), pod.die())

    case.at(die, "submit", "message")


@fault
def prefill_engine_stands_still(case: Case) -> None:
    async def stall() -> None:
        pod = case.source
        if not pod.is_gone:
            pod.engine.allow(0)
            await asyncio.sleep(case.draw.uniform(0.0, 0.3))
            await asyncio.gather(case.fleet.replace(pod), pod.die())

    case.at(stall, "submit", "message")


@fault
def prefill_pod_killed(case: Case) -> None:
    async def kill() -> None:
        pod = case.source
        if not pod.is_gone:
            pod.kill()
            await case.fleet.replace(pod)

    case.at(kill, "submit", "message", "token")


@fault
def prefill_drains(case: Case) -> None:
    async def drain() -> None:
        pod = case.source
        pod.front.lifecycle.drain("the test says so")
        if not pod.is_gone:
            await case.fleet.replace(pod)

    case.at(drain, "submit", "message")


@fault
def prefill_refuses(case: Case) -> None:
    """Its clock says that every ticket is too old."""

    async def refuse() -> None:
        pod = case.source
        pod.wall_s += 1000.0
        await asyncio.sleep(0.2)
        pod.wall_s -= 1000.0

    case.at(refuse, "submit")


@fault
def prefill_step_breaks(case: Case) -> None:
    async def sabotage() -> None:
        loop = case.source.engine.loop
        runner = loop._runner

        def broken(*_: object) -> NoReturn:
            vars(runner).pop("run", None)  # the next step is the real one again
            raise EngineFailed("the test says so")

        runner.run = broken  # type: ignore[assignment,method-assign]

    case.at(sabotage, "submit", "message")


@fault
def prefill_has_no_room(case: Case) -> None:
    async def fill() -> None:
        await _fill(case.source, case.asked.name, case.draw.uniform(0.02, 0.3))

    case.at(fill, "submit")


@fault
def lease_expires(case: Case) -> None:
    async def expire() -> None:
        case.source.advance(TIMEOUT_S)

    case.at(expire, "submit", "message", "token")
    case.be_patient()


# ------------------------------------------------------------------------------------------------- sources of a fetch


@fault
def source_holds_less(case: Case) -> None:
    if case.holder is not None:
        case.asked.sources = (case.holder.source(len(case.asked.prompt)),)
    case.has_struck = case.holder is not None


@fault
def source_is_not_there(case: Case) -> None:
    nobody = Source(pod_id="nobody", address="127.0.0.1:1", num_tokens=len(case.asked.prompt))
    case.asked.sources = (nobody, *case.asked.sources)
    case.has_struck = True


@fault
def source_dies(case: Case) -> None:
    async def die() -> None:
        pod = case.holder
        if pod is not None and not pod.is_gone:
            if case.draw.random() < 0.5:
                pod.kill()
                await case.fleet.replace(pod)
            else:
                await asyncio.gather(case.fleet.replace(pod), pod.die())

    case.at(die, "submit", "message")


@fault
def source_is_cut_off(case: Case) -> None:
    async def cut() -> None:
        if case.holder is not None:
            case.holder.wire.drop()

    case.at(cut, "submit", "message")


# -------------------------------------------------------------------------------------------------------- decode pods


@fault
def decode_hands_over(case: Case) -> None:
    async def drain() -> None:
        pod = case.taker
        if not pod.is_gone:
            pod.front.lifecycle.drain("the test says so")
            await case.fleet.replace(pod)
            pod.service.hand_over()

    case.at(drain, "submit", "message", "token", "token", "token")


@fault
def decode_engine_dies(case: Case) -> None:
    async def die() -> None:
        pod = case.taker
        if not pod.is_gone:
            await asyncio.gather(case.fleet.replace(pod), pod.die())

    case.at(die, "submit", "message", "token")


@fault
def decode_pod_killed(case: Case) -> None:
    async def kill() -> None:
        pod = case.taker
        if not pod.is_gone:
            pod.kill()
            await case.fleet.replace(pod)

    case.at(kill, "submit", "message", "token")


@fault
def decode_runs_late(case: Case) -> None:
    """Its clock says that every transfer took too long."""

    async def advance() -> None:
        case.taker.advance(TIMEOUT_S)
        case.taker.advance(TIMEOUT_S)

    case.at(advance, "submit", "message", "token")


@fault
def decode_has_no_room(case: Case) -> None:
    """Room comes back after a while: the request waits for it, or is sent elsewhere."""

    async def fill() -> None:
        await _fill(case.taker, case.asked.name, case.draw.uniform(0.02, 0.3))

    case.at(fill, "submit")


@fault
def decode_refuses(case: Case) -> None:
    """Nobody else is asked: the client hears of it."""
    pod = case.asked.on
    assert pod is not None
    most = pod.front.config.max_num_waiting  # not what is there: another request may have it refuse, too
    pod.service._admission._max_waiting = 0  # type: ignore[union-attr]
    case.fleet.refusing.add(pod.pod_id)
    case.asked.may_retry = False
    case.may_end = frozenset({"overloaded", *_LOST})
    case.has_struck = True

    async def relent() -> None:
        while not case.asked.is_over:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pod.service._admission._max_waiting = most  # type: ignore[union-attr]

    case.tasks.append(asyncio.create_task(relent()))


# ------------------------------------------------------------------------------------------------------------ clients

_LOST = ("pod_lost", "unavailable", "draining", "handed_over", "overloaded")  # where it is not tried again


def _end(case: Case, message: Callable[[str], Stop | Cancel]) -> None:
    async def cancel() -> None:
        attempt = case.asked.attempt
        assert attempt is not None
        link = await case.fleet.router.link(case.taker)
        link.send(message(attempt.spec.request_id))

    case.at(cancel, "submit", "message", "token")
    case.asked.may_retry = False


@fault
def client_goes_away(case: Case) -> None:
    _end(case, lambda request_id: Cancel(request_id=request_id, reason="client"))
    case.may_end = frozenset({"cancelled", *_LOST})


@fault
def stop_string(case: Case) -> None:
    _end(case, lambda request_id: Stop(request_id=request_id, index=0))
    case.may_be_short = True
    case.may_end = frozenset(_LOST)


@fault
def deadline_passes(case: Case) -> None:
    case.asked.deadline_s = case.draw.uniform(0.001, 0.4)
    case.asked.may_retry = False
    case.may_end = frozenset({"deadline_exceeded", *_LOST})
    case.has_struck = True


def _flip(message: bytes, at: int) -> bytes:
    spoilt = bytearray(message)
    spoilt[at] ^= 1 << (at % 8)
    return bytes(spoilt)


async def _fill(pod: WiredPod, name: str, seconds: float) -> None:
    """Have all that is free of a pod's pool promised to nobody, for a while."""
    taken: list[str] = []
    try:
        try:
            for number in range(100):
                asked = spec(f"{name}/filling/{number}", [number] * 100, greedy(1))
                if (await pod.engine.reserve(Reserve(spec=asked))).error is not None:
                    break
                taken.append(asked.request_id)
            await asyncio.sleep(seconds)
        finally:
            for request_id in taken:
                await pod.engine.abort(request_id)
    except EngineFailed:
        return  # another fault was quicker
    if pod.role is Role.DECODE:
        pod.service._admission.room()  # type: ignore[union-attr]
