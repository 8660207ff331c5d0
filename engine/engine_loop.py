"""The engine's loop: commands in from any thread, one step after another from one thread, events out.

Knows no process and no socket. The lock is held around scheduling and bookkeeping, never while a step computes, so a
command is answered at once. Invariants: the blocks of a sequence in the running step are freed only after it; every
sequence that was accepted gives its blocks back exactly once: when it ends, by a release where it was handed off, or by
an answered abort.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pagewire.core.clock import Clock
from pagewire.core.engine_messages import (
    Add,
    Bind,
    Bound,
    Freed,
    Held,
    Hold,
    Join,
    Keep,
    Reserve,
    Reserved,
    SequenceEnd,
    StepDone,
    Stop,
)
from pagewire.core.errors import EngineFailed, ErrorInfo, PagewireError
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.engine import hold, progress, reservation, role_terms
from pagewire.engine.brownout import Brownout, pressure_of
from pagewire.engine.flight import Flight, launch
from pagewire.engine.follow import follow
from pagewire.engine.group import Group
from pagewire.engine.moves import Move, Way
from pagewire.engine.news import News
from pagewire.engine.rehearsal import Rehearsal
from pagewire.engine.role_terms import RoleTerms
from pagewire.engine.runner import Launcher, Runner, compute
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import State
from pagewire.engine.step import AHEAD, Computed, Step
from pagewire.engine.step_cost import StepShape
from pagewire.engine.step_pace import StepPace

log = logging.getLogger(__name__)

TICK_S = 0.5  # how often an idle engine in brownout looks whether it is over


class Mover(Protocol):
    """What copies blocks, within the pool and between it and the host tier."""

    def move(self, moves: Sequence[Move]) -> None:
        """Make the copies, in their order."""
        ...


class EngineLoop:
    """One engine's sequences; `step` is for one thread, everything else for any.

    Where there is a `launcher`, a step of decodes is begun before the one before it is over, whatever that draws: see
    `follow`. Groups of layers are told of while a step computes where they are of `least_grouped_blocks` or more, or
    the step should take `long_step_s` or more. `rehearses`: whether memory grows cold while nothing is computed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock,
        mover: Mover | None = None,
        pace: StepPace | None = None,
        brownout: Brownout | None = None,
        roles: Mapping[Role, RoleTerms] | None = None,
        least_grouped_blocks: int = 0,
        long_step_s: float = math.inf,
        launcher: Launcher | None = None,
        rehearses: bool = True,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._mover = mover  # needed where blocks are copied at all
        self._pace = pace  # where steps are to end in time
        self._brownout = brownout  # where service may be reduced under pressure
        self._roles = roles or {}  # those that can be had
        self._least_grouped_blocks = least_grouped_blocks
        self._long_step_s = long_step_s
        self._launcher = launcher
        self._ahead: Flight | None = None  # behind the step that computes
        self._ended_s = -math.inf  # the last step
        self._rehearsal = Rehearsal()
        self._rehearses = rehearses
        self.on_group: Callable[[StepDone], None] = _ignore  # hears of layer groups while a step computes
        self._changed = threading.Condition()  # its lock guards all below and the scheduler
        self._work = False
        self._closed = False
        self._meter = scheduler.preemption.meter
        self._in_step: frozenset[str] = frozenset()
        self._aborted: set[str] = set()  # while in the running step
        self._stopped: list[Stop] = []  # likewise
        self._freed: list[Freed] = []
        self._pings: list[int] = []
        self._due: list[Role] = []  # roles to change to before the next step
        self._became: list[Role] = []
        self._news = News(scheduler, runner, brownout)

    # ---------------------------------------------------------------------------------------------------- commands

    def add(self, command: Add) -> None:
        """Run a sequence from its tokens; a refusal comes as its `SequenceEnd`."""
        with self._changed:
            try:
                self._scheduler.add(command.spec, command.first_block, self._clock.now())
            except PagewireError as error:
                self._refuse(command.spec.request_id, error)
            self._wake()

    def refuse(self, request_id: str, error: PagewireError) -> None:
        """Have a sequence that was never added end with `error`."""
        with self._changed:
            self._refuse(request_id, error)
            self._wake()

    def reserve(self, command: Reserve) -> Reserved:
        """Pin and promise the blocks of a prompt, or say why not."""
        request_id = command.spec.request_id
        with self._changed:
            try:
                now_s = self._clock.now()
                hit_blocks = reservation.reserve(self._scheduler, command.spec, command.first_block, now_s)
            except PagewireError as error:
                return Reserved(request_id=request_id, error=ErrorInfo.of(error))
            self._wake()
            in_parts = reservation.comes_in_parts(self._scheduler.sequences[request_id])
            return Reserved(request_id=request_id, hit_blocks=hit_blocks, in_parts=in_parts)

    def bind(self, command: Bind) -> Bound:
        """Turn promised blocks into ids."""
        with self._changed:
            block_ids = reservation.bind(self._scheduler, command.request_id, command.num_blocks)
            self._wake()  # binding may have evicted
            return Bound(request_id=command.request_id, block_ids=block_ids)

    def keep(self, command: Keep) -> None:
        """Let the cache know what landed for a reserved sequence; one that is gone is ignored."""
        with self._changed:
            sequence = reservation.keep(self._scheduler, command)
            if sequence is not None:
                progress.register_full_blocks(self._scheduler, sequence)
            self._wake()

    def hold(self, command: Hold) -> Held:
        """Pin cached blocks, for another pod or for good."""
        with self._changed:
            if command.for_good:
                block_ids = hold.pin(self._scheduler, command.hashes)
            else:
                block_ids = hold.hold(self._scheduler, command.request_id, command.hashes)
            self._wake()
            return Held(request_id=command.request_id, block_ids=block_ids)

    def join(self, command: Join) -> None:
        """Let a reserved sequence run; one that is gone is ignored, its abort was answered."""
        with self._changed:
            try:
                sequence = reservation.join(self._scheduler, command)
            except PagewireError as error:
                self._refuse(command.request_id, error)
            else:
                if sequence is not None:
                    progress.register_full_blocks(self._scheduler, sequence)
            self._wake()

    def abort(self, request_id: str) -> Freed | None:
        """End a request in any state, or a hold; None when a step computes it: `take_freed` answers after it."""
        with self._changed:
            if request_id in self._in_step:
                self._aborted.add(request_id)
                return None
            if not self._scheduler.remove_request(request_id):
                hold.release(self._scheduler, request_id)
            self._wake()
            return Freed(request_id=request_id)

    def stop(self, command: Stop) -> None:
        """End one sequence of a request; one that has ended is ignored."""
        with self._changed:
            if command.request_id in self._in_step:
                self._stopped.append(command)
            else:
                self._stop(command)
                self._wake()

    def release(self, request_id: str) -> None:
        """Give the blocks of a handed-off sequence or of a hold back; anything else is left alone."""
        with self._changed:
            sequence = self._scheduler.sequences.get(request_id)
            if sequence is not None and sequence.state is State.HANDED_OFF:
                self._scheduler.remove(sequence)
            hold.release(self._scheduler, request_id)
            self._wake()

    def become(self, role: Role) -> None:
        """Go on with another role before the next step, and tell all that is cached; raises KeyError.

        `take_became` returns the role once it is so.
        """
        with self._changed:
            self._roles[role]  # refused here, where the order comes from, and not by the step
            self._due.append(role)
            self._wake()

    def ping(self, nonce: int) -> None:
        """Have `take_pings` return `nonce` once the running step is over."""
        with self._changed:
            self._pings.append(nonce)
            self._wake()

    def close(self) -> None:
        """Make `wait_for_work` return False from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ----------------------------------------------------------------------------------------------------- the loop

    def wait_for_work(self, timeout_s: float | None = None) -> bool:
        """Sleep until there may be something to do, or rehearse for what is expected; False once closed."""
        limits_s = [] if timeout_s is None else [timeout_s]
        if self._brownout is not None and self._brownout.is_active:
            limits_s.append(TICK_S)  # the way back is a matter of time alone
        with self._changed:
            sequences = self._scheduler.sequences.values()
            expects = self._rehearses and any(sequence.state is State.RESERVED for sequence in sequences)
            due_in_s = self._rehearsal.due_in_s(self._clock.now(), expects=expects)
            if due_in_s is not None:
                limits_s.append(due_in_s)
            self._changed.wait_for(lambda: self._work or self._closed, min(limits_s, default=None))
            if self._work or self._closed or not expects:
                return not self._closed
        started_s = self._clock.now()
        if self._rehearsal.due_in_s(started_s, expects=True) == 0:
            self._runner.rehearse()
            self._rehearsal.rehearsed(started_s, self._clock.now())
        return True

    def step(self) -> StepDone | None:
        """Schedule, run, commit; None when nothing advanced and not even the load changed since the last call."""
        flight = self._depart()
        if flight is None:
            return self.news()
        self._ahead = self._follow(flight)
        computed, errors = self._outcome(flight)
        ended_s = self._clock.now()
        elapsed_s, self._ended_s = ended_s - max(flight.begun_s, self._ended_s), ended_s
        self._rehearsal.stepped(ended_s)
        return self.commit(flight.step, computed, errors, elapsed_s)

    def begin(self) -> Step | None:
        """Return what is to be computed now, None when nothing can advance; `commit` is to follow.

        For whoever computes steps in a time of its own, as `step` does in the machine's.
        """
        with self._changed:
            self._work = False
            self._change_role()
            self._news.prefill_budget = most = self._most_prefill()
            if self._brownout is not None:  # not where a step is begun ahead: copies wait for the one that computes
                self._brownout.relieve(self._scheduler.pool)
            num_preempted = self._scheduler.num_preemptions
            step = self._scheduler.schedule(most)
            self._move()
            if step is None:
                self._work = self._scheduler.num_preemptions > num_preempted  # who gave way left room for who waits
                if not self._work and (stuck := self._scheduler.stuck) is not None:
                    self._give_up(stuck)
                return None
            self._in_step = self._requests_of(step)
            self._news.begins(step)
            return step

    def settle(self) -> None:
        """Wait for a step that was begun ahead, of which nobody is to hear: no more steps are to come."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.outcome()
        with self._changed:
            self._scheduler.land()

    def commit(
        self, step: Step, computed: dict[str, Computed], errors: dict[str, PagewireError], elapsed_s: float
    ) -> StepDone | None:
        """Account for the step that was begun, which took `elapsed_s`; return what came of it."""
        with self._changed:
            self._commit(step, computed, errors)
            if not errors:
                self._measure(step, elapsed_s)
            self._in_step = self._ahead.requests if self._ahead is not None else frozenset()
            self._work = True  # whatever follows from this step
            return self._news.take(elapsed_s)

    def news(self) -> StepDone | None:
        """Return what has changed since anything was last told, without a step; None when nothing has."""
        with self._changed:
            return self._news.take()

    def _group_done(self, step: Step, group: int) -> None:
        with self._changed:
            chunks = tuple(
                progress.group_done(self._scheduler.sequences[grant.request_id], grant, group)
                for grant in step.grants
                if grant.seal and grant.request_id not in self._aborted
            )
            # The same in all groups of a step: what is measured changes behind it.
            is_long = step.num_tokens * self._meter.prefill_s_per_token >= self._long_step_s
        if chunks and (is_long or sum(len(chunk.block_ids) for chunk in chunks) >= self._least_grouped_blocks):
            self.on_group(StepDone(chunks=chunks))

    def take_freed(self) -> tuple[Freed, ...]:
        """Return the answers to aborts that had to wait for a step."""
        with self._changed:
            freed, self._freed = tuple(self._freed), []
            return freed

    def take_pings(self) -> tuple[int, ...]:
        """Return the pings that came up to now."""
        with self._changed:
            pings, self._pings = tuple(self._pings), []
            return pings

    def take_became(self) -> tuple[Role, ...]:
        """Return the roles that it changed to; what it cached then was told before."""
        with self._changed:
            became, self._became = tuple(self._became), []
            return became

    def park_cache(self) -> int:
        """Move all that is cached to host memory, and return how many blocks lie there; nothing may run any more.

        What sequences and holds still have, since nobody is left to end them, is cached as far as it is computed.
        """
        with self._changed:
            pool = self._scheduler.pool
            for request_id in tuple(self._scheduler.groups):
                self._scheduler.remove_request(request_id)
            for request_id in tuple(self._scheduler.holds):
                hold.release(self._scheduler, request_id)
            pool.park_all()
            self._move()
            return pool.host.num_parked

    def load(self) -> Load:
        """Return what the engine holds and has to do, counted now."""
        with self._changed:
            return self._news.load()

    def check(self) -> None:
        """Raise AssertionError where the pool's bookkeeping is broken, or blocks are held for nobody."""
        with self._changed:
            pool = self._scheduler.pool
            pool.check()
            num_orphaned = pool.num_orphaned(self._scheduler.tables())  # at each block: totals may agree by chance
            assert num_orphaned == 0, f"{num_orphaned} blocks are held for nobody"

    # ------------------------------------------------------------------------------- steps in flight, without the lock

    def _depart(self) -> Flight | None:
        """Return the step that is to be waited for now, begun long since or just now; None when nothing advances."""
        if self._ahead is not None:
            with self._changed:
                self._news.begins(self._ahead.step)
            return self._ahead
        step = self.begin()
        if step is None:
            return None
        begun_s = self._clock.now()
        return Flight(step=step, pending=launch(self._launcher, step), begun_s=begun_s, requests=self._in_step)

    def _follow(self, flight: Flight) -> Flight | None:
        """Launch the step behind one that computes, where there can be one."""
        if flight.pending is None:
            return None
        with self._changed:
            if self._due or self._aborted or self._stopped:
                return None
            self._news.prefill_budget = self._most_prefill()
            step = follow(self._scheduler, flight.step)
            assert not self._scheduler.pool.take_moves(), "who moves blocks waits for the step that computes"
            if step is None:
                return None
            requests = self._requests_of(step)
        begun_s, pending = self._clock.now(), launch(self._launcher, step)
        return None if pending is None else Flight(step=step, pending=pending, begun_s=begun_s, requests=requests)

    def _outcome(self, flight: Flight) -> tuple[dict[str, Computed], dict[str, PagewireError]]:
        """Wait for a step, or run it; what failed once it was launched is run again."""
        computed = flight.outcome()
        if computed is not None:
            return computed, {}
        ahead, self._ahead = self._ahead, None
        if ahead is not None:  # of tokens that are to be drawn anew: what it writes is written again
            ahead.outcome()
        with self._changed:
            step = self._known(flight.step)
        return compute(self._runner, step, self._group_done) if step.grants else ({}, {})

    # ----------------------------------------------------------------------------------- inside, with the lock held

    def _change_role(self) -> None:
        for role in self._due:
            role_terms.change(self._scheduler, self._roles[role], self._pace, self._brownout)
        if self._due:
            self._news.announce()
        self._became += self._due
        self._due.clear()

    def _move(self) -> None:
        # Before the lock is let go: whoever learns an id finds what belongs there, and may write to it.
        moves = self._scheduler.pool.take_moves()
        for way, group in itertools.groupby(moves, key=lambda move: move.way):
            assert self._mover is not None, "a pool whose blocks are copied needs somebody to do it"
            same_way, started_s = tuple(group), self._clock.now()
            self._mover.move(same_way)
            if way is not Way.WITHIN:
                elapsed_s = self._clock.now() - started_s
                self._meter.observe_copies(len(same_way), elapsed_s, is_out=way is Way.OUT)

    def _wake(self) -> None:
        self._move()
        self._work = True
        self._changed.notify_all()

    def _refuse(self, request_id: str, error: PagewireError) -> None:
        end = SequenceEnd(request_id=request_id, cached_tokens=0, computed_tokens=0, error=ErrorInfo.of(error))
        self._news.ended(end)

    def _requests_of(self, step: Step) -> frozenset[str]:
        sequences = self._scheduler.sequences
        return frozenset(sequences[grant.request_id].request_id for grant in step.grants)

    def _known(self, step: Step) -> Step:
        """Return a step whose tokens were ahead with what they came to be, without those that have ended since."""
        if step.grants[0].tokens[0] != AHEAD:
            return step
        pairs = ((grant, self._scheduler.sequences.get(grant.request_id)) for grant in step.grants)
        return Step(
            grants=tuple(
                replace(grant, tokens=sequence.tokens(grant.start, grant.start + 1))
                for grant, sequence in pairs
                if sequence is not None and sequence.num_computed == grant.start
            )
        )

    def _commit(self, step: Step, computed: dict[str, Computed], errors: dict[str, PagewireError]) -> None:
        ahead = self._ahead
        landed = self._scheduler.land(ahead.names if ahead is not None else frozenset())
        aborted = self._aborted - (ahead.requests if ahead is not None else frozenset())  # the others' turn is then
        for request_id in sorted(aborted):
            self._scheduler.remove_request(request_id)
            self._freed.append(Freed(request_id=request_id))
        self._aborted -= aborted
        for grant in step.grants:
            sequence = self._scheduler.sequences.get(grant.request_id)
            if sequence is None or grant.request_id in landed:  # ended meanwhile, or with another of its request
                continue
            if grant.request_id in errors:
                self._poison(sequence.group, errors[grant.request_id])
                continue
            before = sequence.group.computed_tokens
            done = progress.commit(self._scheduler, sequence, grant, computed)
            self._news.progressed(sequence, grant, done, sequence.group.computed_tokens - before)
        # Only now: before the fork who is stopped hands its place to another, to whom what was drawn for it would go.
        stopped, self._stopped = self._stopped, []
        for stop in stopped:
            if ahead is not None and stop.request_id in ahead.requests:
                self._stopped.append(stop)
            else:
                self._stop(stop)

    def _poison(self, group: Group, error: PagewireError) -> None:
        self._news.ended(progress.end_of(group, ErrorInfo.of(error)))
        if self._scheduler.policy.hands_off:
            # Its earlier chunks may be on their way: they are held until whoever ships says that nobody reads them.
            for sequence in group.members:
                self._scheduler.hand_off(sequence)
        else:
            self._scheduler.remove_request(group.request_id)

    def _give_up(self, group: Group) -> None:
        # Let in with too little room after all: without this nobody behind it would ever have any.
        error = EngineFailed(f"{len(group.members)} beams wait for one another: the KV pool has no room for all")
        log.error("request %s is given up: %s", group.request_id, error.message)
        self._poison(group, error)
        self._work = True

    def _stop(self, command: Stop) -> None:
        group = self._scheduler.groups.get(command.request_id)
        sequence = group.stop(command.index) if group is not None else None
        if group is None or sequence is None:
            return
        self._scheduler.remove(sequence)
        if not group.members:
            self._news.ended(progress.end_of(group))

    def _measure(self, step: Step, elapsed_s: float) -> None:
        shape = StepShape.of(step)
        self._meter.observe(shape.prefill_tokens, shape.decodes, elapsed_s, shape.drafted)
        if self._pace is not None:
            self._pace.observe(shape, elapsed_s)

    def _most_prefill(self) -> int:
        """Return how many prompt tokens the next step may have."""
        scheduler = self._scheduler
        most = scheduler.limits.max_num_batched_tokens
        if self._brownout is not None:
            pressure = pressure_of(scheduler.pool, scheduler.num_waiting_tokens() * self._meter.prefill_s_per_token)
            self._brownout.observe(pressure, self._clock.now())
            most = self._brownout.most_prefill(most)
        return most if self._pace is None else min(most, self._pace.most_prefill(*scheduler.decodes_ahead()))


def _ignore(_step: StepDone) -> None:
    return
