"""The scheduler under every command in any order, on a pretended memory that knows what each slot must hold.

Each block is a list of the tokens whose KV lies in its slots; copies are made on these lists. A grant that would read a
slot that its window shows with anything else in it fails, and one that writes where somebody else reads, so this shows
that preemption, swapping, forking and the cache bring back what was computed, for any order of commands; that tensors
follow is for the tests with a model.
"""

from __future__ import annotations

import pytest
from engine_runs import ROOT, spec
from guesses import Guesses
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pretended_memory import B, Memory

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.engine_messages import Join, Keep
from pagewire.core.errors import InvalidRequest, Overloaded
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import MAX_PRIORITY, Branch
from pagewire.engine import hold, progress, reservation
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.preemption import Preemption, PreemptionMode
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.scheduling_policy import PolicyName, policy_named
from pagewire.engine.sequence import Sequence, State
from pagewire.engine.step import Computed, Step, fork_name

BUDGET, CHUNK, SEQS, LONGEST = 24, 16, 4, 110
LENGTHS, MAX_TOKENS = st.integers(1, 50), st.integers(1, 59)
PRIORITIES = st.sampled_from([-MAX_PRIORITY, -1, 0, 1, MAX_PRIORITY])


class SchedulerMachine(RuleBasedStateMachine):
    """Commands come in any order, of any role, policy and way of preemption; time passes."""

    @initialize(
        role=st.sampled_from([Role.DECODE, Role.DECODE, Role.PREFILL]),
        policy=st.sampled_from(PolicyName),
        mode=st.sampled_from(PreemptionMode),
        num_blocks=st.integers(8, 13),
        num_slots=st.sampled_from([0, 2, 4, 30]),
        window=st.sampled_from([0, 0, 1, 20, 40]),
        spills=st.booleans(),
        most_drafted=st.sampled_from([0, 0, 2, 20]),
    )
    def start(
        self,
        role: Role,
        policy: PolicyName,
        mode: PreemptionMode,
        num_blocks: int,
        num_slots: int,
        window: int,
        spills: bool,
        most_drafted: int = 0,
    ) -> None:
        limits = Limits(
            max_num_batched_tokens=BUDGET, max_num_seqs=SEQS, chunk_size=CHUNK, block_size=B,
            max_model_len=4 * LONGEST, vocab_size=100, window=window, spills=spills and not window,
        )  # fmt: skip
        pool = BlockPool(num_blocks, num_slots)
        self.scheduler = Scheduler(pool, limits, policy_of(role), policy_named(policy), Preemption(mode))
        if most_drafted:
            self.scheduler.speculation = Guesses(most_drafted, _said_by, wrong=99)
        self.role = role
        self.memory = Memory(num_blocks, num_slots)
        self.holds: dict[str, list[int]] = {}
        self.reserved: set[str] = set()
        self.now_s = 0.0
        self.number = 0
        self.asked: dict[str, int] = {}  # output tokens that are wanted
        self.said: dict[str, list[int]] = {}

    # --------------------------------------------------------------------------------------------------- commands

    def _spec(self, length: int, family: int, priority: int, max_tokens: int, begun: tuple[int, ...] = (0,)) -> str:
        """Make a spec whose sequences have so many tokens of output already."""
        self.number += 1
        name = str(self.number)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        outputs = [tuple(_token(length + at, index) for at in range(count)) for index, count in enumerate(begun)]
        branches = tuple(Branch(index=index, output=output) for index, output in enumerate(outputs) if index)
        self.spec = spec(name, [family] * length, sampling, priority=priority, output=outputs[0], branches=branches)
        for index, output in enumerate(outputs):
            each = fork_name(name, index) if index else name
            self.asked[each] = max_tokens
            self.said[each] = list(output)
        return name

    @precondition(lambda self: len(self.scheduler.sequences) < 12)
    @rule(
        length=LENGTHS, family=st.integers(0, 4), priority=PRIORITIES, max_tokens=MAX_TOKENS, count=st.integers(1, SEQS)
    )
    def add(self, length: int, family: int, priority: int, max_tokens: int, count: int) -> None:
        self._spec(length, family, priority, max_tokens, (0,) * count)
        self.scheduler.add(self.spec, now_s=self.now_s)

    @precondition(lambda self: self._takes_long() and len(self.scheduler.sequences) < 6)
    @rule(length=st.integers(B * 5, 3 * LONGEST), family=st.integers(0, 1), max_tokens=MAX_TOKENS)
    def add_long(self, length: int, family: int, max_tokens: int) -> None:
        """More than the pool holds, where no token sees all of it or host memory takes the rest."""
        try:
            self.add(length, family, 0, max_tokens, 1)
        except InvalidRequest:
            pool = self.scheduler.pool
            assert length + max_tokens > (pool.num_blocks + pool.host.num_slots) * B
            self._forget(str(self.number))

    @precondition(lambda self: self.role is Role.DECODE and len(self.scheduler.sequences) < 12)
    @rule(
        length=LENGTHS, family=st.integers(0, 4), begun=st.lists(st.integers(1, 40), min_size=1, max_size=SEQS),
        more=st.integers(1, 10),
    )  # fmt: skip
    def go_on(self, length: int, family: int, begun: list[int], more: int) -> None:
        """A request comes from another pod with what is out of each of its sequences."""
        self._spec(length, family, 0, max(begun) + more, tuple(begun))
        self.scheduler.add(self.spec, now_s=self.now_s)

    @precondition(lambda self: len(self.scheduler.sequences) < 6)
    @rule(lengths=st.lists(LENGTHS, min_size=3, max_size=5), priority=PRIORITIES)
    def crowd(self, lengths: list[int], priority: int) -> None:
        """Many long answers at once: more than there are blocks for."""
        for family, length in enumerate(lengths):
            self.add(length, family, priority, 59, 1)
        self.step(20, None)

    @precondition(lambda self: len(self.scheduler.sequences) < 6)
    @rule(lengths=st.lists(LENGTHS, min_size=1, max_size=3), count=st.integers(2, SEQS))
    def crowd_of_groups(self, lengths: list[int], count: int) -> None:
        """Many long answers to few questions."""
        for family, length in enumerate(lengths):
            self.add(length, family, 0, 59, count)
        self.step(20, None)

    @precondition(lambda self: len(self.scheduler.sequences) < 12)
    @rule(
        length=LENGTHS, family=st.integers(0, 4), priority=PRIORITIES, max_tokens=MAX_TOKENS, count=st.integers(1, SEQS)
    )
    def reserve(self, length: int, family: int, priority: int, max_tokens: int, count: int) -> None:
        name = self._spec(length, family, priority, max_tokens, (0,) * count)
        self.reserved.add(name)
        try:
            reservation.reserve(self.scheduler, self.spec, now_s=self.now_s)
        except (Overloaded, InvalidRequest):
            assert name not in self.scheduler.sequences
            self._forget(name)
        self.memory.move(self.scheduler)

    @precondition(lambda self: self._takes_long() and len(self.scheduler.sequences) < 6)
    @rule(length=st.integers(B * 5, 3 * LONGEST), family=st.integers(0, 1), max_tokens=MAX_TOKENS)
    def reserve_long(self, length: int, family: int, max_tokens: int) -> None:
        """Room for more than the pool holds: nothing is promised, and it waits once it has joined."""
        self.reserve(length, family, 0, max_tokens, 1)

    @precondition(lambda self: self._in(State.RESERVED))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """Some of a prompt's blocks arrive from elsewhere, are kept, and perhaps the sequence joins."""
        sequence = data.draw(st.sampled_from(self._in(State.RESERVED)), "who")
        name = sequence.request_id
        bound = list(reservation.bind(self.scheduler, name, data.draw(st.integers(0, 8), "blocks")))
        self.memory.move(self.scheduler)
        landed = min(sequence.num_prompt, len(bound) * B)
        start = sequence.num_computed
        self.memory.write(bound, start, sequence.tokens(start, landed))
        if data.draw(st.booleans(), "kept"):
            reservation.keep(self.scheduler, Keep(request_id=name, num_computed=landed))
            progress.register_full_blocks(self.scheduler, sequence)
        if data.draw(st.booleans(), "joins"):
            output: tuple[int, ...] = ()
            first, branches = 0, sequence.spec.branches
            if self.role is Role.DECODE and self.asked[name] > 1 and data.draw(st.booleans()):
                output = (_token(sequence.num_prompt, 0),)
                branches = tuple(
                    Branch(index=each.index, output=(_token(sequence.num_prompt, each.index),)) for each in branches
                )
                for each in (name, *(fork_name(name, each.index) for each in branches)):
                    self.said[each] = [_token(sequence.num_prompt, _index(each))]
                first = data.draw(st.integers(0, len(branches)))  # those before it ended with their first token
                if first:
                    for each in (name, *(fork_name(name, each.index) for each in branches)):
                        if _index(each) < first:
                            del self.asked[each], self.said[each]
                    self.said[name] = self.said.pop(fork_name(name, first))
                    self.asked[name] = self.asked.pop(fork_name(name, first))
                    output, branches = branches[first - 1].output, branches[first:]
            command = Join(
                request_id=name, num_computed=max(landed, start), output=output, index=first, branches=branches
            )
            assert reservation.join(self.scheduler, command) is sequence
            progress.register_full_blocks(self.scheduler, sequence)
        self.memory.move(self.scheduler)

    @precondition(lambda self: self.scheduler.sequences)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._remove(data.draw(st.sampled_from(sorted(self.scheduler.groups))))

    @precondition(lambda self: any(len(group.members) > 1 for group in self.scheduler.groups.values()))
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        """One sequence of a request has enough."""
        groups = [group for group in self.scheduler.groups.values() if len(group.members) > 1]
        sequence = data.draw(st.sampled_from(data.draw(st.sampled_from(groups)).members))
        self.scheduler.remove(sequence)
        del self.asked[sequence.name], self.said[sequence.name]

    @rule(family=st.integers(0, 2), start=st.integers(0, 2))
    def fetch(self, family: int, start: int) -> None:
        """Another pod reads what is cached."""
        self.number += 1
        name = f"hold {self.number}"
        names = chain(ROOT, [family] * 80, B)[start:]
        found = list(hold.hold(self.scheduler, name, names))
        self.memory.move(self.scheduler)
        assert self.memory.read(found, len(found) * B) == [family] * len(found) * B
        if found:
            self.holds[name] = found

    @precondition(lambda self: self.holds)
    @rule()
    def release(self) -> None:
        assert hold.release(self.scheduler, self.holds.popitem()[0])

    @rule(seconds=st.sampled_from([0.01, 1.0, 2000.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    # ------------------------------------------------------------------------------------------------------ steps

    @rule(count=st.integers(1, 30), max_prefill=st.none() | st.integers(1, 20))
    def step(self, count: int, max_prefill: int | None) -> None:
        for _ in range(count):
            step = self.scheduler.schedule(max_prefill)
            self.memory.move(self.scheduler)
            if step is None:
                return
            self._check_budget(step, max_prefill)
            self._compute(step)

    def _check_budget(self, step: Step, max_prefill: int | None) -> None:
        assert 0 < step.num_tokens <= BUDGET
        assert len({grant.request_id for grant in step.grants}) == len(step.grants) <= SEQS
        prefill = 0
        for grant in step.grants:
            assert len(grant.tokens) - len(grant.checks) <= CHUNK
            assert len(grant.checks) == len(grant.drafted)
            prefill += len(grant.checks)
            if grant.start + 1 < self.scheduler.sequences[grant.request_id].num_tokens:
                prefill += len(grant.tokens)
        assert prefill <= (max_prefill or BUDGET)

    def _compute(self, step: Step) -> None:
        for grant in step.grants:
            sequence = self.scheduler.sequences[grant.request_id]
            table, first = list(grant.block_ids), self._first_seen(grant.start)
            assert not grant.spilled or len(step.grants) == 1
            seen = self.memory.read(table, grant.start, first, grant.spilled)
            assert seen == list(sequence.tokens(first, grant.start)), "wrong KV is read"
            self.memory.write(table, grant.start, grant.tokens)
        for grant in step.grants:  # after all wrote: nobody wrote where another reads
            sequence = self.scheduler.sequences[grant.request_id]
            stop, first = grant.start + len(grant.tokens), self._first_seen(grant.start)
            seen = self.memory.read(list(grant.block_ids), stop, first, grant.spilled)
            known = sequence.tokens(first, stop - len(grant.checks))
            assert seen == [*known, *grant.drafted], "KV was spoilt"
        for grant in step.grants:
            sequence = self.scheduler.sequences[grant.request_id]
            name, group = sequence.name, sequence.group
            drawn = {
                each: Computed(token=_token(sequence.num_prompt + draw.position, draw.index))
                for each, draw in grant.draws().items()
            }
            done = progress.commit(self.scheduler, sequence, grant, drawn)
            names = list(drawn)[: len(drawn) - len(grant.checks)]
            for each, record in zip(names, done.records, strict=True):
                assert record.position == len(self.said[each])
                assert list(record.tokens) == [
                    _token(sequence.num_prompt + record.position + place, record.index)
                    for place in range(len(record.tokens))
                ]
                self.said[each] += record.tokens
                if record.finish_reason is not None:
                    assert len(self.said[each]) == self.asked[each]
                    if self.role is Role.DECODE:
                        del self.said[each], self.asked[each]
            if sequence.state is State.HANDED_OFF:  # held until it is released, though its first tokens end it
                assert (done.end is not None) == all(record.finish_reason for record in done.records), name
                continue
            assert (done.end is not None) == (not group.members), name
            if done.end is not None:
                self._forget(name.split("\x1f")[0])

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        scheduler.pool.check()
        assert scheduler.num_orphaned() == scheduler.pool.num_orphaned(scheduler.tables()) == 0
        assert scheduler.pool.num_reserved == sum(each.promised for each in scheduler.sequences.values())
        assert scheduler.holds.keys() == self.holds.keys()
        for queue, state in (
            (scheduler.running, State.RUNNING), (scheduler.joined, State.JOINED), (scheduler.waiting, State.WAITING)
        ):  # fmt: skip
            assert sorted(each.arrival for each in queue) == sorted(each.arrival for each in self._in(state))
            is_sorted_anew = scheduler.scheduling.changes and queue is scheduler.running  # by each step
            assert is_sorted_anew or queue == sorted(queue, key=scheduler.rank)
        for each in self._in(State.WAITING):
            assert (len(each.block_table), each.num_computed, each.num_gone) == (0, 0, 0)
        assert scheduler.pool.host.num_lent == sum(len(each.spilled) for each in scheduler.sequences.values())
        for each in scheduler.sequences.values():
            assert not each.spilled or (each.state, len(each.spilled)) == (State.RUNNING, each.num_gone)
            if each.request_id not in self.reserved:  # those were promised all their blocks
                assert len(each.held) <= scheduler.limits.most_held(each.num_tokens)

    def teardown(self) -> None:
        """Whatever happened, once nothing new comes everybody ends and nothing is left."""
        if not hasattr(self, "scheduler"):
            return
        for name in list(self.holds):
            hold.release(self.scheduler, name)
        self.holds.clear()
        for sequence in self._in(State.RESERVED):
            self._remove(sequence.request_id)
        for _ in range(3000):
            for sequence in self._in(State.HANDED_OFF):
                self._remove(sequence.request_id)
            if not self.scheduler.sequences:
                break
            step = self.scheduler.schedule()
            self.memory.move(self.scheduler)
            assert step is not None, "nobody advances"
            self._compute(step)
            self.nothing_is_lost()
        assert not self.scheduler.sequences, "somebody starves"
        assert (self.scheduler.pool.num_held, self.scheduler.pool.num_reserved) == (0, 0)
        assert not any(parked.is_tail for parked in self.scheduler.pool.host.parked())

    def _takes_long(self) -> bool:
        return bool(self.scheduler.limits.window or self.scheduler.limits.spills)

    def _first_seen(self, position: int) -> int:
        window: int = self.scheduler.limits.window
        return max(0, position - window + 1) if window else 0

    def _in(self, state: State) -> list[Sequence]:
        return [each for each in self.scheduler.sequences.values() if each.state is state]

    def _remove(self, request_id: str) -> None:
        assert self.scheduler.remove_request(request_id)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        for name in [name for name in self.said if name.split("\x1f")[0] == request_id]:
            del self.asked[name], self.said[name]


def _index(name: str) -> int:
    return int(name.split("\x1f")[1]) if "\x1f" in name else 0


def _said_by(sequence: Sequence, place: int) -> int:
    return _token(sequence.num_prompt + place, sequence.index)


def _token(num_tokens: int, index: int) -> int:
    """Return what the made-up model says after `num_tokens` tokens."""
    return (num_tokens * 31 + index * 7) % 90


SchedulerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase


def test_the_machine_preempts_swaps_and_recalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine is for does happen in it: one fixed run of its rules."""
    recalled: list[int | None] = []
    recall = BlockPool.recall_tail

    def counted(pool: BlockPool, tail_hash: BlockHash) -> int | None:
        recalled.append(recall(pool, tail_hash))
        return recalled[-1]

    monkeypatch.setattr(BlockPool, "recall_tail", counted)
    machine = SchedulerMachine()
    machine.start(Role.DECODE, PolicyName.FCFS, PreemptionMode.AUTO, 9, 30, 0, False)
    for family, length in enumerate((63, 33)):
        machine.add(length=length, family=family, priority=0, max_tokens=40, count=1)
    machine.teardown()
    assert machine.scheduler.num_swaps == machine.scheduler.num_preemptions > 0
    assert any(block_id is not None for block_id in recalled)


def test_the_machine_forks_copies_and_preempts_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for groups: one fixed run in which blocks are copied before they are written, and groups give way."""
    copied: list[int] = []
    own = BlockPool.own

    def counted(pool: BlockPool, block_id: int) -> int:
        copied.append(block_id)
        return own(pool, block_id)

    monkeypatch.setattr(BlockPool, "own", counted)
    machine = SchedulerMachine()
    machine.start(Role.DECODE, PolicyName.FCFS, PreemptionMode.RECOMPUTE, 9, 0, 0, False)
    for family, length in enumerate((20, 33)):
        machine.add(length=length, family=family, priority=0, max_tokens=50, count=2)
    machine.teardown()
    assert len(copied) == 2, "of two sequences one copies the tail of their prompt"
    assert machine.scheduler.num_preemptions > 1


def test_the_machine_passes_blocks_and_hits_behind_them() -> None:
    """The same for windows: prompts larger than the pool end, and what follows one begins behind its cached blocks."""
    machine = SchedulerMachine()
    machine.start(Role.DECODE, PolicyName.FCFS, PreemptionMode.AUTO, 9, 0, 40, False)
    for length in (300, 100, 100):
        machine.add(length=length, family=0, priority=0, max_tokens=40, count=1)
    machine.teardown()
    assert machine.scheduler.num_cached_tokens > 0


def test_the_machine_drafts_rightly_and_wrongly() -> None:
    """The same for drafts: some are right to their end, others from some token on are not; all are given back."""
    machine = SchedulerMachine()
    machine.start(Role.DECODE, PolicyName.FCFS, PreemptionMode.AUTO, 13, 0, 0, False, most_drafted=20)
    for family, length in enumerate((20, 33, 47)):
        machine.add(length=length, family=family, priority=0, max_tokens=50, count=1)
    machine.teardown()
    speculation = machine.scheduler.speculation
    assert speculation is not None
    assert 0 < speculation.num_accepted < speculation.num_drafted


def test_who_spills_waits_where_no_slot_is_left() -> None:
    """What another pod reads is not given back, and host memory is too small for more: found by the rules above."""
    machine = SchedulerMachine()
    machine.start(Role.DECODE, PolicyName.FCFS, PreemptionMode.AUTO, 11, 2, 0, True)
    machine.add(length=1, family=0, priority=-100, max_tokens=6, count=1)
    machine.add_long(length=173, family=0, max_tokens=5)
    machine.crowd(lengths=[1, 1, 1], priority=-100)
    machine.fetch(family=0, start=0)
    machine.step(count=1, max_prefill=None)
    machine.teardown()


def test_the_machine_spills_and_goes_on_with_others() -> None:
    """The same for what is larger than the pool: it runs alone, those before and behind it end as well."""
    machine = SchedulerMachine()
    machine.start(Role.DECODE, PolicyName.FCFS, PreemptionMode.AUTO, 9, 30, 0, True)
    most = 0
    for length in (30, 300, 40):
        machine.add(length=length, family=0, priority=0, max_tokens=40, count=1)
    while machine.scheduler.sequences:
        machine.step(1, None)
        machine.nothing_is_lost()
        most = max(most, machine.scheduler.pool.host.num_lent)
    machine.teardown()
    assert most >= 339 // B - 9


def test_nobody_runs_beside_one_that_spilled_though_there_is_room() -> None:
    """Blocks that another pod held come free: they are for the one that runs alone, not for whoever waits."""
    machine = SchedulerMachine()
    machine.start(Role.DECODE, PolicyName.FCFS, PreemptionMode.AUTO, 9, 30, 0, True)
    scheduler = machine.scheduler
    machine.add(length=300, family=0, priority=0, max_tokens=10, count=1)
    machine.step(1, None)
    scheduler.holds["other"] = machine.holds["other"] = scheduler.pool.allocate(4)
    while not scheduler.pool.host.num_lent:
        machine.step(1, None)
    machine.add(length=20, family=1, priority=0, max_tokens=5, count=1)
    machine.release()
    assert scheduler.pool.num_available >= 4
    while "1" in scheduler.sequences:
        machine.step(1, None)
        assert [each.name for each in scheduler.running] in (["1"], [])
    machine.teardown()
