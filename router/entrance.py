"""Where a request gets its pods: at once, or after a wait for one that has room for it to its completion.

Knows pods, their room and the queue before them; nothing of tokens. What is placed is held against its SLO, and the
blocks that it may need are promised to it until it leaves. Invariants: nobody is placed past those that wait for the
same pods; every request that `place` returned for is followed by exactly one `leave`; who is cancelled, refused or past
its deadline is out of the queue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagewire.core.clock import Clock
from pagewire.core.errors import DeadlineExceeded, Overloaded, PagewireError, Unavailable
from pagewire.core.timeline import Phase
from pagewire.router.config import RouterConfig, SloGateMode
from pagewire.router.kv_room import KvNeed
from pagewire.router.metrics import RouterMetrics
from pagewire.router.placing import Placed, Placer
from pagewire.router.pod import Pod
from pagewire.router.pods import PodPool
from pagewire.router.refusals import Reason, Refused
from pagewire.router.roster import DECODES
from pagewire.router.slo_gate import SloGate
from pagewire.router.wait_queue import WaitQueue

if TYPE_CHECKING:  # a life knows its model, and so its entrance
    from pagewire.router.life import Life


@dataclass(slots=True, eq=False)
class _Visit:
    """One request that wants pods; `closed` are those it must not have, once it is its turn.

    A pool that holds `whole` blocks takes all of it together.
    """

    life: Life
    need: KvNeed
    whole: int
    since_s: float
    closed: Set[str] | None = None
    refusal: PagewireError | None = None
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class Entrance:
    """Places the requests for one pool of pods."""

    def __init__(
        self, *, config: RouterConfig, pool: PodPool, placer: Placer, metrics: RouterMetrics, clock: Clock
    ) -> None:
        self._config = config
        self._pool = pool
        self._placer = placer
        self._metrics = metrics
        self._clock = clock
        self._queue: WaitQueue[_Visit] = WaitQueue(config.max_waiting)
        self._served: _Visit | None = None  # whose turn it is; the next one sees what it was promised
        self._closed: Callable[[], PagewireError] | None = None
        self.gate = SloGate(
            ttft_s=config.slo_ttft_s,
            gap_s=config.slo_gap_s,
            tpot_s=config.slo_tpot_s,
            may_refuse=config.slo_gate is SloGateMode.AUTO,
            tally=metrics,
        )
        pool.on_change(self._changed)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a pod."""
        return len(self._queue)

    async def place(self, life: Life) -> Placed:
        """Return pods for a request, with its blocks promised there.

        Raises Refused when it would wait too long or miss its SLO, DeadlineExceeded, Unavailable when there is no pod,
        and what its last attempt failed with when there is no other pod to try.
        """
        if self._closed is not None:
            raise self._closed()
        need = self._need(life)
        visit = _Visit(life, need, self._whole(life, need), self._clock.now())
        if not len(self._queue):
            # Mostly the best pod has room, and the others need not be looked at.
            placed = self._choose(visit, frozenset())
            if placed is not None and not self._has_room(visit, placed.decode):
                placed = self._choose(visit, {key for key, has_room in self._room(visit).items() if not has_room})
            if placed is not None:
                return self._take(visit, placed)
        return await self._wait(visit)

    def leave(self, life: Life, placed: Placed) -> None:
        """The attempt is over: its blocks are for others."""
        placed.decode.room.release(life.internal_id)
        self._changed(placed.decode)

    def leave_to_larger(self, life: Life, placed: Placed) -> bool:
        """Keep a request from all pools but those larger than the one that it was too much for; False without any."""
        pods = [pod for pod in self._placer.reach(life.prefix) if pod.key not in life.failed_keys]
        others = {pod.key for pod in pods if pod.load.blocks_total <= placed.decode.load.blocks_total}
        if len(others) == len(pods):
            return False
        life.failed_keys |= others
        return True

    def close(self, why: Callable[[], PagewireError]) -> None:
        """Send all away that wait, each with an error of its own, and whoever comes."""
        self._closed = why
        for visit in self._queue:
            self._refuse(visit, why())

    def _refuse(self, visit: _Visit, error: PagewireError) -> None:
        visit.refusal = error
        visit.turn.set()

    def _changed(self, pod: Pod) -> None:
        """A pod may have more room than before: most have not, and are done with here."""
        if any(self._has_room(visit, pod) for visit in self._queue):
            self._serve()

    def _serve(self) -> None:
        """Let the next one have its turn, if a pod has room for it."""
        if self._served is not None or not len(self._queue):
            return
        found = self._queue.next(self._room, len(self._pool.usable(*DECODES)))
        if found is None:
            self._queue.wait(self._clock.now())
            return
        visit, closed = found
        visit.closed, self._served = closed, visit
        visit.turn.set()

    async def _wait(self, visit: _Visit) -> Placed:
        life, is_served = visit.life, False
        waiter, evicted = self._queue.join(
            visit,
            arrived_s=life.received_s,
            priority=life.request.priority,
            now_s=visit.since_s,
            tenant=life.request.tenant.name,
            is_let_in=life.is_let_in or life.num_output > 0,
        )
        if evicted is not None:
            message = "the queue is full: a more urgent request, or one of a tenant with fewer there, took this place"
            retry_after_s = self._queue.retry_after_s(visit.since_s)
            self._refuse(evicted.what, Refused(Reason.OVERTAKEN, message, retry_after_s=retry_after_s))
        try:
            self._serve()
            while True:
                if visit.closed is not None:
                    closed, visit.closed, self._served = visit.closed, None, None
                    placed = self._choose(visit, closed)
                    if placed is not None:
                        is_served = True
                        return self._take(visit, placed)
                    self._serve()  # the pod went away before the turn came
                    continue
                left_s = self._patience_s(visit)
                try:
                    async with asyncio.timeout(left_s):
                        await visit.turn.wait()
                except TimeoutError:
                    continue
                visit.turn.clear()
        finally:
            if self._served is visit:
                self._served = None
            now_s = self._clock.now()
            self._queue.leave(waiter, now_s, is_served=is_served)
            self._metrics.queue_wait_s.observe(now_s - visit.since_s)
            self._serve()

    def _choose(self, visit: _Visit, closed: Set[str]) -> Placed | None:
        life = visit.life
        closed = life.failed_keys | closed
        placed = self._placer.place(life.request, life.prefix, closed)
        if placed is None or placed.decode.room.holds(visit.whole):
            return placed
        fitting = {pod.key for pod in self._fitting(visit)}
        if placed.decode.key in fitting:
            return placed
        small = {pod.key for pod in self._placer.reach(life.prefix)} - fitting
        return self._placer.place(life.request, life.prefix, closed | small)

    def _take(self, visit: _Visit, placed: Placed) -> Placed:
        """Hold a placement against its SLO, and promise the request its blocks there; raises Refused."""
        life, now_s, pod = visit.life, self._clock.now(), placed.decode
        if life.attempt == 0:
            life.predicted_cached_tokens = placed.placement.cached_tokens
            if self.gate.judges:
                life.forecast = self.gate.admit(
                    placed.placement.prediction,
                    received_s=life.received_s,
                    now_s=now_s,
                    place=life.place,
                    is_let_in=life.is_let_in,
                )
        life.watch.stamp(Phase.PLACED, now_s)
        pod.room.promise(life.internal_id, visit.need.without(self._cached(visit, pod)), life.written)
        return placed

    def _patience_s(self, visit: _Visit) -> float:
        """Return how long it may still wait; raises what it is told when that is over."""
        life, now_s = visit.life, self._clock.now()
        if visit.refusal is not None:
            raise visit.refusal
        if now_s >= life.deadline_at_s:
            raise DeadlineExceeded(f"the deadline of {life.request.timeout_s:.3g} s passed before a pod was found")
        if self._room(visit):
            left_s = visit.since_s + self._config.max_wait_s - now_s
            if life.is_let_in:
                left_s = math.inf
            elif left_s <= 0:
                message = f"no pod had room for {visit.need.blocks} blocks of KV within {self._config.max_wait_s} s"
                raise Refused(Reason.QUEUE_WAIT, message, retry_after_s=self._queue.retry_after_s(now_s))
        else:
            # Waiting helps when a pod is missing, not when every pod has refused.
            left_s = visit.since_s + self._config.placement_wait_s - now_s
            if isinstance(life.error, Overloaded) or left_s <= 0:
                raise life.error or Unavailable("no decode pod is in reach", retry_after_s=1.0)
        return min(left_s, life.deadline_at_s - now_s)

    def _room(self, visit: _Visit) -> dict[str, bool]:
        """Return the pods that a request may have, and whether each has room for it."""
        return {pod.key: self._has_room(visit, pod) for pod in self._fitting(visit)}

    def _fitting(self, visit: _Visit) -> list[Pod]:
        """Return the pods whose pools hold all of a request together, all pods where there are none.

        On others it would go through host memory, if at all: a pool may be too small for several sequences, or for a
        prompt that is to be computed elsewhere.
        """
        life = visit.life
        pods = [pod for pod in self._placer.reach(life.prefix) if pod.key not in life.failed_keys]
        return [pod for pod in pods if pod.room.holds(visit.whole)] or pods

    def _has_room(self, visit: _Visit, pod: Pod) -> bool:
        need = visit.need.without(self._cached(visit, pod))
        return not self._config.kv_limit or pod.room.has_room(need.blocks)

    def _need(self, life: Life) -> KvNeed:
        return KvNeed.of(
            prompt_tokens=len(life.request.prompt),
            answer_tokens=life.answer_tokens,
            num_sequences=life.request.sampling.num_sequences,
            block_size=life.prefix.fingerprint.block_size,
        )

    @staticmethod
    def _whole(life: Life, need: KvNeed) -> int:
        sampling = life.request.sampling
        if not sampling.use_beam_search:
            return need.blocks
        # None gives way to the others, so an engine takes them if all fit at their longest, a block each to spare.
        longest = KvNeed.of(
            prompt_tokens=len(life.request.prompt),
            answer_tokens=sampling.max_tokens,
            num_sequences=sampling.num_beams,
            block_size=life.prefix.fingerprint.block_size,
        )
        return longest.blocks + sampling.num_beams

    @staticmethod
    def _cached(visit: _Visit, pod: Pod) -> int:
        prefix = visit.life.prefix
        return prefix.cached.get(pod.pod_id, 0) // prefix.fingerprint.block_size
