"""What a preempted sequence leaves to the host tier, and how it has it again.

Its full blocks go there as they are evicted, like everybody's; the unfilled last one goes at once, and nobody else
finds it. Works on a sequence and its pool; knows nothing of who else runs. Invariant: `num_saved` says what was left
for as long as it may be there, and is 0 once the sequence has blocks again.
"""

from __future__ import annotations

from pagewire.engine import departed
from pagewire.engine.block import table_of
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.preemption import Preemption
from pagewire.engine.sequence import Sequence


def save(pool: BlockPool, limits: Limits, preemption: Preemption, victim: Sequence) -> bool:
    """Leave the KV of a sequence that is about to lose its blocks, where that is the cheaper way to have it again."""
    if departed.comes_in_parts(pool, limits, victim):
        return False  # it would not be asked for
    own = pool.num_unshared(victim.block_table[: limits.num_blocks(victim.num_computed)])
    size = limits.block_size
    if not own or not preemption.swaps(min(victim.num_computed, own * size), own, pool.host.capacity):
        return False
    depth, tail_hash = victim.num_computed // size, victim.tail_hash(victim.num_computed)
    if tail_hash is None or pool.cache.save_tail(victim.block_table[depth], tail_hash, victim.parent_of(depth), depth):
        victim.num_saved = victim.num_computed
    return True


def claim(pool: BlockPool, limits: Limits, sequence: Sequence) -> None:
    """Let a sequence without blocks hold what is cached of it, and its unfilled block where that was saved."""
    size, tail_hash = limits.block_size, sequence.tail_hash(sequence.num_saved)
    table = pool.claim(sequence.hit_chain())
    sequence.num_computed, sequence.num_registered = len(table) * size, len(table)
    if tail_hash is not None and len(table) == sequence.num_saved // size:
        tail = pool.recall_tail(tail_hash)
        if tail is not None:
            table.append(tail)
            # A beam that waited for the others was computed: its last token is again, else nobody would hear of it.
            sequence.num_computed = min(sequence.num_saved, sequence.num_tokens - 1)
    sequence.block_table = table_of(table)
    forget(pool, sequence)


def forget(pool: BlockPool, sequence: Sequence) -> None:
    """Let go of what was saved of a sequence, if it is still there."""
    tail_hash = sequence.tail_hash(sequence.num_saved)
    if tail_hash is not None:
        pool.cache.forget_tail(tail_hash)
    sequence.num_saved = 0
