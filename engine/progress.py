"""What a computed grant changes: the sequence moves on, full blocks become known to the cache, and others hear of it.

Pure bookkeeping after a step; knows nothing of how it was computed. Invariant: only full blocks whose KV is there are
registered; the partial tail block stays private.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.engine_messages import ChunkDone, SequenceEnd
from pagewire.core.messages import ErrorInfo, TokenRecord
from pagewire.core.sampling import FinishReason
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence, finish_reason
from pagewire.engine.step import Computed, Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the outside is told of one sequence after one step."""

    record: TokenRecord | None = None
    chunk: ChunkDone | None = None
    end: SequenceEnd | None = None


def commit(scheduler: Scheduler, sequence: Sequence, grant: Grant, computed: Computed) -> Progress:
    """Account for a computed grant, the token that it sampled if it drew one, and the prompt's scores."""
    limits, hands_off = scheduler.limits, scheduler.policy.hands_off
    stop = grant.start + len(grant.tokens)
    sequence.computed_tokens += max(0, min(stop, sequence.num_given) - grant.start)
    sequence.num_computed = stop
    register_full_blocks(scheduler, sequence)
    sequence.num_scored += len(computed.prompt_logprobs)
    if computed.token is None:
        record = _record(sequence, computed, ()) if computed.prompt_logprobs else None
        chunk = _chunk(scheduler, sequence, is_last=False, ships=True) if hands_off else None
        return Progress(record=record, chunk=chunk)
    sequence.output.append(computed.token)
    reason = finish_reason(
        sequence.output, sequence.num_prompt, sequence.spec.sampling, limits.eos_token_ids, limits.max_model_len
    )
    record = _record(sequence, computed, (computed.token,), reason)
    # A sequence that its first token ends ships nothing more.
    chunk = _chunk(scheduler, sequence, is_last=True, ships=reason is None) if hands_off else None
    end = None
    if reason is not None:
        end = end_of(sequence)
        scheduler.remove(sequence)
    elif hands_off:
        scheduler.hand_off(sequence)
    return Progress(record=record, chunk=chunk, end=end)


def _record(
    sequence: Sequence, computed: Computed, tokens: tuple[int, ...], reason: FinishReason | None = None
) -> TokenRecord:
    return TokenRecord(
        request_id=sequence.request_id,
        index=sequence.spec.index,
        position=len(sequence.output) - len(tokens),
        tokens=tokens,
        finish_reason=reason,
        logprobs=(computed.logprobs,) if computed.logprobs is not None else (),
        prompt_logprobs=computed.prompt_logprobs,
    )


def group_done(sequence: Sequence, grant: Grant, group: int) -> ChunkDone:
    """Return what is told of a sealed grant that still computes: one group of layers of its sequence's last blocks."""
    first = sequence.reported_blocks
    return ChunkDone(
        request_id=sequence.request_id,
        first_block=first,
        block_ids=grant.block_ids[first:],
        cached_tokens=sequence.cached_tokens or 0,
        computed_tokens=sequence.computed_tokens,
        fetched_tokens=sequence.fetched_tokens,
        is_last=False,
        group=group,
    )


def end_of(sequence: Sequence, error: ErrorInfo | None = None) -> SequenceEnd:
    """Return the end of a sequence that ran, `error` where that was what ended it."""
    return SequenceEnd(
        request_id=sequence.request_id,
        cached_tokens=sequence.cached_tokens or 0,
        computed_tokens=sequence.computed_tokens,
        fetched_tokens=sequence.fetched_tokens,
        error=error,
    )


def register_full_blocks(scheduler: Scheduler, sequence: Sequence) -> None:
    """Let the cache know the blocks that became full of computed tokens."""
    num_full = sequence.num_computed // scheduler.limits.block_size
    if num_full == sequence.num_registered:
        return
    if not _register(scheduler, sequence, sequence.num_registered, num_full):
        # The chain's beginning stood for another sequence's block, which left the cache; now our own stands for it.
        _register(scheduler, sequence, 0, num_full)


def _register(scheduler: Scheduler, sequence: Sequence, first: int, end: int) -> bool:
    hashes = sequence.chain(end)
    for depth in range(first, end):
        parent = hashes[depth - 1] if depth else None
        if not scheduler.pool.register(sequence.block_table[depth], hashes[depth], parent, depth):
            return False
        sequence.num_registered = depth + 1
    return True


def _chunk(scheduler: Scheduler, sequence: Sequence, *, is_last: bool, ships: bool) -> ChunkDone | None:
    limits, first = scheduler.limits, sequence.reported_blocks
    final = limits.num_blocks(sequence.num_computed) if is_last else sequence.num_computed // limits.block_size
    block_ids = tuple(sequence.block_table[first:final]) if ships else ()
    if not block_ids and not is_last:
        return None
    sequence.reported_blocks = max(first, final)
    return ChunkDone(
        request_id=sequence.request_id,
        first_block=first,
        block_ids=block_ids,
        cached_tokens=sequence.cached_tokens or 0,
        computed_tokens=sequence.computed_tokens,
        fetched_tokens=sequence.fetched_tokens,
        is_last=is_last,
    )
