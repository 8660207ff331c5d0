"""Blocks that lie differently in the source's pool: staged as they came, verified there, then written in our order.

Knows orders of a block's axes and a few staged blocks; nothing of streams. Invariant: our pool never holds a block in
another order than its own.
"""

from __future__ import annotations

import dataclasses

from pagewire.core.errors import PeerMismatch
from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.plan import KVShard, apply, plan_copy
from pagewire.kvtransfer.transport import BlockMemory

NUM_SLOTS = 8


class Translation:
    """From blocks of `layout` in another `order` into `memory`. Raises PeerMismatch on an order that we do not know."""

    def __init__(self, memory: BlockMemory, layout: KVLayout | None, order: str) -> None:
        if layout is None or order not in set(BlockOrder):
            ours = layout.order.value if layout is not None else ""
            raise PeerMismatch(f"order of a block's axes: ours {ours!r}, the source's {order!r}")
        theirs = dataclasses.replace(layout, order=BlockOrder(order))
        self._spans = plan_copy(KVShard(theirs), KVShard(layout))
        self._memory = memory
        self._block = memoryview(bytearray(layout.block_bytes))
        slots = memoryview(bytearray(NUM_SLOTS * layout.block_bytes))
        self.staging = PoolMemory(slots, block_bytes=layout.block_bytes, num_blocks=NUM_SLOTS)

    def write(self, slot: int, block_id: int) -> None:
        """Copy what is staged in `slot` into our block, in our order."""
        apply(self._spans, self.staging.read(slot), self._block)
        self._memory.write(block_id, self._block)
