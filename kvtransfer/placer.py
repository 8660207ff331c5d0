"""Puts an inbox's blocks in place through a carrier, one `place` at a time, in the order in which they came.

What is verified is what was written into our block, not what the source says or has: its memory may change under a
copy. The event loop gets a turn between two placements. Knows no streams. Invariant: a claim is settled only when its
`place` has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from pagewire.core.errors import TransferFailed, TransferTimeout
from pagewire.kvtransfer.carrier import Inlet, Move
from pagewire.kvtransfer.inbox import Claimed, Inbox
from pagewire.kvtransfer.translation import Translation
from pagewire.kvtransfer.transport import BlockMemory

TURN_S = 0.0005  # how long the loop is kept from others before it gets a turn


class Placer:
    """The placing of one stream; `wake` after the inbox got work. A placement may take `place_s` seconds.

    With a `translation` the inlet writes into its staging.
    """

    def __init__(
        self, inbox: Inbox, inlet: Inlet, memory: BlockMemory, place_s: float, translation: Translation | None = None
    ) -> None:
        self._inbox = inbox
        self._inlet = inlet
        self._landing = memory if translation is None else translation.staging
        self._translation = translation
        self._place_s = place_s
        self._max_blocks = max(1, inlet.place_bytes // memory.block_bytes)
        if translation is not None:
            self._max_blocks = min(self._max_blocks, translation.staging.num_blocks)
        self._work = asyncio.Event()
        self._open: list[Claimed] = []

    def wake(self) -> None:
        """There may be work."""
        self._work.set()

    async def run(self) -> None:
        """Place until cancelled. Raises TransferFailed when the carrier fails or is too slow."""
        turn_ends_s = time.perf_counter() + TURN_S
        while True:
            self._open = self._inbox.claims(self._max_blocks)
            if not self._open:
                self._work.clear()
                await self._work.wait()
                turn_ends_s = time.perf_counter() + TURN_S
                continue
            sums = await self._place()
            slot = 0
            while self._open:
                block = self._open[0]  # ours to give up until it is known what is in it
                is_intact = self._finish(block, slot, sums)
                self._open.pop(0)
                self._inbox.settle(block, is_intact)
                slot += 1
            if time.perf_counter() >= turn_ends_s:
                await asyncio.sleep(0)
                turn_ends_s = time.perf_counter() + TURN_S

    def give_up(self) -> None:
        """The stream is lost and `run` has ended: what it had claimed is settled."""
        while self._open:
            self._inbox.give_up(self._open.pop(0))

    async def _place(self) -> Sequence[int]:
        moves = [
            Move(block.position, block.block_id if self._translation is None else slot)
            for slot, block in enumerate(self._open)
        ]
        try:
            async with asyncio.timeout(self._place_s):
                return await self._inlet.place(self._open[0].parcel.ready, moves)
        except TimeoutError:
            raise TransferTimeout(f"{len(moves)} blocks were not placed within {self._place_s} s") from None
        except (OSError, IndexError, ValueError) as error:
            raise TransferFailed(f"{len(moves)} blocks could not be placed: {error}") from error

    def _finish(self, block: Claimed, slot: int, sums: Sequence[int]) -> bool:
        """Verify what was placed and, where it was staged, write it into our block; False when it is not intact."""
        is_intact = self._is_intact(block, slot, sums)
        if is_intact and self._translation is not None:
            self._translation.write(slot, block.block_id)
        return is_intact

    def _is_intact(self, block: Claimed, slot: int, sums: Sequence[int]) -> bool:
        ready = block.parcel.ready
        if not ready.checksums:
            return True
        if sums:
            return sums[slot] == ready.checksums[block.position]
        landed = block.block_id if self._translation is None else slot
        return ready.is_intact(block.position, self._landing.read(landed))
