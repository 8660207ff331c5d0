"""The one scheduler: which sequence computes how many tokens in the next step, and who waits.

A sequence has `num_tokens` and `num_computed`; a step grants the difference under a token budget. A decode is a grant
of one, chunked prefill a grant of many, recompute after preemption nothing special. Knows no tensors, no threads and
no time. Invariants: a step never exceeds its budget; older sequences go first, and where blocks run short the newest
gives its own back, so the oldest always advances and nobody starves; a sequence that hands off is never preempted,
because it owns all its blocks from its admission on.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from pagewire.core.errors import InvalidRequest
from pagewire.core.messages import SequenceSpec
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.role_policy import RolePolicy
from pagewire.engine.sequence import Sequence, State
from pagewire.engine.step import Grant, Step


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


def _age(sequence: Sequence) -> int:
    return sequence.arrival


class Scheduler:
    """All sequences of an engine, and the order in which they advance."""

    def __init__(self, pool: BlockPool, limits: Limits, policy: RolePolicy) -> None:
        self.pool = pool
        self.limits = limits
        self.policy = policy
        self.sequences: dict[str, Sequence] = {}
        self.holds: dict[str, list[int]] = {}  # blocks pinned for other pods, by the hold's id
        self.running: list[Sequence] = []  # oldest first, like the next two
        self.joined: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.num_preemptions = 0
        self.num_prompt_tokens = 0  # of the sequences that were admitted, and of those what was cached, and pinned
        self.num_cached_tokens = 0
        self.num_pinned_tokens = 0
        self._arrivals = 0

    def add(self, spec: SequenceSpec, first_block: int = 0) -> None:
        """Queue a sequence that starts from its tokens; raises InvalidRequest."""
        sequence = self.admit_spec(spec)
        sequence.reported_blocks = first_block
        self.waiting.append(sequence)

    def admit_spec(self, spec: SequenceSpec) -> Sequence:
        """Return a new sequence that the engine knows from now on; raises InvalidRequest."""
        self._validate(spec)
        sequence = Sequence(
            spec=spec, arrival=self._arrivals, block_size=self.limits.block_size, output=list(spec.output)
        )
        self._arrivals += 1
        self.sequences[spec.request_id] = sequence
        return sequence

    def enqueue_joined(self, sequence: Sequence) -> None:
        """Let a sequence that already owns its blocks wait for a place in the batch."""
        sequence.state = State.JOINED
        insort(self.joined, sequence, key=_age)

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

    def schedule(self) -> Step | None:
        """Return the next step, None when nothing can advance."""
        grants: dict[Sequence, int] = {}
        preempted_before = self.num_preemptions
        for sequence in [s for s in self.running if s.is_decoding]:
            self._grant(sequence, grants)
        for sequence in [s for s in self.running if not s.is_decoding]:
            self._grant(sequence, grants)
        while self.joined and self._has_room(grants):
            self._start(self.joined.pop(0), grants)
        # Whoever was just preempted would come straight back and be preempted again.
        if self.num_preemptions == preempted_before:
            while self.waiting and self._has_room(grants) and self._take_blocks(self.waiting[0]):
                self._start(self.waiting.pop(0), grants)
        if not grants:
            return None
        return Step(grants=tuple(self._freeze(sequence, count) for sequence, count in grants.items()))

    def _has_room(self, grants: dict[Sequence, int]) -> bool:
        return len(self.running) < self.limits.max_num_seqs and self._budget(grants) > 0

    def _budget(self, grants: dict[Sequence, int]) -> int:
        return self.limits.max_num_batched_tokens - sum(grants.values())

    def _start(self, sequence: Sequence, grants: dict[Sequence, int]) -> None:
        sequence.state = State.RUNNING
        insort(self.running, sequence, key=_age)
        self._grant(sequence, grants)

    def _grant(self, sequence: Sequence, grants: dict[Sequence, int]) -> None:
        # A sequence of the snapshot may have been preempted for an older one meanwhile.
        count = min(sequence.num_tokens - sequence.num_computed, self.limits.chunk_size, self._budget(grants))
        if sequence.state is State.RUNNING and count > 0 and self._grow(sequence, count, grants):
            grants[sequence] = count

    def _grow(self, sequence: Sequence, count: int, grants: dict[Sequence, int]) -> bool:
        """Make the block table cover `count` more tokens, preempting the newest; False when that was this one."""
        missing = self.limits.num_blocks(sequence.num_computed + count) - len(sequence.block_table)
        while missing > self.pool.num_available:
            victim = max(self.running + self.joined, key=_age)
            grants.pop(victim, None)
            self._preempt(victim)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.block_table += self.pool.allocate(missing)
        return True

    def _preempt(self, victim: Sequence) -> None:
        assert not self.policy.hands_off, "blocks that were announced to another pod must stay"
        (self.running if victim.state is State.RUNNING else self.joined).remove(victim)
        self.pool.release(victim.block_table)
        victim.block_table, victim.num_computed, victim.num_registered = [], 0, 0
        victim.state = State.WAITING
        insort(self.waiting, victim, key=_age)
        self.num_preemptions += 1

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Give a waiting sequence what the cache holds of it and fresh blocks for the rest; False when short."""
        hits = self.pool.match(sequence.hit_chain())
        fresh = self.limits.num_blocks(sequence.num_tokens) - len(hits)
        # One block to spare for each that runs, or its next block would preempt this one at once.
        spare = 0 if self.policy.hands_off else len(self.running) + len(self.joined)
        if self.pool.num_unreferenced(hits) + fresh + spare > self.pool.num_available:
            return False
        table = self.pool.claim(sequence.hit_chain())  # and what the host tier has besides, in some of the fresh ones
        sequence.num_computed = len(table) * self.limits.block_size
        sequence.num_registered = len(table)
        sequence.block_table = table + self.pool.allocate(len(hits) + fresh - len(table))
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.num_computed
            self.count_hits(sequence, table)
        return True

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
        if len(spec.output) >= spec.sampling.max_tokens:
            raise InvalidRequest(
                f"max_tokens {spec.sampling.max_tokens} is used up by {len(spec.output)} tokens of output",
                field="max_tokens",
            )
