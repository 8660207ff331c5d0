"""Beam search without tensors: the search against every output there is, and beams under a scheduler in any load.

What follows a beam is made up from its tokens, so a request has one right answer however it is scheduled; the memory is
pretended, and every read is checked. Random loads show that nothing of preemption, seats, policies and shared blocks
changes an answer, and that nobody waits forever.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from engine_runs import spec
from hypothesis import given, settings
from hypothesis import strategies as st
from pretended_memory import B, Memory

from pagewire.core.engine_messages import Join
from pagewire.core.errors import InvalidRequest, Overloaded
from pagewire.core.messages import Role
from pagewire.core.sampling import EarlyStopping, SamplingParams
from pagewire.core.sequence_spec import SequenceSpec, branches
from pagewire.engine import progress, reservation
from pagewire.engine.beam_search import BeamSearch, Candidates, Hypothesis
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.preemption import Preemption, PreemptionMode
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.scheduling_policy import PolicyName, policy_named
from pagewire.engine.step import Computed, Grant, Step

VOCAB, END = 7, 6
Squeeze = tuple[int, int, int]  # from that step on somebody else has so many blocks for so many steps
LIMITS = Limits(
    max_num_batched_tokens=32, max_num_seqs=24, chunk_size=16, block_size=B, max_model_len=110, vocab_size=VOCAB
)  # fmt: skip


def following(tokens: tuple[int, ...], count: int) -> Candidates:
    """Return what may follow `tokens`: one distribution for each, the same in every run.

    Flat ones, so that beams stay apart for long, and an end that is rare.
    """
    chance = random.Random(repr(tokens))
    weights = [1 + 0.2 * chance.random() for _ in range(VOCAB)]
    weights[END] *= chance.choice([0.01, 1.0])
    found = sorted(((math.log(weight / sum(weights)), -token) for token, weight in enumerate(weights)), reverse=True)
    return Candidates(
        tokens=tuple(-token for _, token in found[:count]), logprobs=tuple(logprob for logprob, _ in found[:count])
    )


def searched(prompt: tuple[int, ...], sampling: SamplingParams) -> list[Hypothesis]:
    """Return the answer of a search that nobody schedules."""
    search = BeamSearch.of(sampling, sampling.max_tokens, frozenset())
    outputs: dict[int, tuple[int, ...]] = {0: ()}
    while outputs:
        for index, output in outputs.items():
            search.hear(index, following(prompt + output, search.num_candidates))
        extensions = search.advance(outputs)
        outputs = {each.index: (*outputs[each.parent], each.token) for each in extensions}
        assert len(set(outputs.values())) == len(outputs), "two beams are one"
    return search.results()


def every_output(limit: int) -> Iterator[tuple[int, ...]]:
    """Yield all outputs: those that end, and those of `limit` tokens that do not."""
    for length in range(limit):
        for begun in itertools.product(range(END), repeat=length):
            yield (*begun, END)
    yield from itertools.product(range(END), repeat=limit)


@pytest.mark.parametrize("stopping", EarlyStopping)
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 3.0])
@pytest.mark.parametrize("prompt", [(1,), (2, 3)])
def test_a_search_that_is_wide_enough_finds_the_best_of_all(
    stopping: EarlyStopping, penalty: float, prompt: tuple[int, ...]
) -> None:
    limit = 3
    scores = {}
    for output in every_output(limit):
        total = 0.0
        for place, token in enumerate(output):
            found = following(prompt + output[:place], VOCAB)
            total += dict(zip(found.tokens, found.logprobs, strict=True))[token]
        scores[output] = total / len(output) ** penalty
    asked = SamplingParams(
        n=20, use_beam_search=True, beam_width=len(scores), length_penalty=penalty, early_stopping=stopping,
        max_tokens=limit, stop_token_ids=(END,),
    )  # fmt: skip
    answers = searched(prompt, asked)
    best = sorted(scores, key=lambda output: -scores[output])[:20]
    assert [each.tokens for each in answers] == best
    assert [each.score for each in answers] == pytest.approx([scores[output] for output in best])


@dataclass(frozen=True)
class Coming:
    """A request: so many steps after the one before it."""

    steps: int
    length: int
    width: int  # 0: an ordinary one
    max_tokens: int
    penalty: float
    stopping: EarlyStopping
    priority: int
    is_aborted: bool
    count: int = 1  # of answers, where nothing is searched
    joins_after: int | None = None  # steps between its reservation and its start, as on a decode pod
    begins_alike: bool = False

    def spec(self, number: int) -> SequenceSpec:
        """Return it, with a prompt of its own, or one that begins as all others that do."""
        chance = random.Random("alike" if self.begins_alike else number)
        prompt = [chance.randrange(END) for _ in range(self.length)]
        if not self.width:
            plain = SamplingParams(n=self.count, max_tokens=self.max_tokens, temperature=0.0)
            return spec(str(number), prompt, plain, priority=self.priority, branches=branches(self.count))
        sampling = SamplingParams(
            n=self.width, use_beam_search=True, length_penalty=self.penalty, early_stopping=self.stopping,
            max_tokens=self.max_tokens, stop_token_ids=(END,),
        )  # fmt: skip
        return spec(str(number), prompt, sampling, priority=self.priority, branches=branches(self.width))


REQUESTS = st.lists(
    st.builds(
        Coming,
        steps=st.integers(0, 4),
        length=st.integers(1, 20),
        width=st.sampled_from([0, 1, 2, 3, 4]),
        max_tokens=st.integers(1, 34),
        penalty=st.sampled_from([0.0, 1.0, 2.5]),
        stopping=st.sampled_from(EarlyStopping),
        priority=st.sampled_from([-3, 0, 3]),
        is_aborted=st.sampled_from([False, False, False, True]),
        count=st.integers(1, 4),
        joins_after=st.sampled_from([None, None, 0, 3, 20]),
        begins_alike=st.booleans(),
    ),
    min_size=4,
    max_size=12,
)


class Run:
    """A load on a scheduler, from its first request to its end."""

    def __init__(self, scheduler: Scheduler, memory: Memory, squeezes: Sequence[Squeeze]) -> None:
        self.scheduler, self.memory, self.squeezes = scheduler, memory, squeezes
        self.steps = 0
        self.taken: dict[int, list[int]] = {}  # until which step
        self.specs: dict[str, SequenceSpec] = {}
        self.said: dict[str, list[tuple[int, ...]]] = {}
        self.ended: set[str] = set()
        self.asking: dict[str, int] = {}  # for blocks, by request: how many steps behind them it joins
        self.joining: dict[str, int] = {}  # in which step, by request
        self.now_s = 0.0

    @property
    def is_over(self) -> bool:
        """True when nobody runs, and nobody waits to."""
        return not self.scheduler.sequences and not self.asking

    def add(self, one: SequenceSpec, joins_after: int | None = None) -> None:
        self.specs[one.request_id] = one
        self.said[one.request_id] = []
        if joins_after is None:
            self.scheduler.add(one, now_s=self.now_s)
        else:
            self.asking[one.request_id] = joins_after

    def abort(self, name: str) -> None:
        """End a request, whatever it has come to."""
        for known in (self.specs, self.asking, self.joining):
            known.pop(name, None)
        self.scheduler.remove_request(name)

    def _join(self) -> None:
        """Reserve for whoever asks, one after another, and let those join whose time has come: nothing has landed."""
        for name, steps in list(self.asking.items()):
            try:
                reservation.reserve(self.scheduler, self.specs[name], now_s=self.now_s)
            except Overloaded:
                break
            self.memory.move(self.scheduler)
            self.joining[name] = self.steps + steps
            del self.asking[name]
        for name in [name for name, step in self.joining.items() if step <= self.steps]:
            del self.joining[name]
            sequence, one = self.scheduler.sequences[name], self.specs[name]
            reservation.join(
                self.scheduler,
                Join(request_id=name, num_computed=sequence.num_computed, output=(), branches=one.branches),
            )
            self.memory.move(self.scheduler)

    def step(self) -> bool:
        """Make a step; False when nothing advances."""
        self._squeeze()
        self._join()
        step = self.scheduler.schedule()
        self.memory.move(self.scheduler)
        if step is None:
            return False
        self.now_s += 0.01
        self._compute(step)
        for grant in step.grants:
            sequence = self.scheduler.sequences.get(grant.request_id)
            if sequence is None:
                continue
            done = progress.commit(self.scheduler, sequence, grant, self._found(grant))
            for record in filter(lambda each: each.tokens, done.records):
                self.said[record.request_id].append(record.tokens)
            if done.end is not None:
                assert done.end.error is None
                self.ended.add(done.end.request_id)
        self.scheduler.pool.check()
        assert self.scheduler.pool.num_orphaned([*self.scheduler.tables(), *self.taken.values()]) == 0
        assert sum(each.num_seats for each in self.scheduler.running) <= LIMITS.max_num_seqs
        return True

    def _squeeze(self) -> None:
        self.steps += 1
        for until in [until for until in self.taken if until <= self.steps]:
            self.scheduler.pool.release(self.taken.pop(until))
        for start, num_blocks, steps in self.squeezes:
            if start == self.steps and start + steps not in self.taken:
                count = min(num_blocks, self.scheduler.pool.num_available)
                self.taken[start + steps] = self.scheduler.pool.allocate(count)
                self.memory.move(self.scheduler)

    def give_back(self) -> None:
        """End what squeezes the pool."""
        for block_ids in self.taken.values():
            self.scheduler.pool.release(block_ids)
        self.taken.clear()

    def _compute(self, step: Step) -> None:
        for grant in step.grants:
            first = self._first_seen(grant.start)
            before = self.scheduler.sequences[grant.request_id].tokens(first, grant.start)
            assert self.memory.read(list(grant.block_ids), grant.start, first) == list(before), "wrong KV is read"
            self.memory.write(list(grant.block_ids), grant.start, grant.tokens)
        for grant in step.grants:  # after all wrote: nobody wrote where another reads
            first, stop = self._first_seen(grant.start), grant.start + len(grant.tokens)
            tokens = self.scheduler.sequences[grant.request_id].tokens(first, stop)
            assert self.memory.read(list(grant.block_ids), stop, first) == list(tokens), "KV was spoilt"

    def _first_seen(self, position: int) -> int:
        window = self.scheduler.limits.window
        return max(0, position - window + 1) if window else 0

    def _found(self, grant: Grant) -> dict[str, Computed]:
        tokens = self.scheduler.sequences[grant.request_id].tokens(0, grant.start + len(grant.tokens))
        return {
            name: Computed(candidates=following(tokens, draw.num_candidates))
            if draw.num_candidates
            else Computed(token=1)
            for name, draw in grant.draws().items()
        }


@settings(max_examples=150, deadline=None)
@given(
    requests=REQUESTS,
    policy=st.sampled_from(PolicyName),
    mode=st.sampled_from(PreemptionMode),
    num_blocks=st.integers(20, 24),
    num_slots=st.sampled_from([0, 3, 40]),
    squeezes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(5, 40)), max_size=6),
    chunk_size=st.sampled_from([1, 3, LIMITS.chunk_size]),
)
def test_any_load_of_beams_has_the_answers_of_each_alone(
    requests: list[Coming],
    policy: PolicyName,
    mode: PreemptionMode,
    num_blocks: int,
    num_slots: int,
    squeezes: list[Squeeze],
    chunk_size: int,
) -> None:
    run(requests, policy, mode, num_blocks, num_slots, squeezes, chunk_size=chunk_size)


@settings(max_examples=100, deadline=None)
@given(
    requests=REQUESTS,
    policy=st.sampled_from(PolicyName),
    mode=st.sampled_from(PreemptionMode),
    num_blocks=st.integers(12, 24),
    num_slots=st.sampled_from([0, 40]),
    window=st.sampled_from([B, 3 * B - 1, 5 * B]),
    squeezes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(5, 40)), max_size=6),
)
def test_with_a_window_what_is_let_in_has_its_answers_too(
    requests: list[Coming],
    policy: PolicyName,
    mode: PreemptionMode,
    num_blocks: int,
    num_slots: int,
    window: int,
    squeezes: list[Squeeze],
) -> None:
    requests = [replace(each, joins_after=None) for each in requests]
    run(requests, policy, mode, num_blocks, num_slots, squeezes, window=window)


def test_beams_that_are_longer_than_the_window_find_none_of_what_they_had_in_common() -> None:
    """Preempted, each would have a window of its own, where all of them together were counted as one."""
    beams = Coming(
        steps=0, length=80, width=3, max_tokens=12, penalty=2.5, stopping=EarlyStopping.NEVER, priority=0,
        is_aborted=False,
    )  # fmt: skip
    requests = [replace(beams, length=14, width=0, max_tokens=34)] * 2 + [beams]
    limits = replace(LIMITS, window=3 * B)
    least = 3 * (limits.most_held(92) + 1)
    mode = PreemptionMode.RECOMPUTE
    scheduler = run(requests, PolicyName.FCFS, mode, least, 0, [(9, 12, 30)], window=limits.window)
    assert scheduler.num_preemptions > 0
    with pytest.raises(InvalidRequest, match=f"may need {least} blocks; the KV pool has {least - 1}"):
        Scheduler(BlockPool(least - 1), limits, policy_of(Role.COLOCATED)).add(beams.spec(1))


@settings(max_examples=100, deadline=None)
@given(
    requests=REQUESTS,
    policy=st.sampled_from(PolicyName),
    num_blocks=st.integers(8, 24),
    squeezes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(5, 40)), max_size=6),
)
def test_without_a_cache_what_is_let_in_has_its_answers_too(
    requests: list[Coming], policy: PolicyName, num_blocks: int, squeezes: list[Squeeze]
) -> None:
    requests = [replace(each, joins_after=None) for each in requests]
    run(requests, policy, PreemptionMode.RECOMPUTE, num_blocks, 0, squeezes, caches=False)


def test_beams_that_fit_together_alone_are_refused_where_nothing_is_found_again() -> None:
    """Preempted, each would compute the prompt into blocks of its own, and wait for the others with them for good."""
    beams = Coming(
        steps=0, length=80, width=4, max_tokens=30, penalty=2.5, stopping=EarlyStopping.NEVER, priority=0,
        is_aborted=False,
    )  # fmt: skip
    requests = [replace(beams, length=70, width=0), beams]
    for num_blocks, caches, num_preempted in ((17, True, 1), (32, False, 0)):
        scheduler = run(requests, PolicyName.FCFS, PreemptionMode.RECOMPUTE, num_blocks, 0, [(9, 9, 30)], caches=caches)
        assert scheduler.num_preemptions >= num_preempted
    with pytest.raises(InvalidRequest, match="4 beams of up to 30 tokens may need 32 blocks; the KV pool has 31"):
        Scheduler(BlockPool(31, caches=False), LIMITS, policy_of(Role.COLOCATED)).add(beams.spec(1))


def run(
    requests: list[Coming],
    policy: PolicyName,
    mode: PreemptionMode,
    num_blocks: int,
    num_slots: int,
    squeezes: Sequence[Squeeze] = (),
    *,
    caches: bool = True,
    window: int = 0,
    chunk_size: int = LIMITS.chunk_size,
) -> Scheduler:
    pool = BlockPool(num_blocks, num_slots, caches=caches)
    limits = replace(LIMITS, window=window, chunk_size=chunk_size)
    scheduler = Scheduler(pool, limits, policy_of(Role.COLOCATED), policy_named(policy), Preemption(mode))
    load = Run(scheduler, Memory(num_blocks, num_slots), squeezes)
    for number, request in enumerate(requests):
        for _ in range(request.steps):
            load.step()
        try:
            load.add(request.spec(number), request.joins_after)
        except InvalidRequest:
            assert window or not caches, "these pools have room for any of them"
            load.abort(str(number))
        if request.is_aborted and number:
            load.abort(str(number - 1))
    for _ in range(3000):
        if load.is_over:
            break
        preempted = scheduler.num_preemptions  # who gave way left room for who waits, in the next step
        advances = load.step() or scheduler.num_preemptions > preempted
        assert advances or load.taken or load.joining, "nobody advances"
    load.give_back()
    assert load.is_over, "somebody starves"
    assert (pool.num_held, pool.num_reserved) == (0, 0)
    for name, one in load.specs.items():
        assert name in load.ended
        if one.sampling.use_beam_search:
            assert load.said[name] == [each.tokens for each in searched(one.tokens, one.sampling)]
        else:
            assert sum(load.said[name], ()) == (1,) * (one.sampling.n * one.sampling.max_tokens)
    return scheduler


@pytest.mark.parametrize(("mode", "num_slots"), [(PreemptionMode.RECOMPUTE, 0), (PreemptionMode.SWAP, 40)])
def test_such_loads_do_preempt_beams(mode: PreemptionMode, num_slots: int) -> None:
    """What the loads are for does happen in them: one fixed load."""
    requests = [
        Coming(
            steps=0, length=20 + number, width=4, max_tokens=34, penalty=2.5, stopping=EarlyStopping.NEVER,
            priority=0, is_aborted=False,
        )
        for number in range(8)
    ]  # fmt: skip
    scheduler = run(requests, PolicyName.FCFS, mode, 20, num_slots)
    assert scheduler.num_preemptions > 1
    assert (scheduler.num_swaps > 0) == (mode is PreemptionMode.SWAP)


def test_beams_that_wait_for_others_give_way_to_who_goes_before_them() -> None:
    """One beam has its blocks and waits for another, which has none: a request that goes before both needs them all."""
    pool, limits = BlockPool(24), replace(LIMITS, max_model_len=400)
    scheduler = Scheduler(pool, limits, policy_of(Role.COLOCATED), policy_named("priority"), Preemption())
    load = Run(scheduler, Memory(24, 0), ())
    coming = Coming(
        steps=0, length=60, width=2, max_tokens=30, penalty=2.5, stopping=EarlyStopping.NEVER, priority=3,
        is_aborted=False,
    )  # fmt: skip
    load.add(coming.spec(1))
    while len(scheduler.running) < 2:
        assert load.step()
    load.taken[999] = pool.allocate(pool.num_available)
    while not scheduler.waiting:
        assert load.step()
    assert len(scheduler.running) == 1, "a beam went alone"
    while load.step():
        pass
    load.add(replace(coming, length=330, width=0, priority=-3).spec(2))
    load.give_back()
    while scheduler.sequences:
        assert load.step(), "nobody advances"
    one = load.specs["1"]
    assert load.said["1"] == [each.tokens for each in searched(one.tokens, one.sampling)]
    assert len(load.said["2"]) == 30


def test_who_has_blocks_and_waits_for_places_gives_way_to_beams_that_wait_for_blocks() -> None:
    """Its prompt was reserved when there was room, and is there when beams have grown: neither could go on."""
    pool, limits = BlockPool(24), replace(LIMITS, max_model_len=40 * B, max_num_seqs=4)
    scheduler = Scheduler(pool, limits, policy_of(Role.DECODE), policy_named("fcfs"), Preemption())
    load = Run(scheduler, Memory(24, 0), ())
    beams = Coming(
        steps=0, length=4 * B - 2, width=3, max_tokens=2 * B, penalty=2.5, stopping=EarlyStopping.NEVER, priority=0,
        is_aborted=False,
    )  # fmt: skip
    load.add(beams.spec(1), joins_after=0)
    assert load.step()
    load.add(replace(beams, length=16 * B, width=0, count=3).spec(2), joins_after=10**6)
    while not scheduler.waiting:
        assert load.step()
    assert not load.asking
    load.joining["2"] = 0
    for _ in range(3000):
        if load.is_over:
            break
        assert load.step(), "nobody advances"
    assert scheduler.num_preemptions > 1
    one = load.specs["1"]
    assert load.said["1"] == [each.tokens for each in searched(one.tokens, one.sampling)]
    assert sum(load.said["2"], ()) == (1,) * (3 * 2 * B)
