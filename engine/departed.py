"""The first blocks of a sequence that are in the pool no more: passed by its window, or spilled to host memory.

Works on a sequence, its pool and its limits; knows nothing of who else runs. Invariant: the table has NO_BLOCK for
each of them, and either no later token sees it, or its copy lies in a slot that was lent to the sequence.
"""

from __future__ import annotations

from pagewire.engine.block import NO_BLOCK, table_of
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.sequence import Sequence


def is_too_large(pool: BlockPool, limits: Limits, sequence: Sequence) -> bool:
    """Return whether a sequence has more blocks than the pool, and may have: others that fork off share no slots."""
    if not limits.spills or sequence.unforked or sequence.group.search is not None:
        return False
    return limits.num_blocks(sequence.num_tokens) > pool.num_blocks - pool.num_pinned


def comes_in_parts(pool: BlockPool, limits: Limits, sequence: Sequence) -> bool:
    """Return whether a sequence has its first blocks in the pool no more when it gets its last."""
    return limits.num_passed(sequence.num_tokens) > 0 or is_too_large(pool, limits, sequence)


def pass_blocks(pool: BlockPool, limits: Limits, sequence: Sequence) -> None:
    """Give back the blocks that no later token sees."""
    passed = limits.num_passed(sequence.num_computed) - sequence.num_gone
    if passed > 0:
        pool.release(sequence.let_go(passed))


def spill(pool: BlockPool, limits: Limits, sequence: Sequence, most: int) -> bool:
    """Move up to `most` of a sequence's first blocks to host memory; False where none is full, or no slot is left."""
    slots = pool.host.num_slots - pool.host.num_lent
    count = min(most, slots, sequence.num_computed // limits.block_size - sequence.num_gone)
    if count > 0:
        sequence.spilled += pool.spill(sequence.let_go(count))
    return count > 0


def begin_behind(pool: BlockPool, limits: Limits, sequence: Sequence, num_gone: int, hits: list[int]) -> None:
    """Let a sequence without blocks hold cached ones behind `num_gone` that it has passed already."""
    pool.share(hits)
    sequence.block_table, sequence.num_gone = table_of([NO_BLOCK] * num_gone + hits), num_gone
    sequence.num_registered = num_gone + len(hits)
    sequence.num_computed = sequence.num_registered * limits.block_size


def release(pool: BlockPool, sequence: Sequence, *, parks: bool = True) -> None:
    """Give back all blocks of a sequence, and the slots that were lent to it; `parks` as in the pool."""
    pool.release(sequence.held, parks=parks)
    pool.host.give_back(sequence.spilled)
    sequence.block_table, sequence.num_gone, sequence.spilled = table_of(), 0, []
