"""Puts an inbox's blocks in place through a carrier, in the order in which they came.

What is verified is what was written into our block, not what the source says or has: its memory may change under a
copy. A block whose checksum follows is placed and stays claimed until that has come. As many placements are under way
as the carrier takes, and are settled in the order in which they began; the event loop gets a turn between two. Knows no
streams. Invariant: a claim is settled only when its `place` has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.core.errors import TransferFailed, TransferTimeout
from pagewire.core.tasks import ended
from pagewire.kvtransfer.carrier import Inlet
from pagewire.kvtransfer.inbox import Claimed, Inbox
from pagewire.kvtransfer.translation import Translation
from pagewire.kvtransfer.transport import BlockMemory

TURN_S = 0.0005  # how long the loop is kept from others before it gets a turn


@dataclass(slots=True, eq=False)
class _Placement:
    """Blocks that were claimed, the blocks of the landing that they are written into, and how far that is.

    `sums` are their checksums where the copy told them; `task` writes them where it is not the placer itself.
    """

    claimed: Claimed
    landed: Sequence[int]
    sums: Sequence[int] = ()
    is_written: bool = False
    task: asyncio.Task[None] | None = None


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
        self._placements: deque[_Placement] = deque()  # being written, or written and not settled
        self._num_writing = 0

    def wake(self) -> None:
        """There may be work."""
        self._work.set()

    async def run(self) -> None:
        """Place until cancelled. Raises TransferFailed when the carrier fails or is too slow."""
        turn_ends_s = time.perf_counter() + TURN_S
        try:
            while True:
                has_begun = await self._place()
                if not self._settle() and not has_begun:
                    await self._wait()
                    turn_ends_s = time.perf_counter() + TURN_S
                elif time.perf_counter() >= turn_ends_s:
                    await asyncio.sleep(0)
                    turn_ends_s = time.perf_counter() + TURN_S
        finally:
            tasks = [placement.task for placement in self._placements if placement.task is not None]
            for task in tasks:
                task.cancel()
            await ended(*tasks)

    def give_up(self) -> None:
        """The stream is lost and `run` has ended: what it had claimed is settled."""
        while self._placements:
            self._inbox.give_up(self._placements.popleft().claimed)

    async def _place(self) -> bool:
        """Have the next blocks written; False when there are none, or no room for them."""
        if self._num_writing >= self._inlet.max_places:
            return False
        room = self._max_blocks if self._translation is None else min(self._max_blocks, len(self._slots))
        claimed = self._inbox.claim(room) if room else None
        if claimed is None:
            return False
        landed = claimed.block_ids if self._translation is None else [self._slots.popleft() for _ in claimed.block_ids]
        placement = _Placement(claimed, landed)
        self._placements.append(placement)
        if self._inlet.max_places == 1:
            await self._write(placement)
        else:
            placement.task = asyncio.create_task(self._write(placement))
            placement.task.add_done_callback(lambda _: self.wake())
            await asyncio.sleep(0)  # it begins before the next is claimed
        return True

    async def _write(self, placement: _Placement) -> None:
        """Have the inlet write; a failure is a TransferFailed."""
        moves = list(zip(placement.claimed.positions, placement.landed, strict=True))
        self._num_writing += 1
        try:
            async with asyncio.timeout(self._place_s):
                placement.sums = await self._inlet.place(placement.claimed.parcel.ready, moves)
        except TimeoutError:
            raise TransferTimeout(f"{len(moves)} blocks were not placed within {self._place_s} s") from None
        except (OSError, IndexError, ValueError) as error:
            raise TransferFailed(f"{len(moves)} blocks could not be placed: {error}") from error
        finally:
            self._num_writing -= 1
        placement.is_written = True

    def _settle(self) -> bool:
        """Settle what was written, as far as its checksums are known; False when there is nothing of that kind.

        Raises what a placement of a task of its own has failed of.
        """
        has_settled = False
        for placement in self._placements:
            if placement.task is not None and placement.task.done():
                placement.task.result()
        while self._placements:
            placement = self._placements[0]  # ours to give up until it is known what is in it
            checksums = placement.claimed.parcel.checksums
            if not placement.is_written or checksums is None:
                break
            spoilt = self._finish(placement, checksums)
            self._placements.popleft()
            self._inbox.settle(placement.claimed, spoilt)
            has_settled = True
        return has_settled

    def _finish(self, placement: _Placement, checksums: tuple[int, ...]) -> Sequence[int]:
        """Verify what was written and, where it was staged, write it into our blocks; return which are not intact."""
        spoilt = self._spoilt(placement, checksums) if checksums else ()
        if self._translation is not None:
            claimed = placement.claimed
            for position, slot, block_id in zip(claimed.positions, placement.landed, claimed.block_ids, strict=True):
                if position not in spoilt:
                    self._translation.write(slot, block_id)
                self._slots.append(slot)
        return spoilt

    def _spoilt(self, placement: _Placement, checksums: tuple[int, ...]) -> Sequence[int]:
        """Return the positions of blocks that are there other than their checksums say."""
        positions, ready = placement.claimed.positions, placement.claimed.parcel.ready
        sums = placement.sums or [
            ready.checksum(position, self._landing.read(block_id))
            for position, block_id in zip(positions, placement.landed, strict=True)
        ]
        return [position for position, found in zip(positions, sums, strict=True) if found != checksums[position]]

    async def _wait(self) -> None:
        """Wait to be woken; where checksums are to come, not for long."""
        self._work.clear()
        try:
            async with asyncio.timeout(self._place_s if self._is_unsummed else None):
                await self._work.wait()
        except TimeoutError:
            num_blocks = sum(len(placement.landed) for placement in self._placements)
            why = f"the checksums of {num_blocks} blocks did not come within {self._place_s} s"
            raise TransferTimeout(why) from None

    @property
    def _is_unsummed(self) -> bool:
        """True where what was written first is not settled for its checksums alone."""
        return bool(self._placements) and self._placements[0].is_written
