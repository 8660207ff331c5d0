"""Plays many seeds on several processes, and sums up what was found and what was struck.

Knows plans and histories. Invariant: what a seed comes to does not depend on which process plays it, or after what.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.pool import Pool
from typing import TypeVar

from simulated.checker import Violation, violations
from simulated.faults import FAULTS
from simulated.history import History
from simulated.plan import Plan, draw_plan
from simulated.world import World, tokenizer

Result = TypeVar("Result")

BATCH = 20  # seeds that a process plays at a time
BATCHES = 10  # that it plays at all: of what was killed in a world nothing is ever collected


@dataclass(slots=True)
class Played:
    """What came of a plan."""

    plan: Plan
    history: History
    struck: Counter[str]
    states: set[str]
    violations: list[Violation]
    took_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed, as it is told between processes."""

    seed: int
    digest: str
    struck: Counter[str]
    states: frozenset[str]
    violations: tuple[Violation, ...]
    took_s: float
    virtual_s: float


@dataclass(slots=True)
class Summary:
    """What came of many."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def failing(self) -> list[Outcome]:
        """Those that broke a rule."""
        return [each for each in self.outcomes if each.violations]

    def share(self) -> dict[str, float]:
        """Return which share of the seeds each kind of fault did something in."""
        seeds = Counter(kind for each in self.outcomes for kind in each.struck)
        return {kind: seeds[kind] / len(self.outcomes) for kind in (*sorted(FAULTS), "leave")}

    def states(self) -> Counter[str]:
        """Return in how many seeds each kind of fault met each state."""
        return Counter(state for each in self.outcomes for state in each.states)


def play(plan: Plan) -> Played:
    """Play a plan and hold it to the rules."""
    began_s = time.perf_counter()
    world = World(plan)
    history = world.play()
    found = violations(plan, history, world.struck)
    return Played(plan, history, world.struck, world.states, found, time.perf_counter() - began_s)


def kinds() -> Sequence[str]:
    """Return all kinds of faults, in an order that stays."""
    return sorted(FAULTS)


def _pool(processes: int, prepare: Callable[[], None] | None, **bounds: int) -> Pool:
    tokenizer()  # or each process would write one of its own, and leave it behind
    fork = multiprocessing.get_context("fork")
    return fork.Pool(processes, initializer=_begin, initargs=(prepare,), **bounds)


def outcomes(seeds: Iterable[int], *, processes: int, prepare: Callable[[], None] | None = None) -> Iterator[Outcome]:
    """Play seeds, in any order; `prepare` is called in each process before its first one."""
    listed = list(seeds)
    batches = [listed[start : start + BATCH] for start in range(0, len(listed), BATCH)]
    with _pool(processes, prepare, maxtasksperchild=BATCHES) as pool:
        for batch in pool.imap_unordered(_play_batch, batches):
            yield from batch


def apart(function: Callable[[Plan], Result], plan: Plan) -> Result:
    """Return what a function returns of a plan that it plays, in a process of its own."""
    with _pool(1, None) as pool:
        return pool.apply(function, (plan,))


def _begin(prepare: Callable[[], None] | None) -> None:
    gc.disable()  # what was killed must not be cleaned up: it would act
    if prepare is not None:
        prepare()


def _play_batch(seeds: list[int]) -> list[Outcome]:
    return [_outcome(seed) for seed in seeds]


def _outcome(seed: int) -> Outcome:
    played = play(draw_plan(seed, kinds()))
    last = played.history.events[-1].at_s if played.history.events else 0.0
    return Outcome(
        seed, played.history.digest(), played.struck, frozenset(played.states), tuple(played.violations),
        played.took_s, last,
    )  # fmt: skip
