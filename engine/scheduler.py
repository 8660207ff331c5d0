"""The one scheduler: which sequence computes how many tokens in the next step, and who waits.

A sequence has `num_tokens` and `num_computed`; a step grants the difference under a token budget. A decode is a grant
of one, chunked prefill a grant of many, recompute after preemption nothing special. Who goes first is the scheduling
policy's, which ranks sequences. Knows no tensors, no threads and no clock.

Invariants: a step never exceeds its budget; where blocks run short the last in rank gives its own back, and while the
first of those that wait lacks blocks, nobody ranked after it gets any, so the first always advances; as everybody comes
to be the first (`scheduling_policy`), nobody starves. A sequence that hands off is never preempted, because it owns all
its blocks from its admission on.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass

from pagewire.core.errors import InvalidRequest
from pagewire.core.messages import MAX_PRIORITY, SequenceSpec
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.preemption import Preemption
from pagewire.engine.role_policy import RolePolicy
from pagewire.engine.scheduling_policy import FirstComeFirstServed, SchedulingPolicy
from pagewire.engine.sequence import Sequence, State
from pagewire.engine.step import Grant, Step
from pagewire.engine.step_budget import StepBudget
from pagewire.engine.step_cost import StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a step and of a sequence; tokens, sequences, ids."""

    max_num_batched_tokens: int
    max_num_seqs: int
    chunk_size: int
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}: "
                "a full batch of decodes would leave nothing for a prompt"
            )
        if self.chunk_size < 1:
            raise ValueError(f"chunk_size must be positive, is {self.chunk_size}")

    def num_blocks(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)


class Scheduler:
    """All sequences of an engine, and the order in which they advance."""

    def __init__(
        self,
        pool: BlockPool,
        limits: Limits,
        policy: RolePolicy,
        scheduling: SchedulingPolicy | None = None,
        preemption: Preemption | None = None,
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.policy = policy
        self.scheduling = scheduling or FirstComeFirstServed()
        self.preemption = preemption or Preemption()
        self.sequences: dict[str, Sequence] = {}
        self.holds: dict[str, list[int]] = {}  # blocks pinned for other pods, by the hold's id
        self.running: list[Sequence] = []  # first in rank first, like the next two
        self.joined: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.num_preemptions = 0
        self.num_swaps = 0  # of these, those whose KV was copied to host memory
        self.num_prompt_tokens = 0  # of the sequences that were admitted, and of those what was cached, and pinned
        self.num_cached_tokens = 0
        self.num_pinned_tokens = 0
        self._arrivals = 0
        self._short: Sequence | None = None  # waits for blocks that were not there

    def add(self, spec: SequenceSpec, first_block: int = 0, now_s: float = 0.0) -> None:
        """Queue a sequence that starts from its tokens; raises InvalidRequest."""
        sequence = self.admit_spec(spec, now_s)
        sequence.reported_blocks = first_block
        insort(self.waiting, sequence, key=self.rank)

    def admit_spec(self, spec: SequenceSpec, now_s: float = 0.0) -> Sequence:
        """Return a new sequence that the engine knows from now on; raises InvalidRequest."""
        self._validate(spec)
        sequence = Sequence(
            spec=spec,
            arrival=self._arrivals,
            block_size=self.limits.block_size,
            arrived_s=now_s,
            output=list(spec.output),
        )
        self._arrivals += 1
        self.sequences[spec.request_id] = sequence
        return sequence

    def enqueue_joined(self, sequence: Sequence) -> None:
        """Let a sequence that already owns its blocks wait for a place in the batch."""
        sequence.state = State.JOINED
        insort(self.joined, sequence, key=self.rank)

    def rank(self, sequence: Sequence) -> tuple[float, int]:
        """Return what sequences are ordered by, the first the least."""
        handicap_s = self.scheduling.handicap_s(sequence.spec.priority, sequence.num_left)
        return sequence.arrived_s + handicap_s, sequence.arrival

    def may_take_blocks(self, sequence: Sequence) -> bool:
        """Return whether no sequence that ranks before this one lacks blocks."""
        return self._short is None or self.rank(sequence) < self.rank(self._short)

    def hand_off(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch; its blocks stay held."""
        self.running.remove(sequence)
        sequence.state = State.HANDED_OFF

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in whatever state, and give back its blocks and its promise."""
        del self.sequences[sequence.request_id]
        for queue in (self.running, self.joined, self.waiting):
            if sequence in queue:
                queue.remove(sequence)
        self.pool.release(sequence.block_table)
        self.pool.unreserve(sequence.promised)
        sequence.block_table, sequence.promised = [], 0
        self._forget_saved(sequence)
        if sequence is self._short:
            self._short = None

    def count_hits(self, sequence: Sequence, hits: list[int]) -> None:
        """Account for the first admission of a sequence, with the cached blocks that it found."""
        self.num_prompt_tokens += sequence.num_given
        self.num_cached_tokens += len(hits) * self.limits.block_size
        self.num_pinned_tokens += self.pool.num_pinned_in(hits) * self.limits.block_size

    def tables(self) -> list[list[int]]:
        """Return the blocks that each sequence and each hold keeps."""
        return [sequence.block_table for sequence in self.sequences.values()] + list(self.holds.values())

    def num_waiting_tokens(self) -> int:
        """Return the tokens that queued and running prompts have yet to compute."""
        queued = sum(s.num_tokens - s.num_computed for s in self.waiting)
        return queued + sum(s.num_tokens - s.num_computed for s in self.running + self.joined if not s.is_decoding)

    def decodes_ahead(self) -> tuple[StepShape, int]:
        """Return the decodes that the next step begins with, and how deep in its prompt the first prefill stands."""
        ready = [each for each in self.running + self.joined if each.num_left == 1][: self.limits.max_num_seqs]
        depth = next((each.num_computed for each in self.running if each.num_left > 1), 0)
        return StepShape(decodes=len(ready), attended=sum(each.num_tokens for each in ready)), depth

    def schedule(self, max_prefill_tokens: int | None = None) -> Step | None:
        """Return the next step, None when nothing can advance.

        `max_prefill_tokens`, at least 1, bounds what the step computes beside one token for each that decodes.
        """
        budget = StepBudget(self.limits.max_num_batched_tokens, max_prefill_tokens)
        preempted_before = self.num_preemptions
        self.running.sort(key=self.rank)
        for sequence in [s for s in self.running if s.is_decoding]:
            self._grant(sequence, budget)
        for sequence in [s for s in self.running if not s.is_decoding]:
            self._grant(sequence, budget)
        # Whoever was just preempted would come straight back and be preempted again.
        self._admit(budget, with_waiting=self.num_preemptions == preempted_before)
        if not budget.grants:
            return None
        return Step(grants=tuple(self._freeze(sequence, count) for sequence, count in budget.grants.items()))

    def _admit(self, budget: StepBudget, *, with_waiting: bool) -> None:
        """Start who is first of those that wait; one that cannot have blocks holds up those that need some as well."""
        preempted_before = self.num_preemptions
        joined, waiting = deque(self.joined), deque(self.waiting if with_waiting else ())
        while (joined or waiting) and len(self.running) < self.limits.max_num_seqs and not budget.is_spent:
            queue = min((queue for queue in (joined, waiting) if queue), key=lambda queue: self.rank(queue[0]))
            sequence = queue.popleft()
            if queue is joined:
                if sequence.state is State.JOINED and budget.room(sequence) > 0:
                    self._start(sequence, self.joined, budget)
            elif budget.room(sequence) > 0 and self._take_blocks(sequence):
                self._start(sequence, self.waiting, budget)
            else:
                waiting.clear()
            if self.num_preemptions != preempted_before:
                waiting.clear()

    def _start(self, sequence: Sequence, queue: list[Sequence], budget: StepBudget) -> None:
        queue.remove(sequence)
        sequence.state = State.RUNNING
        insort(self.running, sequence, key=self.rank)
        self._grant(sequence, budget)

    def _grant(self, sequence: Sequence, budget: StepBudget) -> None:
        # A sequence of the snapshot may have been preempted for one before it meanwhile.
        count = min(sequence.num_tokens - sequence.num_computed, self.limits.chunk_size, budget.room(sequence))
        if sequence.state is State.RUNNING and count > 0 and self._grow(sequence, count, budget):
            budget.grant(sequence, count)

    def _grow(self, sequence: Sequence, count: int, budget: StepBudget) -> bool:
        """Make the block table cover `count` more tokens, preempting the last in rank; False when that was this one."""
        missing = self.limits.num_blocks(sequence.num_computed + count) - len(sequence.block_table)
        while missing > self.pool.num_available:
            group = self._group(max(self.running + self.joined, key=self.rank))
            for victim in group:
                budget.take_back(victim)
                self._preempt(victim)
            if sequence in group:
                return False
        if missing > 0:
            sequence.block_table += self.pool.allocate(missing)
        return True

    def _group(self, sequence: Sequence) -> tuple[Sequence, ...]:
        """Return the sequences that can only be preempted together: each is by itself."""
        return (sequence,)

    def _preempt(self, victim: Sequence) -> None:
        assert not self.policy.hands_off, "blocks that were announced to another pod must stay"
        (self.running if victim.state is State.RUNNING else self.joined).remove(victim)
        swaps = self._save(victim)
        self.pool.release(victim.block_table, parks=swaps)
        victim.block_table, victim.num_computed, victim.num_registered = [], 0, 0
        victim.state = State.WAITING
        insort(self.waiting, victim, key=self.rank)
        self._short = self.waiting[0]
        self.num_preemptions += 1
        self.num_swaps += swaps

    def _save(self, victim: Sequence) -> bool:
        """Leave the KV of a sequence to the host tier, where that is the cheaper way to have it again.

        Its full blocks go there as they are evicted, like everybody's; the unfilled one goes now.
        """
        own = self.pool.num_unshared(victim.block_table[: self.limits.num_blocks(victim.num_computed)])
        size = self.limits.block_size
        if not own or not self.preemption.swaps(min(victim.num_computed, own * size), own, self.pool.host.capacity):
            return False
        depth, tail_hash = victim.num_computed // size, victim.tail_hash(victim.num_computed)
        if tail_hash is None or self.pool.save_tail(
            victim.block_table[depth], tail_hash, victim.parent_of(depth), depth
        ):
            victim.num_saved = victim.num_computed
        return True

    def _forget_saved(self, sequence: Sequence) -> None:
        tail_hash = sequence.tail_hash(sequence.num_saved)
        if tail_hash is not None:
            self.pool.forget_tail(tail_hash)
        sequence.num_saved = 0

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Give a waiting sequence what the cache holds of it and fresh blocks for the rest; False when short."""
        hits = self.pool.match(sequence.hit_chain())
        fresh = self.limits.num_blocks(sequence.num_tokens) - len(hits)
        # One block to spare for each that runs, or its next block would preempt this one at once.
        spare = 0 if self.policy.hands_off else len(self.running) + len(self.joined)
        if self.pool.num_unreferenced(hits) + fresh + spare > self.pool.num_available:
            self._short = sequence
            return False
        table = self._claim(sequence)  # and what the host tier has besides, in some of the fresh ones
        sequence.block_table = table + self.pool.allocate(len(hits) + fresh - len(table))
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.num_computed
            self.count_hits(sequence, table)
        if sequence is self._short:
            self._short = None
        return True

    def _claim(self, sequence: Sequence) -> list[int]:
        """Hold what is cached of a sequence, and its unfilled block where that was saved; return its block table."""
        size, tail_hash = self.limits.block_size, sequence.tail_hash(sequence.num_saved)
        if tail_hash is not None:
            self.pool.host.touch([tail_hash])  # bringing up what comes before it is not to cost it
        table = self.pool.claim(sequence.hit_chain())
        sequence.num_computed, sequence.num_registered = len(table) * size, len(table)
        if tail_hash is not None and len(table) == sequence.num_saved // size:
            tail = self.pool.recall_tail(tail_hash)
            if tail is not None:
                table.append(tail)
                sequence.num_computed = sequence.num_saved
        self._forget_saved(sequence)
        return table

    def _freeze(self, sequence: Sequence, count: int) -> Grant:
        start, stop = sequence.num_computed, sequence.num_computed + count
        draw = sequence.draw() if stop == sequence.num_tokens else None
        return Grant(
            request_id=sequence.request_id,
            tokens=sequence.tokens(start, stop),
            start=start,
            block_ids=tuple(sequence.block_table[: self.limits.num_blocks(stop)]),
            draw=draw,
            seal=draw is not None and self.policy.hands_off,
            scoring=sequence.scoring(start, stop),
        )

    def _validate(self, spec: SequenceSpec) -> None:
        spec.sampling.validate(self.limits.vocab_size)
        limits, length = self.limits, len(spec.tokens) + len(spec.output)
        if spec.request_id in self.sequences or spec.request_id in self.holds:
            raise InvalidRequest(f"request {spec.request_id} is here already", field="request_id")
        if not spec.tokens:
            raise InvalidRequest("the prompt has no tokens; it needs at least 1", field="prompt")
        if length >= limits.max_model_len:
            raise InvalidRequest(
                f"the prompt has {length} tokens; at most {limits.max_model_len - 1} leave room for an answer",
                field="prompt",
            )
        if self.limits.num_blocks(length + 1) > self.pool.num_blocks:
            raise InvalidRequest(
                f"the prompt has {length} tokens; the KV pool holds {self.pool.num_blocks * limits.block_size}",
                field="prompt",
            )
        if not 0 <= min(spec.tokens) <= max(spec.tokens) < limits.vocab_size:
            raise InvalidRequest(f"token ids must be between 0 and {limits.vocab_size - 1}", field="prompt")
        if not -MAX_PRIORITY <= spec.priority <= MAX_PRIORITY:
            raise InvalidRequest(
                f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, is {spec.priority}", field="priority"
            )
        if len(spec.output) >= spec.sampling.max_tokens:
            raise InvalidRequest(
                f"max_tokens {spec.sampling.max_tokens} is used up by {len(spec.output)} tokens of output",
                field="max_tokens",
            )
