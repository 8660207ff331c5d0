"""The blocks of requests that this pod gave up while it drains, pinned until their next pod has fetched them.

Knows hashes and moments. Invariant: every hold ends, by the fetch that takes it, by the router's word or by its time.
"""

from __future__ import annotations

import asyncio
import logging

from pagewire.core.block_hash import BlockHash, chain
from pagewire.core.clock import Clock
from pagewire.core.engine_messages import Hold
from pagewire.core.errors import EngineFailed
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine.running_engine import RunningEngine

log = logging.getLogger(__name__)

# No setting: the router places anew within a second, and the next pod asks at once. A hold that ends too soon costs
# that pod a recompute and never a token; one that lasts too long keeps a drained pod alive for a pod that never came.
FETCH_WITHIN_S = 10.0


class Handovers:
    """The holds of one pod."""

    def __init__(self, engine: RunningEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._pinning: set[str] = set()  # holds that the engine has not answered, and that are still wanted
        self._ends_s: dict[str, float] = {}
        self._last_hashes: dict[str, frozenset[BlockHash]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.num_given_up = 0  # requests that another pod can go on with, from all that is held of them
        self.num_taken = 0  # of these, those whose blocks were fetched by their next pod

    def __len__(self) -> int:
        return len(self._ends_s)

    async def wait_idle(self) -> None:
        """Return when nothing is held for anybody."""
        await self._idle.wait()

    async def hold(self, spec: SequenceSpec, output: tuple[int, ...]) -> None:
        """Pin the full blocks of a sequence whose output so far is `output`, before it is aborted."""
        await self._pin(spec, output)
        self.num_given_up += 1

    async def _pin(self, spec: SequenceSpec, output: tuple[int, ...]) -> None:
        tokens = spec.tokens + output
        hashes = tuple(chain(spec.root, tokens, self._engine.ready.layout.block_size))
        if not hashes:
            return
        hold_id = _hold_id(spec.request_id)
        self._pinning.add(hold_id)
        try:
            held = await self._engine.hold(Hold(request_id=hold_id, hashes=hashes))
        except EngineFailed as error:
            log.info("%s: nothing to hold: %s", spec.request_id, error.message, extra={"request_id": spec.request_id})
            return
        finally:
            is_forgotten = hold_id not in self._pinning
            self._pinning.discard(hold_id)
        if held.block_ids:
            self._ends_s[hold_id] = self._clock.now() + FETCH_WITHIN_S
            # The very last block is not fetched when no token follows it: that token has to be computed.
            self._last_hashes[hold_id] = frozenset(hashes[-2:])
            self._idle.clear()
        if is_forgotten:
            self._end(hold_id)

    def fetched(self, hashes: tuple[BlockHash, ...]) -> None:
        """These blocks are on another pod now: whoever was to go on there can."""
        for hold_id in [hold_id for hold_id, last in self._last_hashes.items() if last & set(hashes[-1:])]:
            self.num_taken += self._end(hold_id)

    def forget(self, request_id: str) -> None:
        """Nobody comes for the blocks of this request any more; no-op where none are held."""
        hold_id = _hold_id(request_id)
        self._pinning.discard(hold_id)
        self._end(hold_id)

    def tick(self, now_s: float) -> None:
        """Look at the clock."""
        for hold_id in [hold_id for hold_id, ends_s in self._ends_s.items() if ends_s <= now_s]:
            log.warning("%s was not fetched within %s s", hold_id, FETCH_WITHIN_S)
            self._end(hold_id)

    def _end(self, hold_id: str) -> bool:
        if self._ends_s.pop(hold_id, None) is None:
            return False
        del self._last_hashes[hold_id]
        try:
            self._engine.release(hold_id)
        except EngineFailed as error:
            log.info("%s: nothing to release: %s", hold_id, error.message)
        if not self._ends_s:
            self._idle.set()
        return True


def _hold_id(request_id: str) -> str:
    return f"handover/{request_id}"
