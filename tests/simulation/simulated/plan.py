"""What happens in a world, drawn from a seed: its pods, its requests, and what goes wrong; plain values, all of it.

So a world that fails can be made smaller: leave something out, run it again, and see. Knows no product. Invariant: the
same seed draws the same plan, and a plan with the same seed plays the same.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from simulated.engine import EnginePlan
from simulated.model import BLOCK, FIRST_TOKEN, POISON, VOCAB_SIZE

SPAN_S = 1.0  # in which the requests come
ROOMY_BLOCKS = 64
RETRY_BURST, RETRY_RATIO = 256, 0.2  # what a router has by itself: more than any world asks for
MEETS_S = 0.1  # from the question on, in which a request is surely under way
TRANSPORTS = ("grpc", "local", "local,grpc")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan:
    """One request. Its prompt is the beginning of a family's text and a tail of its own.

    `leaves_s` is when its client goes away, counted from the question; `reads_s` how long it takes over each chunk.
    """

    name: str
    at_s: float
    family: int
    num_shared: int
    num_own: int
    max_tokens: int
    n: int = 1
    is_greedy: bool = True
    salt: str = ""
    stop_token_ids: tuple[int, ...] = ()
    timeout_s: float = 15.0
    leaves_s: float | None = None
    reads_s: float = 0.0
    router: int = 0
    is_poison: bool = False

    @property
    def seed(self) -> int:
        """What it draws by."""
        return self.family * 1000 + self.num_own

    @property
    def takes_at_once(self) -> bool:
        """Whether its client has a sink, as one over HTTP has, which chunks are put in while it waits."""
        return not self.reads_s and self.seed % 2 == 1

    def may_fail(self, cause: str) -> bool:
        """Return whether it may end so by its own fault."""
        return self.is_poison and cause == "poisoned"

    @property
    def prompt(self) -> tuple[int, ...]:
        """Its tokens."""
        shared = _text(f"family {self.family}", self.num_shared)
        own = _text(f"own {self.name} {self.num_own}", self.num_own)
        return (*shared, *own, POISON) if self.is_poison else shared + own


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Something that goes wrong: its kind, when, for how long, to whom (numbers among those there are), how much."""

    kind: str
    at_s: float
    lasts_s: float
    target: int
    other: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of a world."""

    seed: int
    num_prefill: int
    num_decode: int
    num_routers: int
    transports: str
    prefill_mode: str
    prefix_fetch: str
    engine: EnginePlan
    max_num_waiting: int = 32
    retry_burst: int = RETRY_BURST
    retry_ratio: float = RETRY_RATIO
    clock_rates: tuple[float, ...] = (1.0,)
    wall_s: tuple[float, ...] = (0.0,)
    requests: tuple[RequestPlan, ...] = field(default=())
    faults: tuple[FaultPlan, ...] = field(default=())

    @property
    def is_tight(self) -> bool:
        """Return whether there is so little room that requests may be turned away for it."""
        return self.max_num_waiting < len(self.requests) or self.engine.num_blocks < ROOMY_BLOCKS

    def probes(self) -> tuple[RequestPlan, ...]:
        """Return what is asked when all is over: whoever is well answers it."""
        return tuple(
            RequestPlan(
                name=f"probe{number}", at_s=0.0, family=9, num_shared=2 * BLOCK, num_own=5, max_tokens=4, router=number
            )
            for number in range(self.num_routers)
        )


def draw_plan(seed: int, kinds: Sequence[str]) -> Plan:
    """Return the plan of a seed; what goes wrong is of these kinds."""
    draw = Random(f"plan {seed}")
    routers = draw.choice((1, 1, 2))
    is_skewed = draw.random() < 0.3
    requests = tuple(_request(draw, number, routers) for number in range(draw.randint(3, 8)))
    return Plan(
        seed=seed,
        num_prefill=draw.choice((0, 1, 1, 1, 2, 2, 2)),
        num_decode=draw.choice((1, 2, 2, 2)),
        num_routers=routers,
        transports=draw.choice(TRANSPORTS),
        prefill_mode=draw.choice(("remote", "remote", "auto")),
        prefix_fetch=draw.choice(("auto", "always", "always")),
        engine=EnginePlan(
            num_blocks=draw.choice((40, 64, 160)),
            chunk_size=draw.choice((16, 32, 64)),
            max_num_seqs=draw.choice((2, 4, 8)),
            most_drafted=Random(f"drafts {seed}").choice((0, 0, 5)),
        ),
        max_num_waiting=draw.choice((4, 32)),
        clock_rates=tuple(draw.uniform(0.9, 1.1) for _ in range(8)) if is_skewed else (1.0,),
        wall_s=tuple(draw.uniform(-90.0, 90.0) for _ in range(8)) if is_skewed else (0.0,),
        requests=requests,
        faults=tuple(_fault(draw, kinds, requests) for _ in range(draw.choice((1, 2, 3, 5)))),
        retry_burst=draw.choice((RETRY_BURST, RETRY_BURST, RETRY_BURST, 0, 1, 2)),
        retry_ratio=draw.choice((RETRY_RATIO, RETRY_RATIO, 0.0, 0.5)),
    )


def _request(draw: Random, number: int, routers: int) -> RequestPlan:
    return RequestPlan(
        name=f"r{number}",
        at_s=draw.random() * SPAN_S,
        family=draw.randrange(2),
        num_shared=draw.choice((0, 3 * BLOCK, 9 * BLOCK)),
        num_own=draw.choice((1, 5, BLOCK, 3 * BLOCK + 7, 7 * BLOCK)),
        max_tokens=draw.choice((1, 2, 8, 24, 48)),
        n=draw.choice((1, 1, 1, 2)),
        is_greedy=draw.random() < 0.6,
        salt=draw.choice(("", "", "", "other")),
        stop_token_ids=tuple(draw.sample(range(FIRST_TOKEN, VOCAB_SIZE), 10)) if draw.random() < 0.3 else (),
        leaves_s=draw.random() * 0.5 if draw.random() < 0.15 else None,
        reads_s=draw.random() * 0.2 if draw.random() < 0.05 else 0.0,
        router=draw.randrange(routers),
        is_poison=draw.random() < 0.02,
    )


def _fault(draw: Random, kinds: Sequence[str], requests: Sequence[RequestPlan]) -> FaultPlan:
    met = draw.choice(requests)  # most faults meet somebody
    at_s = met.at_s + draw.random() * MEETS_S if draw.random() < 0.7 else draw.random() * SPAN_S
    return FaultPlan(
        kind=draw.choice(kinds),
        at_s=at_s,
        lasts_s=draw.choice((0.1, 0.5, 0.5, 2.0, 12.0)) * (0.5 + draw.random()),
        target=draw.randrange(16),
        other=draw.randrange(16),
        share=draw.choice((0.1, 0.5, 1.0)),
    )


@functools.lru_cache(maxsize=1024)
def _text(name: str, length: int) -> tuple[int, ...]:
    draw = Random(name)
    return tuple(draw.randrange(FIRST_TOKEN, VOCAB_SIZE) for _ in range(length))
