"""A pod's engine in virtual time: the product's loop and scheduler, with steps that take what the cost model says.

Steps are begun and committed by `EngineLoop`; those in which everybody decodes go the fast way of `decode_run`, unless
`is_fast` is off, and with `may_coast` several of them are one event: whoever comes meanwhile finds them accounted for
as far as they are over, and the run ends with the step that computes. Nothing is computed: each draw of a request is
the token that its answer is made of.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Protocol

from pagewire.core.block_hash import INDEX_STRIDE
from pagewire.core.engine_messages import StepDone
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.role_policy import policy_of
from pagewire.engine.runner import OnGroup
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.scheduling_policy import policy_named
from pagewire.engine.sequence import Sequence
from pagewire.engine.step import Computed, Step
from pagewire.engine.step_cost import StepShape as PaceShape
from pagewire.engine.step_pace import StepPace
from pagewire.slo.costs.cost_model import StepKind, StepLaw, StepShape
from pagewire.slo.simulation import decode_run
from pagewire.slo.simulation.agenda import Agenda
from pagewire.slo.simulation.composition import Composition
from pagewire.slo.simulation.course import Course
from pagewire.slo.simulation.machine import Machine


class Owner(Protocol):
    """The pod that an engine is of."""

    @property
    def waits_for_blocks(self) -> bool:
        """True while some request asks for blocks again after each step."""
        ...

    def on_step(self, step: StepDone) -> None:
        """Take what a step of the loop came to."""
        ...

    def on_tokens(self, request_ids: Iterable[str], at_s: list[float]) -> None:
        """Take a token for each of several requests at each of some moments, which may be over."""
        ...

    def on_end(self, request_id: str, cached_tokens: int) -> None:
        """Take the end of a request, behind its last token; `cached_tokens` of its prompt were found here."""
        ...

    def on_cached(self) -> None:
        """A step that went the fast way is over: the pool may have news of its cache."""
        ...


class SimEngine:
    """One engine; commands go to its `loop`, then `kick`. `answers` has the token of each request by its id."""

    def __init__(
        self,
        agenda: Agenda,
        role: Role,
        composition: Composition,
        law: StepLaw,
        owner: Owner,
        answers: Mapping[str, int],
        *,
        machine: Machine,
        noise: float,
        seed: str,
        is_fast: bool,
        may_coast: bool,
    ) -> None:
        self.pool = BlockPool(composition.kv_blocks, news_stride=INDEX_STRIDE)  # nobody hears of the others
        self.scheduler = Scheduler(
            self.pool, composition.limits(), policy_of(role), policy_named(composition.scheduling)
        )
        self._pace: StepPace | None = None
        if composition.step_target_s:
            least, most = composition.least_prefill(role), composition.max_num_batched_tokens
            self._pace = StepPace(composition.step_target_s, least=least, most=most)
        self.loop = EngineLoop(self.scheduler, _Nothing(), agenda, pace=self._pace)
        self.busy_s = 0.0
        self.num_steps = 0
        self._agenda = agenda
        self._law = law
        self._machine = machine
        self._owner = owner
        self._answers = answers
        self._noise = noise
        self._random = random.Random(seed)
        self._factors: list[float] = []  # drawn and not used yet, the next one last
        self._is_fast = is_fast
        self._may_coast = may_coast
        self._course: Course | None = None  # what computes
        self._step: Step | None = None  # what it is of; None while it is a run of plain steps
        self._batch: list[Sequence] = []  # of such a run
        self._run_factors: list[float] = []  # its chance

    def load(self) -> Load:
        """Return what the engine holds and has to do, counted now."""
        self.catch_up()
        return self.loop.load()

    def prefill_load(self) -> Load:
        """Return as much of it as predictions of a prompt's time look at."""
        self.catch_up()
        scheduler = self.scheduler
        return Load(
            num_running=len(scheduler.running),
            waiting_tokens=scheduler.num_waiting_tokens(),
            prefill_s_per_token=scheduler.preemption.meter.prefill_s_per_token,
        )

    def kick(self) -> None:
        """There may be something to do."""
        if self._course is not None:
            self.catch_up()
            self._cut_short()
            return
        batch = decode_run.begin(self.scheduler) if self._is_fast else None
        if batch is not None:
            self._coast(batch)
            return
        step = self.loop.begin()
        if step is not None:
            self._take(step)
        elif (news := self.loop.news()) is not None:
            self._owner.on_step(news)

    def change_pace(self, slowdown: float) -> None:
        """What computes takes so many times its work from now on: the machine has other company."""
        if self._course is not None:
            self._course.change(slowdown, self._agenda.now())
            self._await_end(self._course)

    def _take(self, step: Step) -> None:
        shape = StepShape.of(step)
        self._step = step
        self._compute([self._law.seconds(shape) * self._next_factor()], shape.kind)

    def _compute(self, works_s: list[float], kind: StepKind) -> None:
        self._course = Course(self._agenda.now(), works_s, self._machine.begins(self, kind))
        self._await_end(self._course)

    def _await_end(self, course: Course) -> None:
        self._agenda.at(course.ends_s[-1], self._over, course)

    def _over(self, course: Course) -> None:
        if course is not self._course or course.ends_s[-1] != self._agenda.now():
            return  # its end was moved
        if self._step is None:
            self._decoded(course)
        else:
            self._computed(course, self._step)
        if self._course is None:
            self._machine.rests(self)

    def _next_factor(self) -> float:
        if not self._noise:
            return 1.0
        if self._factors:
            return self._factors.pop()
        return self._random.lognormvariate(-(self._noise**2) / 2, self._noise)  # 1 in the mean

    def _computed(self, course: Course, step: Step) -> None:
        self._course = self._step = None
        answers, sequences = self._answers, self.scheduler.sequences
        computed = {
            grant.request_id: Computed(token=answers[sequences[grant.request_id].request_id])
            for grant in step.grants
            if grant.draw is not None
        }
        (elapsed_s,) = course.took_s(0, 1)
        self.num_steps += 1
        self.busy_s += elapsed_s
        news = self.loop.commit(step, computed, {}, elapsed_s)
        if news is not None:
            self._owner.on_step(news)
        self.kick()

    # ------------------------------------------------------------------------------------------------- the fast way

    def _coast(self, batch: list[Sequence]) -> None:
        """Begin a run of plain steps; the next ones of it have the same sequences, and need no block."""
        pairs = sum(each.num_computed for each in batch) + len(batch)
        may_coast = self._may_coast and not self._owner.waits_for_blocks
        works_s, self._run_factors = [], []
        for _ in range(decode_run.most_steps(self.scheduler, batch) if may_coast else 1):
            self._run_factors.append(self._next_factor())
            works_s.append(self._law.decode_seconds(len(batch), pairs) * self._run_factors[-1])
            pairs += len(batch)
        self._batch = batch
        self._compute(works_s, StepKind.DECODE)

    def catch_up(self) -> None:
        """Account for the steps of the run that are over by now, but for its last: somebody looks."""
        course = self._course
        if course is None or self._step is not None:
            return
        done = min(course.num_over(self._agenda.now()), len(course.ends_s) - 1)
        if done > course.num_done:
            decode_run.advance(self._batch, done - course.num_done)
            self._account(course, done)

    def _cut_short(self) -> None:
        """Let the run end with the step that computes now: something has changed."""
        course = self._course
        if course is None or len(course.ends_s) - course.num_done <= 1:
            return
        course.cut_short()
        # What chance said of the steps that are not computed, it says of those in their place.
        self._factors += reversed(self._run_factors[len(course.ends_s) :])
        self._await_end(course)

    def _decoded(self, course: Course) -> None:
        self.catch_up()
        self._course = None
        ended = decode_run.end(self.scheduler, self._batch)
        self._account(course, len(course.ends_s))
        for sequence in ended:
            self._owner.on_end(sequence.request_id, sequence.group.cached_tokens or 0)
        self._owner.on_cached()
        self.kick()

    def _account(self, course: Course, done: int) -> None:
        """Tell of the steps of a run up to `done`, whose sequences have advanced by them."""
        batch, first = self._batch, course.num_done
        times_s, steps_s = course.ends_s[first:done], course.took_s(first, done)
        self.num_steps += done - first
        self.busy_s += sum(steps_s)
        meter = self.scheduler.preemption.meter
        for step_s in steps_s:
            meter.observe(0, len(batch), step_s)
        if self._pace is not None:
            attended = sum(each.num_computed for each in batch) - len(batch) * (done - first)
            for step_s in steps_s:
                attended += len(batch)
                self._pace.observe(PaceShape(decodes=len(batch), attended=attended), step_s)
        course.num_done = done
        self._owner.on_tokens([sequence.spec.request_id for sequence in batch], times_s)


class _Nothing:
    """In place of a model: what a step takes and samples is said elsewhere."""

    num_recaptures = 0

    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        """Never asked, as steps are begun and committed apart; raises AssertionError where somebody does."""
        raise AssertionError("a simulated step is not computed")

    def rehearse(self) -> None:
        """Compute nothing."""
