"""Puts an inbox's blocks in place through a carrier, one `place` at a time, in the order in which they came.

What is verified is what was written into our block, not what the source says or has: its memory may change under a
copy. A block whose checksum follows is placed and stays claimed until that has come. The event loop gets a turn between
two placements. Knows no streams. Invariant: a claim is settled only when its `place` has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pagewire.core.errors import TransferFailed, TransferTimeout
from pagewire.kvtransfer.carrier import Inlet, Move
from pagewire.kvtransfer.inbox import Claimed, Inbox
from pagewire.kvtransfer.translation import Translation
from pagewire.kvtransfer.transport import BlockMemory

TURN_S = 0.0005  # how long the loop is kept from others before it gets a turn


class _Placed(NamedTuple):
    """A block that was written, into what block of the landing, and its checksum where the copy told it."""

    claimed: Claimed
    landed: int
    checksum: int | None


class Placer:
    """The placing of one stream; `wake` after the inbox got work. A placement may take `place_s` seconds, and as long
    the checksums that follow.

    With a `translation` the inlet writes into its staging.
    """

    def __init__(
        self, inbox: Inbox, inlet: Inlet, memory: BlockMemory, place_s: float, translation: Translation | None = None
    ) -> None:
        self._inbox = inbox
        self._inlet = inlet
        self._landing = memory if translation is None else translation.staging
        self._translation = translation
        self._slots = deque(range(0 if translation is None else translation.staging.num_blocks))  # free, where staged
        self._place_s = place_s
        self._max_blocks = max(1, inlet.place_bytes // memory.block_bytes)
        self._work = asyncio.Event()
        self._claimed: list[Claimed] = []  # being written
        self._placed: deque[_Placed] = deque()  # written, not settled

    def wake(self) -> None:
        """There may be work."""
        self._work.set()

    async def run(self) -> None:
        """Place until cancelled. Raises TransferFailed when the carrier fails or is too slow."""
        turn_ends_s = time.perf_counter() + TURN_S
        while True:
            has_placed = await self._place()
            if not self._settle() and not has_placed:
                await self._wait()
                turn_ends_s = time.perf_counter() + TURN_S
            elif time.perf_counter() >= turn_ends_s:
                await asyncio.sleep(0)
                turn_ends_s = time.perf_counter() + TURN_S

    def give_up(self) -> None:
        """The stream is lost and `run` has ended: what it had claimed is settled."""
        for block in (*(placed.claimed for placed in self._placed), *self._claimed):
            self._inbox.give_up(block)
        self._placed.clear()
        self._claimed = []

    async def _place(self) -> bool:
        """Have the next blocks written; False when there are none, or no slots for them."""
        room = self._max_blocks if self._translation is None else min(self._max_blocks, len(self._slots))
        self._claimed = claimed = self._inbox.claims(room) if room else []
        if not claimed:
            return False
        landed = [block.block_id if self._translation is None else self._slots.popleft() for block in claimed]
        moves = [Move(block.position, block_id) for block, block_id in zip(claimed, landed, strict=True)]
        try:
            async with asyncio.timeout(self._place_s):
                told = await self._inlet.place(claimed[0].parcel.ready, moves)
        except TimeoutError:
            raise TransferTimeout(f"{len(moves)} blocks were not placed within {self._place_s} s") from None
        except (OSError, IndexError, ValueError) as error:
            raise TransferFailed(f"{len(moves)} blocks could not be placed: {error}") from error
        sums: Sequence[int | None] = told or [None] * len(moves)
        self._placed.extend(map(_Placed, claimed, landed, sums))
        self._claimed = []
        return True

    def _settle(self) -> bool:
        """Settle what was placed, as far as its checksums are known; False when there is nothing of that kind."""
        has_settled = False
        while self._placed and (checksums := self._placed[0].claimed.parcel.checksums) is not None:
            placed = self._placed[0]  # ours to give up until it is known what is in it
            is_intact = self._finish(placed, checksums)
            self._placed.popleft()
            self._inbox.settle(placed.claimed, is_intact)
            has_settled = True
        return has_settled

    def _finish(self, placed: _Placed, checksums: tuple[int, ...]) -> bool:
        """Verify what was placed and, where it was staged, write it into our block; False when it is not intact."""
        is_intact = not checksums or self._checksum(placed) == checksums[placed.claimed.position]
        if self._translation is not None:
            if is_intact:
                self._translation.write(placed.landed, placed.claimed.block_id)
            self._slots.append(placed.landed)
        return is_intact

    def _checksum(self, placed: _Placed) -> int:
        """That of what was written."""
        if placed.checksum is not None:
            return placed.checksum
        block = placed.claimed
        return block.parcel.ready.checksum(block.position, self._landing.read(placed.landed))

    async def _wait(self) -> None:
        """Wait to be woken; where checksums are to come, not for long."""
        self._work.clear()
        try:
            async with asyncio.timeout(self._place_s if self._placed else None):
                await self._work.wait()
        except TimeoutError:
            why = f"the checksums of {len(self._placed)} blocks did not come within {self._place_s} s"
            raise TransferTimeout(why) from None
