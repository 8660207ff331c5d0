"""Where a simulated request gets its pods: at once, or after a wait for one that has room for it to its completion.

Placer, room, the queue and the gate are the product's; what `router/entrance.py` does with tasks is told anew: who
waits, for how long, and who is next. Invariant: of each request that came in one hears, that it is placed or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from pagewire.core.errors import PagewireError, Unavailable
from pagewire.router.config import RouterConfig
from pagewire.router.kv_room import KvNeed
from pagewire.router.placing import Placed, Placer
from pagewire.router.pod import Pod
from pagewire.router.pods import PodPool
from pagewire.router.refusals import Reason, Refused
from pagewire.router.roster import DECODES
from pagewire.router.slo_gate import SloGate
from pagewire.router.wait_queue import Waiter, WaitQueue
from pagewire.slo.simulation.request import SimRequest
from pagewire.slo.simulation.surroundings import Surroundings


class _Tally:
    """Counts what the gate does, for nobody."""

    def slo_outcome(self, slo: str, *, predicted_miss: bool, actual_miss: bool) -> None:
        """A request that was let in has met or missed an objective."""

    def slo_probe(self, slo: str) -> None:
        """A request passed that would have been refused."""


@dataclass(slots=True, eq=False)
class _Visit:
    """A request that wants pods."""

    request: SimRequest
    need: KvNeed
    since_s: float
    is_over: bool = False


class SimEntrance:
    """One router's; a request that is placed goes to `on_placed`, any other to `on_refused`, with the reason."""

    def __init__(
        self,
        around: Surroundings,
        config: RouterConfig,
        pool: PodPool,
        placer: Placer,
        on_placed: Callable[[SimRequest, Placed], None],
        on_refused: Callable[[SimRequest, PagewireError], None],
    ) -> None:
        self._around = around
        self._config = config
        self._pool = pool
        self._placer = placer
        self._on_placed = on_placed
        self._on_refused = on_refused
        self.gate = SloGate(
            ttft_s=config.slo_ttft_s,
            gap_s=config.slo_gap_s,
            tpot_s=config.slo_tpot_s,
            may_refuse=around.composition.admission,
            tally=_Tally(),
        )
        self._queue: WaitQueue[_Visit] = WaitQueue(config.max_waiting)
        self._waiters: dict[_Visit, Waiter[_Visit]] = {}
        pool.on_change(self._changed)

    @property
    def num_waiting(self) -> int:
        """Requests that want pods."""
        return len(self._queue)

    def leave(self, request: SimRequest, pod: Pod) -> None:
        """A request that was placed is over: what it was promised is there for others."""
        pod.room.release(str(request.number))
        self._changed(pod)

    def place(self, request: SimRequest) -> None:
        """Find pods for a request, now or when it is its turn."""
        need = KvNeed.of(
            prompt_tokens=len(request.asked.prompt),
            answer_tokens=request.max_tokens,
            num_sequences=1,
            block_size=self._around.composition.block_size,
        )
        visit = _Visit(request, need, self._around.agenda.now())
        try:
            if not len(self._queue):
                placed = self._choose(visit, frozenset())
                if placed is not None and not self._has_room(visit, placed.decode):
                    placed = self._choose(visit, {key for key, has_room in self._room(visit).items() if not has_room})
                if placed is not None:
                    self._take(visit, placed)
                    return
            if not self._room(visit):
                raise Unavailable("every pod has refused")
            self._wait(visit)
        except PagewireError as error:
            self._on_refused(request, error)

    def _wait(self, visit: _Visit) -> None:
        waiter, evicted = self._queue.join(
            visit, arrived_s=visit.request.due_s, priority=visit.request.asked.priority, now_s=visit.since_s
        )
        self._waiters[visit] = waiter
        if evicted is not None:
            self._give_up(evicted.what, Refused(Reason.OVERTAKEN, "overtaken", retry_after_s=1.0))
        self._around.agenda.after(self._config.max_wait_s, self._too_long, visit)
        self._serve()

    def _too_long(self, visit: _Visit) -> None:
        if not visit.is_over:
            self._give_up(visit, Refused(Reason.QUEUE_WAIT, "no pod had room", retry_after_s=1.0))
            self._serve()

    def _give_up(self, visit: _Visit, error: PagewireError) -> None:
        self._depart(visit, is_served=False)
        self._on_refused(visit.request, error)

    def _depart(self, visit: _Visit, *, is_served: bool) -> None:
        visit.is_over = True
        self._queue.leave(self._waiters.pop(visit), self._around.agenda.now(), is_served=is_served)

    def _changed(self, pod: Pod) -> None:
        if any(self._has_room(visit, pod) for visit in self._queue):
            self._serve()

    def _serve(self) -> None:
        while len(self._queue):
            found = self._queue.next(self._room, len(self._pool.usable(*DECODES)))
            if found is None:
                self._queue.wait(self._around.agenda.now())
                return
            visit, closed = found
            placed = self._choose(visit, closed)
            if placed is None:
                return
            self._depart(visit, is_served=True)
            try:
                self._take(visit, placed)
            except PagewireError as error:
                self._on_refused(visit.request, error)

    def _choose(self, visit: _Visit, closed: Set[str]) -> Placed | None:
        request = visit.request
        assert request.prefix is not None
        return self._placer.place(request.asked, request.prefix, request.failed_keys | closed)

    def _room(self, visit: _Visit) -> dict[str, bool]:
        prefix = visit.request.prefix
        assert prefix is not None
        pods = [pod for pod in self._placer.reach(prefix) if pod.key not in visit.request.failed_keys]
        return {pod.key: self._has_room(visit, pod) for pod in pods}

    def _has_room(self, visit: _Visit, pod: Pod) -> bool:
        need = visit.need.without(self._cached(visit, pod))
        return not self._config.kv_limit or pod.room.has_room(need.blocks)

    def _cached(self, visit: _Visit, pod: Pod) -> int:
        prefix = visit.request.prefix
        assert prefix is not None
        return prefix.cached.get(pod.pod_id, 0) // prefix.fingerprint.block_size

    def _take(self, visit: _Visit, placed: Placed) -> None:
        """Hold a placement against its SLO, and promise the request its blocks there; raises Refused."""
        request, pod = visit.request, placed.decode
        if request.attempts == 0 and self.gate.judges:
            now_s = self._around.agenda.now()
            request.forecast = self.gate.admit(
                placed.placement.prediction, received_s=request.due_s, now_s=now_s, place=request.place
            )
        pod.room.promise(str(request.number), visit.need.without(self._cached(visit, pod)), request.written)
        self._on_placed(request, placed)
