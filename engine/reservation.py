"""Room for a prompt whose KV comes from elsewhere: promised as a count, bound to ids bit by bit, then joined.

Works on a scheduler's sequences; knows nothing of shipments. Invariant: a reserved sequence holds the cached blocks of
its prompt, and what it was promised besides is in the pool's count until bound or given back. One that does not fit the
pool whole, and runs here in parts, holds nothing and is promised nothing: joined, it waits like any that was added.
"""

from __future__ import annotations

from bisect import insort

from pagewire.core.engine_messages import Join, Keep
from pagewire.core.errors import EngineFailed, InvalidRequest, Overloaded
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine.block import table_of
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence, State

RETRY_AFTER_S = 1.0  # a guess: a running sequence ends, or a cached block falls free, about that often


def reserve(scheduler: Scheduler, spec: SequenceSpec, first_block: int = 0, now_s: float = 0.0) -> int:
    """Pin what the cache holds of the prompt and promise the rest; return the cached blocks.

    Each sequence of a request that will decode here is promised its own unfilled block and one block more, as far as
    the pool can ever have as many: those that outgrow it together take turns once they run. One that hands off reports
    from `first_block` on.

    Raises InvalidRequest when it can never fit, Overloaded when it cannot now. Until it asks again, is added or
    aborted, it counts among those that lack blocks.
    """
    pool, limits = scheduler.pool, scheduler.limits
    most = pool.num_blocks - pool.num_pinned
    total = _num_blocks(scheduler, spec, most)
    in_parts = total > most and not spec.branches and bool(limits.window or limits.spills)
    if total > most and not in_parts:
        raise InvalidRequest(f"the request needs {total} blocks; the KV pool has {most}", field="prompt")
    sequence = scheduler.admit_spec(spec, now_s)
    if in_parts:
        sequence.state = State.RESERVED
        return 0
    if not scheduler.may_take_blocks(sequence):
        _refuse(scheduler, sequence)
        raise Overloaded("a sequence that goes first waits for blocks", retry_after_s=RETRY_AFTER_S)
    hits = pool.match(sequence.hit_chain())
    promised = total - len(hits)
    if pool.num_unreferenced(hits) + promised > pool.num_available:
        _refuse(scheduler, sequence)
        raise Overloaded(
            f"the prompt needs {promised} more blocks; {pool.num_available} are available", retry_after_s=RETRY_AFTER_S
        )
    hits = pool.claim(sequence.hit_chain())  # and what the host tier has besides
    promised = total - len(hits)
    pool.reserve(promised)
    sequence.state = State.RESERVED
    sequence.promised = promised
    sequence.reported_blocks = first_block
    sequence.block_table = table_of(hits)
    sequence.num_registered = len(hits)
    sequence.num_computed = sequence.group.cached_tokens = len(hits) * limits.block_size
    return len(hits)


def comes_in_parts(sequence: Sequence) -> bool:
    """Return whether a reserved sequence is to have its blocks bit by bit, once it has joined."""
    return sequence.state is State.RESERVED and not sequence.block_table and not sequence.promised


def bind(scheduler: Scheduler, request_id: str, num_blocks: int) -> tuple[int, ...]:
    """Grow the block table to `num_blocks`, by no more than was promised; return it, empty when not reserved."""
    sequence = scheduler.sequences.get(request_id)
    if sequence is None or sequence.state is not State.RESERVED:
        return ()
    _bind(scheduler, sequence, num_blocks)
    return tuple(sequence.block_table)


def keep(scheduler: Scheduler, keep: Keep) -> Sequence | None:
    """Account for KV that is in the blocks of a reserved sequence, no more than are bound; None when it is gone."""
    sequence = scheduler.sequences.get(keep.request_id)
    if sequence is None or sequence.state is not State.RESERVED:
        return None
    _land(sequence, min(keep.num_computed, len(sequence.block_table) * scheduler.limits.block_size))
    return sequence


def join(scheduler: Scheduler, join: Join) -> Sequence | None:
    """Let a reserved sequence run on from what landed; return it, None when it is gone.

    Raises EngineFailed, with the sequence removed, when `num_computed` claims more or less than can be there.
    """
    sequence = scheduler.sequences.get(join.request_id)
    if sequence is None or sequence.state is not State.RESERVED:
        return None
    landed, size = join.num_computed, scheduler.limits.block_size
    most = min(sequence.num_tokens, len(sequence.block_table) * size)
    cached = sequence.group.cached_tokens or 0
    if not cached <= landed <= most:
        scheduler.remove(sequence)
        raise EngineFailed(f"{landed} tokens are said to have landed; between {cached} and {most} can have")
    known = tuple(sequence.output)
    if join.output[: len(known)] != known:
        scheduler.remove(sequence)
        raise EngineFailed(f"the output {join.output} does not begin with {known}, which was out at the reservation")
    sequence.index, sequence.output = join.index, list(join.output)
    if comes_in_parts(sequence):
        sequence.state = State.WAITING
        insort(scheduler.waiting, sequence, key=scheduler.rank)
        return sequence
    scheduler.count_hits(sequence, sequence.block_table[: cached // size])
    _bind(scheduler, sequence, scheduler.limits.num_blocks(sequence.num_tokens))
    scheduler.pool.unreserve(sequence.promised)
    sequence.promised = 0
    _land(sequence, landed)
    sequence.group.fetched_tokens = sequence.num_computed - cached
    scheduler.enqueue_joined(sequence)
    scheduler.branch(sequence, join.branches)
    return sequence


def _refuse(scheduler: Scheduler, sequence: Sequence) -> None:
    scheduler.remove(sequence)
    scheduler.refused.add(sequence.request_id)


def _num_blocks(scheduler: Scheduler, spec: SequenceSpec, most: int) -> int:
    limits, length = scheduler.limits, len(spec.tokens) + len(spec.output)
    total = limits.num_blocks(length)
    if scheduler.policy.hands_off:
        return total
    shared = len(spec.tokens) // limits.block_size
    own = sum(limits.num_blocks(len(spec.tokens) + len(each.output)) + 1 - shared for each in spec.branches)
    return max(total + 1, min(total + 1 + own, most))


def _land(sequence: Sequence, num_computed: int) -> None:
    # The last token is always computed here: its logits choose the next one. What was kept before stays so.
    sequence.num_computed = max(sequence.num_computed, min(num_computed, sequence.num_tokens - 1))


def _bind(scheduler: Scheduler, sequence: Sequence, num_blocks: int) -> None:
    count = min(num_blocks - len(sequence.block_table), sequence.promised)
    if count > 0:
        sequence.block_table.extend(scheduler.pool.allocate_reserved(count))
        sequence.promised -= count
