"""What came about in an engine and was not told yet, and its load: what it holds, has to do, and ever did.

Knows nothing of threads and of who listens; the loop says what happens, under its lock. Invariants: everything is told
once, in the order in which it happened; what the cache took in or lost is told with the step that brought it about.
"""

from __future__ import annotations

from pagewire.core.engine_messages import ChunkDone, PromptChunk, SequenceEnd, StepDone
from pagewire.core.load import BrownoutLevel, Load
from pagewire.core.token_record import TokenRecord
from pagewire.engine.brownout import Brownout
from pagewire.engine.progress import Progress
from pagewire.engine.runner import Runner
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence
from pagewire.engine.step import Grant, Step


class News:
    """Of one engine. `prefill_budget` is how many prompt tokens its last step might have."""

    def __init__(self, scheduler: Scheduler, runner: Runner, brownout: Brownout | None) -> None:
        self.prefill_budget = scheduler.limits.max_num_batched_tokens
        self._scheduler = scheduler
        self._runner = runner
        self._brownout = brownout
        self._announces = False  # all that is cached, with the next word
        self._records: list[TokenRecord] = []
        self._chunks: list[ChunkDone] = []
        self._ends: list[SequenceEnd] = []
        self._prompts: list[PromptChunk] = []
        self._computed = self._output = 0
        self._step_tokens = 0  # of the step that was computed last
        self._block_steps = self._block_steps_shared = self._token_steps = 0
        self._told = self.load()  # the load that the outside knows

    def announce(self) -> None:
        """Tell all that is cached with the next word."""
        self._announces = True

    def begins(self, step: Step) -> None:
        """Count what is held while a step computes."""
        self._block_steps += self._scheduler.pool.num_claims
        self._block_steps_shared += self._scheduler.pool.num_shared
        computed = sum(len(grant.tokens) for grant in step.grants)
        self._token_steps += self._scheduler.num_held_tokens() + computed

    def ended(self, end: SequenceEnd) -> None:
        """Tell that a request has ended."""
        self._ends.append(end)

    def progressed(self, sequence: Sequence, grant: Grant, done: Progress, num_computed: int) -> None:
        """Tell what came of a grant, of which `num_computed` tokens were the prompt's."""
        self._computed += num_computed
        if num_computed and not self._scheduler.policy.hands_off:
            self._prompts.append(PromptChunk(request_id=sequence.request_id, num_tokens=num_computed))
        for record in done.records:
            self._records.append(record)
            self._output += len(record.tokens)
        num_wrong = 1 + len(grant.checks) - len(done.records[0].tokens) if grant.checks else 0
        self._step_tokens += num_computed + grant.num_draws - num_wrong
        if done.chunk is not None:
            self._chunks.append(done.chunk)
        if done.end is not None:
            self._ends.append(done.end)

    def take(self, elapsed_s: float = 0.0) -> StepDone | None:
        """Return what is new, of a step that took `elapsed_s` or of none; None when not even the load has changed."""
        scheduler, pool = self._scheduler, self._scheduler.pool
        stored, evicted = pool.drain_events()
        records, self._records = tuple(self._records), []
        chunks, self._chunks = tuple(self._chunks), []
        ends, self._ends = tuple(self._ends), []
        step_tokens, self._step_tokens = self._step_tokens, 0
        prompts, self._prompts = tuple(self._prompts), []
        preempted, scheduler.preempted = tuple(scheduler.preempted), []
        load = self.load()
        if load == self._told and not (records or chunks or ends or stored or evicted or self._announces):
            return None
        if self._announces:
            stored, self._announces = pool.cached_chain(), False
        self._told = load
        return StepDone(
            records=records,
            chunks=chunks,
            ends=ends,
            stored=stored,
            evicted=evicted,
            load=load,
            elapsed_s=elapsed_s,
            prompts=prompts,
            preempted=preempted,
            num_tokens=step_tokens,
            lives=pool.drain_lives(),
        )

    def load(self) -> Load:
        """Return what the engine holds and has to do, counted now."""
        scheduler, pool, meter = self._scheduler, self._scheduler.pool, self._scheduler.preemption.meter
        speculation = scheduler.speculation
        return Load(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting) + len(scheduler.joined),
            waiting_tokens=scheduler.num_waiting_tokens(),
            blocks_total=pool.num_blocks,
            blocks_free=pool.num_free,
            blocks_cached=pool.num_cached,
            blocks_held=pool.num_held,
            blocks_pinned=pool.num_pinned,
            blocks_reserved=pool.num_reserved,
            blocks_host=pool.host.num_parked + pool.host.num_lent,
            blocks_shared=pool.num_shared,
            blocks_evicted=pool.cache.num_evicted,
            blocks_evicted_over_quota=pool.cache.num_evicted_over,
            tenants_over_quota=pool.cache.num_over,
            block_steps=self._block_steps,
            block_steps_shared=self._block_steps_shared,
            token_steps=self._token_steps,
            blocks_orphaned=scheduler.num_orphaned(),
            blocks_allocated=pool.num_allocated,
            blocks_freed=pool.num_freed,
            graph_recaptures=self._runner.num_recaptures,
            prompt_tokens_computed=self._computed,
            prompt_tokens=scheduler.num_prompt_tokens,
            prompt_tokens_cached=scheduler.num_cached_tokens,
            prompt_tokens_pinned=scheduler.num_pinned_tokens,
            output_tokens=self._output,
            preemptions=scheduler.num_preemptions,
            preemptions_swapped=scheduler.num_swaps,
            copy_out_s_per_block=meter.copy_out_s_per_block,
            copy_in_s_per_block=meter.copy_in_s_per_block,
            prefill_budget=self.prefill_budget,
            brownout=self._brownout.level if self._brownout is not None else BrownoutLevel.NORMAL,
            prefill_s_per_token=meter.prefill_s_per_token,
            step_s=meter.step_s,
            draft_tokens=0 if speculation is None else speculation.num_drafted,
            draft_tokens_accepted=0 if speculation is None else speculation.num_accepted,
            step_sequences=meter.step_sequences,
            step_s_per_sequence=meter.step_s_per_sequence,
        )
