"""Nobody starves, whatever other pods hold of the pool, in which order and for however long they go on.

A made-up model that says the first token of the prompt again, so that all that is ever cached are beginnings of a few
chains, and other pods may ask for any piece of any of them at any step.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from engine_runs import ROOT, greedy, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.engine_messages import Join
from pagewire.core.errors import Overloaded
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import MAX_PRIORITY, SequenceSpec
from pagewire.engine import hold, progress, reservation
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.scheduling_policy import PolicyName, policy_named
from pagewire.engine.step import Computed

B = 16
CHUNK, BUDGET, SEQS = 16, 32, 4
LONGEST = 400
LEASE = 6  # the most steps that a hold lasts
FAMILIES = 3
NAMES = [chain(ROOT, [family] * LONGEST, B) for family in range(FAMILIES)]


@dataclass
class Pod:
    """A scheduler, the queue before its reservations, and the holds of others with the step that ends each."""

    num_blocks: int
    num_slots: int = 0
    policy: PolicyName = PolicyName.FCFS
    at: int = 0  # steps that were begun
    outputs: dict[str, int] = field(default_factory=dict)  # tokens that were said
    ended: set[str] = field(default_factory=set)
    queue: list[tuple[tuple[float, int], SequenceSpec]] = field(default_factory=list)
    ends_at: dict[str, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        limits = Limits(
            max_num_batched_tokens=BUDGET, max_num_seqs=SEQS, chunk_size=CHUNK, block_size=B, max_model_len=LONGEST,
            vocab_size=100, spills=self.num_slots > 0,
        )  # fmt: skip
        self.scheduling = policy_named(self.policy)
        self.scheduler = Scheduler(
            BlockPool(self.num_blocks, self.num_slots), limits, policy_of(Role.DECODE), self.scheduling
        )

    def hold(self, names: list[BlockHash], steps: int) -> int:
        """Let another pod hold these for so many steps; return how many blocks it got."""
        name = f"hold {next(self.numbers)}"
        found = hold.hold(self.scheduler, name, names)
        if found:
            self.ends_at[name] = self.at + steps
        return len(found)

    def add(self, asked: SequenceSpec) -> None:
        """Let a request wait in the engine."""
        self.scheduler.add(asked, now_s=float(self.at))

    def ask(self, asked: SequenceSpec) -> None:
        """Let a request wait before the engine, where the first in rank asks for a reservation until it has one."""
        rank_s = self.at + self.scheduling.handicap_s(asked.priority, len(asked.tokens))
        insort(self.queue, ((rank_s, next(self.numbers)), asked), key=lambda place: place[0])

    def _let_in(self) -> None:
        while self.queue:
            asked = self.queue[0][1]
            try:
                hits = reservation.reserve(self.scheduler, asked, now_s=float(self.at))
            except Overloaded:
                return
            self.queue.pop(0)
            reservation.join(self.scheduler, Join(request_id=asked.request_id, num_computed=hits * B, output=()))

    def _end_holds(self) -> None:
        for name in [name for name, ends_at in self.ends_at.items() if ends_at <= self.at]:
            del self.ends_at[name]
            assert hold.release(self.scheduler, name)

    def step(self) -> bool:
        """Compute a step; return whether anybody advanced."""
        self._end_holds()
        self._let_in()
        step = self.scheduler.schedule()
        self.at += 1
        for grant in step.grants if step is not None else ():
            sequence = self.scheduler.sequences[grant.request_id]
            computed = Computed(token=sequence.spec.tokens[0] if grant.draw is not None else None)
            done = progress.commit(self.scheduler, sequence, grant, {grant.request_id: computed})
            for record in done.records:
                self.outputs[record.request_id] = self.outputs.get(record.request_id, 0) + len(record.tokens)
            if done.end is not None:
                self.ended.add(grant.request_id)
        self.scheduler.pool.take_moves()
        self.scheduler.pool.check()
        return step is not None

    def warm(self, *prompts: tuple[int, int]) -> None:
        """Have the cache hold (family, tokens) of prompts that have ended."""
        for family, length in prompts:
            self.add(spec(f"warm {next(self.numbers)}", [family] * length, greedy(1)))
            while self.step():
                pass
        self.ended.clear()


# --------------------------------------------------------------------------------------------------- three of a kind


@pytest.mark.parametrize(
    ("num_blocks", "num_slots", "warm", "length"),
    [
        pytest.param(10, 40, [(1, 64)], 380, id="it is larger than the pool"),
        pytest.param(20, 0, [(1, 64)], 290, id="it needs all but two of its blocks"),
        pytest.param(20, 40, [(1, 200), (2, 310)], 290, id="what is held is copied from host memory"),
    ],
)
@pytest.mark.parametrize("is_reserved", [False, True])
def test_holds_that_take_turns_starve_nobody(
    num_blocks: int, num_slots: int, warm: list[tuple[int, int]], length: int, is_reserved: bool
) -> None:
    """Each begins before the last one ends."""
    pod = Pod(num_blocks, num_slots)
    pod.warm(*warm)
    assert pod.hold(NAMES[1][:4], 1) == 4
    for name, tokens in (("first", [0] * length), ("second", [9] * 3)):
        (pod.ask if is_reserved else pod.add)(spec(name, tokens, greedy(2)))
    most = pod.at + 2 + num_steps(length) + 2 + 2
    while pod.ended != {"first", "second"}:
        pod.hold(NAMES[1][:4], 1)
        pod.step()
        assert pod.at < most, "they starve"


# ------------------------------------------------------------------------------------------------------- an adversary


@dataclass(frozen=True, slots=True)
class Request:
    """A request that comes at a step. Where `is_reserved` it waits before the engine, otherwise in it."""

    at: int
    family: int
    length: int
    max_tokens: int
    priority: int
    is_reserved: bool


@dataclass(frozen=True, slots=True)
class Fetch:
    """A hold of blocks of a family that lasts some steps."""

    family: int
    start: int
    num_blocks: int
    steps: int


REQUESTS = st.builds(
    Request, st.integers(0, 12), st.integers(0, FAMILIES - 1), st.integers(1, 90) | st.integers(1, 250),
    st.integers(1, 20), st.sampled_from([-MAX_PRIORITY, 0, MAX_PRIORITY]), st.booleans(),
)  # fmt: skip
FETCHES = st.builds(Fetch, st.integers(0, FAMILIES - 1), st.integers(0, 4), st.integers(1, 12), st.integers(1, LEASE))


def num_steps(num_tokens: int) -> int:
    """Return how many steps compute the tokens of who goes first, beside as many decodes as there can be."""
    return -(-num_tokens // min(CHUNK, BUDGET - SEQS + 1))


@pytest.mark.parametrize("policy", PolicyName)
@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=5),
    fetches=st.lists(st.lists(FETCHES, max_size=3), min_size=1, max_size=4),
    warm=st.lists(st.tuples(st.integers(0, FAMILIES - 1), st.integers(20, 90)), max_size=3),
    num_blocks=st.integers(8, 12),
    num_slots=st.sampled_from([0, 24]),
)
def test_nobody_starves_while_others_never_stop_fetching(
    policy: PolicyName,
    requests: list[Request],
    fetches: list[list[Fetch]],
    warm: list[tuple[int, int]],
    num_blocks: int,
    num_slots: int,
) -> None:
    """The fetches of a few steps come again and again, each for the length of its lease.

    Who goes first waits until those who run have ended, and then for a lease at most, in which nobody advances. A hold
    may then cost it what it had, but never before its next token.
    """
    pod = Pod(num_blocks, num_slots, policy)
    pod.warm(*warm)
    begun = pod.at
    lengths = [each.length if num_slots else min(each.length, 90) for each in requests]
    all_tokens = sum(length + each.max_tokens for length, each in zip(lengths, requests, strict=True))
    bound = begun + 12 + sum(
        all_tokens + each.max_tokens * (LEASE + 2 + num_steps(length + each.max_tokens))
        for length, each in zip(lengths, requests, strict=True)
    )  # fmt: skip
    idle = 0
    while len(pod.ended) < len(requests):
        for number, (length, each) in enumerate(zip(lengths, requests, strict=True)):
            if begun + each.at == pod.at:
                asked = spec(str(number), [each.family] * length, greedy(each.max_tokens), priority=each.priority)
                (pod.ask if each.is_reserved else pod.add)(asked)
        for fetch in fetches[pod.at % len(fetches)]:
            pod.hold(NAMES[fetch.family][fetch.start : fetch.start + fetch.num_blocks], fetch.steps)
        advanced = pod.step()
        idle = 0 if advanced or not (pod.scheduler.sequences or pod.queue) else idle + 1
        assert idle <= LEASE + 1, "all wait for longer than a lease"
        assert pod.at <= bound, "somebody starves"
    assert pod.outputs.keys() >= {str(number) for number in range(len(requests))}
