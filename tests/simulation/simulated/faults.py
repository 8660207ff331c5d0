"""What may go wrong in a world: each kind, what it does, and what a client may be told because of it.

A fault strikes at its time and ends after its time, and says when it really did something. `excuses` are the causes of
errors that a client may see because of it; with none, no client may notice more than a slower answer.

Knows what there is in a world; nothing of how the product copes. Invariant: when a fault is over, what it did to the
cluster's means is made good: processes are back, wires heal, Redis answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagewire.core.messages import (
    ChunkReady,
    Fence,
    Fenced,
    FetchReady,
    FirstToken,
    Landed,
    Resend,
    Role,
    RunAccepted,
    ShipmentFailed,
    ShipmentRefused,
)
from pagewire.serving.codec import LINK_CODEC
from simulated.network import Delivery, End

if TYPE_CHECKING:
    from simulated.plan import FaultPlan
    from simulated.pod import SimulatedPod
    from simulated.world import World

DECODES = (Role.DECODE, Role.COLOCATED)
OF_SHIPMENTS = (
    RunAccepted, ShipmentRefused, ChunkReady, FirstToken, FetchReady, ShipmentFailed, Fenced, Fence, Landed, Resend,
)  # fmt: skip
NOTHING: frozenset[str] = frozenset()
# A request may run out of its tries, its pods, its time, where those that decode go away or cannot be reached.
DECODE_GOES = frozenset(("unavailable", "pod_lost", "overloaded", "draining", "handed_over", "deadline_exceeded"))
TIME_GOES = frozenset(("deadline_exceeded",))


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault."""

    strike: Callable[[World, FaultPlan], None]
    excuses: frozenset[str]


FAULTS: dict[str, Fault] = {}


def fault(excuses: frozenset[str] = NOTHING) -> Callable[[Callable[[World, FaultPlan], None]], Callable[..., None]]:
    """Add a kind under its function's name."""

    def add(strike: Callable[[World, FaultPlan], None]) -> Callable[..., None]:
        FAULTS[strike.__name__] = Fault(strike, excuses)
        return strike

    return add


# ------------------------------------------------------------------------------------------------------------ processes


def _end(world: World, plan: FaultPlan, pods: list[SimulatedPod], *, silently: bool = False) -> None:
    if pods:
        pod = pods[plan.target % len(pods)]
        world.strikes(plan.kind, pod.states() or {"idle"})
        pod.kill(silently=silently)
        world.later(plan.lasts_s, pod.start_anew)


@fault()
def kill_prefill(world: World, plan: FaultPlan) -> None:
    _end(world, plan, world.of(Role.PREFILL))


@fault(DECODE_GOES)
def kill_decode(world: World, plan: FaultPlan) -> None:
    _end(world, plan, world.of(*DECODES))


@fault(DECODE_GOES)
def power_off(world: World, plan: FaultPlan) -> None:
    """A machine goes away, and nobody says so."""
    _end(world, plan, world.of(Role.PREFILL, *DECODES), silently=True)


@fault(DECODE_GOES)
def kill_engine(world: World, plan: FaultPlan) -> None:
    pods = [pod for pod in world.of(Role.PREFILL, *DECODES) if pod.engine is not None]
    if pods:
        pod = pods[plan.target % len(pods)]
        world.strikes(plan.kind, pod.states() or {"idle"})
        assert pod.engine is not None
        pod.engine.die()


@fault(DECODE_GOES)
def drain(world: World, plan: FaultPlan) -> None:
    """SIGTERM."""
    pods = [pod for pod in world.of(Role.PREFILL, *DECODES) if pod.is_ready]
    if pods:
        pod = pods[plan.target % len(pods)]
        world.strikes(plan.kind, pod.states() or {"idle"})
        pod.stop()


@fault(DECODE_GOES)
def change_role(world: World, plan: FaultPlan) -> None:
    """A pod becomes another kind of pod; of those that decode one stays."""
    pods = [pod for pod in world.of(Role.PREFILL, *DECODES) if pod.is_ready and pod.is_admitting]
    decoding = [pod for pod in pods if pod.serves in DECODES]
    pods = [pod for pod in pods if pod.serves is Role.PREFILL or len(decoding) > 1]
    if pods:
        pod = pods[plan.target % len(pods)]
        world.strikes(plan.kind, pod.states() or {"idle"})
        pod.become(Role.DECODE if pod.serves is Role.PREFILL else Role.PREFILL)


@fault(DECODE_GOES)
def freeze(world: World, plan: FaultPlan) -> None:
    """SIGSTOP of a front or of an engine."""
    pods = world.of(Role.PREFILL, *DECODES)
    if pods:
        pod = pods[plan.target % len(pods)]
        process = pod.front if plan.other % 2 else pod.engine_process
        world.strikes(plan.kind, pod.states() or {"idle"})
        process.freeze()
        world.later(plan.lasts_s, process.thaw)


@fault(TIME_GOES | {"overloaded"})
def slow_engine(world: World, plan: FaultPlan) -> None:
    pods = [pod for pod in world.of(Role.PREFILL, *DECODES) if pod.engine is not None]
    if pods:
        pod = pods[plan.target % len(pods)]
        engine = pod.engine
        assert engine is not None
        world.strikes(plan.kind)
        engine.slowness = 20.0
        world.later(plan.lasts_s, setattr, engine, "slowness", 1.0)


@fault()
def slow_process(world: World, plan: FaultPlan) -> None:
    """Timers of a process are late."""
    processes = [*(pod.front for pod in world.of(Role.PREFILL, *DECODES)), *(each.process for each in world.routers)]
    process = processes[plan.target % len(processes)]
    world.strikes(plan.kind)
    process.lag_s = 0.3
    world.later(plan.lasts_s, setattr, process, "lag_s", 0.0)


@fault(frozenset(("unavailable",)))
def kill_router(world: World, plan: FaultPlan) -> None:
    """Its clients see a broken connection, which is no answer of the cluster's; the next one has to find the pods."""
    router = world.routers[plan.target % len(world.routers)]
    if router.process.is_alive:
        world.strikes(plan.kind, {state for pod in world.pods if pod.is_alive for state in pod.states()})
        router.kill()
        world.later(plan.lasts_s, router.start)


@fault()
def step_clock(world: World, plan: FaultPlan) -> None:
    """A wall clock is set."""
    pod = world.pods[plan.target % len(world.pods)]
    world.strikes(plan.kind)
    pod.front.wall_s += 200.0 if plan.other % 2 else -200.0


# --------------------------------------------------------------------------------------------------------------- wires


def _links(world: World, edge: str, *, inner: bool | None = None) -> list[End]:
    """Return the connections of an edge that are up; `inner`: those between pods, or those to routers."""
    routers = {router.name for router in world.routers}
    return [
        end
        for end in world.network.ends
        if end.edge == edge
        and not end.is_over
        and end.process.is_alive
        and end.peer.process.is_alive
        and inner in (None, end.process.name not in routers)
    ]


def _names(world: World) -> list[str]:
    return [*(pod.name for pod in world.pods), *(router.name for router in world.routers)]


@fault(DECODE_GOES)
def partition(world: World, plan: FaultPlan) -> None:
    """Nothing passes between two processes for a while; it waits."""
    names = _names(world)
    one = names[plan.target % len(names)]
    others = [name for name in names if name != one]
    other = others[plan.other % len(others)]
    world.network.cut(one, other)
    world.strikes(plan.kind)
    world.later(plan.lasts_s, world.network.heal, one, other)


@fault(DECODE_GOES)
def reset(world: World, plan: FaultPlan) -> None:
    """A connection breaks, and both ends hear of it, each at its time."""
    ends = _links(world, "link") + _links(world, "bulk")
    if ends:
        end = ends[plan.target % len(ends)]
        world.strikes(plan.kind, {end.edge})
        end.reset("connection reset")
        world.later(min(plan.lasts_s, 0.5) * plan.share, end.peer.reset, "connection reset")


@fault(DECODE_GOES)
def half_open(world: World, plan: FaultPlan) -> None:
    """A connection breaks, and one end alone hears of it; the other goes on until silence tells it."""
    ends = _links(world, "link") + _links(world, "bulk")
    if ends:
        end = ends[plan.target % len(ends)]
        world.strikes(plan.kind, {end.edge})
        (end if plan.other % 2 else end.peer).reset("connection reset")


def _meddle(world: World, plan: FaultPlan, edge: str, spoil: Callable[[Any], list[Delivery]]) -> None:
    """Spoil a share of the messages of an edge for a while."""
    chance = world.chance(f"{plan}")

    def meddler(end: End, payload: Any) -> list[Delivery] | None:
        if end.edge != edge or not isinstance(payload, bytes) or chance.random() >= plan.share:
            return None
        world.strikes(plan.kind)
        return spoil(payload)

    world.meddlers.append(meddler)
    world.later(plan.lasts_s, world.meddlers.remove, meddler)


@fault(DECODE_GOES)
def black_hole(world: World, plan: FaultPlan) -> None:
    """What one end sends is lost for a while, and then the connection is."""
    ends = _links(world, "link") + _links(world, "bulk")
    if ends:
        near = ends[plan.target % len(ends)]
        lost = near if plan.other % 2 else near.peer
        world.strikes(plan.kind, {near.edge})

        def swallow(end: End, payload: Any) -> list[Delivery] | None:
            return [] if end is lost else None

        def over() -> None:
            world.meddlers.remove(swallow)
            near.reset("connection timed out")
            near.peer.reset("connection timed out")

        world.meddlers.append(swallow)
        world.later(plan.lasts_s, over)


def _meddle_frames(world: World, plan: FaultPlan, spoil: Callable[[bytes], list[Delivery]]) -> None:
    """Spoil a share of the frames of shipments: TCP would not, and nothing may come of it all the same."""
    chance = world.chance(f"{plan}")

    def meddler(end: End, payload: Any) -> list[Delivery] | None:
        if end.edge != "link" or not isinstance(payload, bytes):
            return None
        told: list[Delivery] = []
        has_struck = False
        for message in LINK_CODEC.decode(payload):
            data = LINK_CODEC.encode(message)
            is_hit = isinstance(message, OF_SHIPMENTS) and chance.random() < plan.share
            has_struck |= is_hit
            told += spoil(data) if is_hit else [Delivery(data)]
        if has_struck:
            world.strikes(plan.kind)
            return told
        return None

    world.meddlers.append(meddler)
    world.later(plan.lasts_s, world.meddlers.remove, meddler)


@fault(TIME_GOES)
def drop_frames(world: World, plan: FaultPlan) -> None:
    _meddle_frames(world, plan, lambda data: [])


@fault()
def duplicate_frames(world: World, plan: FaultPlan) -> None:
    _meddle_frames(world, plan, lambda data: [Delivery(data), Delivery(data, 0.05, is_in_order=False)])


@fault()
def reorder_frames(world: World, plan: FaultPlan) -> None:
    _meddle_frames(world, plan, lambda data: [Delivery(data, 0.02, is_in_order=False)])


@fault(TIME_GOES)
def delay_links(world: World, plan: FaultPlan) -> None:
    chance = world.chance(f"late {plan}")
    _meddle(world, plan, "link", lambda payload: [Delivery(payload, chance.random())])


@fault()
def delay_bulk(world: World, plan: FaultPlan) -> None:
    chance = world.chance(f"late {plan}")
    _meddle(world, plan, "bulk", lambda payload: [Delivery(payload, chance.random())])


@fault()
def drop_bulk(world: World, plan: FaultPlan) -> None:
    _meddle(world, plan, "bulk", lambda payload: [])


@fault()
def duplicate_bulk(world: World, plan: FaultPlan) -> None:
    _meddle(world, plan, "bulk", lambda payload: [Delivery(payload), Delivery(payload, 0.01)])


@fault()
def reorder_bulk(world: World, plan: FaultPlan) -> None:
    _meddle(world, plan, "bulk", lambda payload: [Delivery(payload, 0.02, is_in_order=False)])


@fault()
def corrupt_bulk(world: World, plan: FaultPlan) -> None:
    chance = world.chance(f"flip {plan}")

    def flip(payload: bytes) -> list[Delivery]:
        data = bytearray(payload)
        if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return [Delivery(bytes(data))]

    _meddle(world, plan, "bulk", flip)


# --------------------------------------------------------------------------------------------------------------- Redis


@fault()
def redis_away(world: World, plan: FaultPlan) -> None:
    """It does not answer."""
    world.strikes(plan.kind)
    world.redis.process.freeze()
    world.later(plan.lasts_s, world.redis.process.thaw)


@fault()
def redis_slow(world: World, plan: FaultPlan) -> None:
    _meddle(world, plan, "redis", lambda payload: [Delivery(payload, 0.02)])


@fault()
def redis_resets(world: World, plan: FaultPlan) -> None:
    for end in _links(world, "redis"):
        world.strikes(plan.kind)
        end.reset("connection reset")
        end.peer.reset("connection reset")


@fault()
def redis_loses(world: World, plan: FaultPlan) -> None:
    world.strikes(plan.kind)
    world.redis.flush()


@fault()
def redis_goes_back(world: World, plan: FaultPlan) -> None:
    world.strikes(plan.kind)
    world.redis.save()
    world.later(plan.lasts_s, world.redis.go_back)


@fault()
def redis_lies(world: World, plan: FaultPlan) -> None:
    world.strikes(plan.kind)
    world.redis.lie()
