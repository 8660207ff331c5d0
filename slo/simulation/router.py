"""The router in virtual time: requests in, pods chosen, tokens on to whoever asked.

Placer, policies, pods as a router has them, their room, the queue before them, the gate, the limits and the retry
budget are the product's. What is told anew here is what `dispatch.py` and `entrance.py` do with tasks: who waits, for
how long, and who is next. Requests are taken in one after another, as by one thread. Invariant: every request that
came is over exactly once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from typing import cast

from pagewire.core.block_hash import HASH_VERSION, chain, root_hash
from pagewire.core.errors import PagewireError, Unavailable, status_of
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.load import Load
from pagewire.core.messages import Heartbeat, LinkMessage, Role, Submit
from pagewire.router.admission import Admission, RetryBudget
from pagewire.router.cache_watch import CacheWatch
from pagewire.router.config import PrefillMode, RouterConfig
from pagewire.router.ejection import Ejection
from pagewire.router.inbox import Inbox
from pagewire.router.kv_room import KvNeed
from pagewire.router.lookup import Prefix
from pagewire.router.outliers import Rules
from pagewire.router.placing import Placed, Placer
from pagewire.router.pod import Pod
from pagewire.router.pods import PodPool
from pagewire.router.policies.named import policy_named, targets_of
from pagewire.router.prefix_index import held, probes
from pagewire.router.refusals import Reason, Refused
from pagewire.router.roster import DECODES
from pagewire.router.slo_gate import SloGate
from pagewire.router.wait_queue import Waiter, WaitQueue
from pagewire.serving.link import Link
from pagewire.serving.registration import Registration
from pagewire.slo.composition import Composition
from pagewire.slo.simulation.finish import finished
from pagewire.slo.simulation.request import SimRequest
from pagewire.slo.simulation.surroundings import Surroundings

ROUTER_SECRET = "simulation"  # settings that nothing here is kept secret with


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Welcome:
    """What a pod says of itself when it links."""

    peer_id: str
    incarnation: str
    fingerprint: Fingerprint
    epoch: int = 1


class _SimLink:
    """A link that is always up, and takes `Submit` to its pod."""

    is_up = True
    reason = ""

    def __init__(self, peer: _Welcome, deliver: Callable[[Submit], None]) -> None:
        self.peer = peer
        self._deliver = deliver

    def send(self, message: LinkMessage) -> None:
        """Send a frame."""
        assert isinstance(message, Submit), f"nothing here sends {message}"
        self._deliver(message)


class _Tally:
    """Counts what the gate does, for nobody."""

    def slo_outcome(self, slo: str, *, predicted_miss: bool, actual_miss: bool) -> None:
        """A request that was let in has met or missed an objective."""

    def slo_probe(self, slo: str) -> None:
        """A request passed that would have been refused."""


@dataclasses.dataclass(slots=True, eq=False)
class _Visit:
    """A request that wants pods."""

    request: SimRequest
    need: KvNeed
    since_s: float
    is_over: bool = False


class SimRouter:
    """One router; `deliver` carries what is submitted to pods, `on_over` hears of each request at its end."""

    def __init__(
        self,
        around: Surroundings,
        index_ids: Mapping[str, int],
        deliver: Callable[[str, SimRequest, Submit], None],
        on_over: Callable[[SimRequest], None],
    ) -> None:
        self._around = around
        self._deliver = deliver
        self._on_over = on_over
        self._requests: dict[str, SimRequest] = {}  # submitted and not ended, by the attempt's id
        composition = around.composition
        self._config = config = config_of(composition)
        self._admission = Admission(config.max_concurrent)
        self._budget = RetryBudget(ratio=config.retry_ratio, burst=config.retry_burst)
        self._fingerprint = fingerprint_of(composition, around.layout.fingerprint())
        self.root = root_hash(model_digest="simulated", kv_fingerprint=self._fingerprint.kv_fingerprint)
        self._pool = PodPool(
            name="", tokenizer_digest="", cache_watch=CacheWatch(), ejection=Ejection(Rules(), around.agenda)
        )
        self._pods: dict[str, Pod] = {}
        self._links: dict[str, Link] = {}
        for pod_id, role in composition.roles.items():
            self._add(pod_id, role, index_ids[pod_id])
        self._placer = Placer(self._pool, policy_named(config), mode=config.prefill_mode, targets=targets_of(config))
        self._learns = config.policy == "slo" or config.slo_ttft_s > 0 or config.slo_tpot_s > 0
        self._gate = SloGate(
            ttft_s=config.slo_ttft_s,
            gap_s=config.slo_gap_s,
            tpot_s=config.slo_tpot_s,
            may_refuse=composition.admission,
            tally=_Tally(),
        )
        self._queue: WaitQueue[_Visit] = WaitQueue(config.max_waiting)
        self._waiters: dict[_Visit, Waiter[_Visit]] = {}
        self._taking_in_until_s = 0.0
        self._pool.on_change(self._changed)

    @property
    def is_at_rest(self) -> bool:
        """True when no request is in."""
        return not (self._admission.active or self._requests or len(self._queue))

    def on_heartbeat(self, pod_id: str, load: Load) -> None:
        """A pod has said what it has to do."""
        self._pool.events(self._pods[pod_id]).on_message(self._links[pod_id], Heartbeat(load=load))

    # -------------------------------------------------------------------------------------------- a request's beginning

    def ask(self, request: SimRequest) -> None:
        """Take a request of a caller."""
        now_s, costs = self._around.agenda.now(), self._around.costs
        try:
            self._admission.enter(now_s)
        except PagewireError as error:
            self._over(request, error)
            return
        work_s = costs.intake_s + costs.intake_token_s * len(request.asked.prompt)
        self._taking_in_until_s = max(self._taking_in_until_s, now_s) + work_s
        self._around.agenda.at(self._taking_in_until_s, self._look_up, request)

    def _look_up(self, request: SimRequest) -> None:
        self._budget.earn()
        cached: Mapping[str, int] = {}
        if request.has_first_seen:  # else nobody can have cached anything of it
            prompt, size = request.asked.prompt, self._fingerprint.block_size
            asked = probes(chain(self.root, prompt, size), len(prompt), size)
            answers = [sorted(self._around.index.get(probe.block_hash, ())) for probe in asked]
            cached = held(asked, answers, self._pool.index_members(), len(prompt), size).tokens
        request.prefix = Prefix(root=self.root, cached=cached, on_host={}, fingerprint=self._fingerprint)
        self._place(request)

    # -------------------------------------------------------------------------------------------------- the entrance

    def _place(self, request: SimRequest) -> None:
        need = KvNeed.of(
            prompt_tokens=len(request.asked.prompt),
            answer_tokens=request.max_tokens,
            num_sequences=1,
            block_size=self._fingerprint.block_size,
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
            self._leave(request, error)

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
        self._leave(visit.request, error)

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
                self._leave(visit.request, error)

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

    # ------------------------------------------------------------------------------------------------------ an attempt

    def _take(self, visit: _Visit, placed: Placed) -> None:
        """Hold a placement against its SLO, promise the request its blocks there, and submit it; raises Refused."""
        request, now_s, pod = visit.request, self._around.agenda.now(), placed.decode
        if request.attempts == 0 and self._gate.judges:
            request.forecast = self._gate.admit(placed.placement.prediction, received_s=request.due_s, now_s=now_s)
        pod.room.promise(str(request.number), visit.need.without(self._cached(visit, pod)), request.written)
        request.placed, request.submitted_s = placed, now_s
        request.attempts += 1
        if request.attempts > 1:
            request.spec = dataclasses.replace(request.spec, request_id=f"{request.number}.{request.attempts}")
        placed.prefill_begins(len(request.asked.prompt))
        request.is_building = True
        self._requests[request.request_id] = request
        submit = Submit(
            spec=request.spec,
            candidates=placed.placement.candidates,
            prefill=placed.mode.value,
        )
        pod.submit(submit, cast(Inbox, request))  # counted, and never put to

    def tokens(self, request: SimRequest, at_s: list[float]) -> None:
        """A pod has sampled tokens; whoever asked has them at `at_s`."""
        if not request.tokens_s:
            self._around.agenda.at(at_s[0], self._first_came, request)
        request.tokens_s += at_s
        if request.forecast is not None:
            for each_s in at_s:
                self._around.agenda.at(each_s, request.forecast.tokens_came, each_s)

    def _first_came(self, request: SimRequest) -> None:
        if request.is_building and request.placed is not None:
            request.is_building = False
            request.placed.prefill_is_over(len(request.asked.prompt))

    def ended(self, request: SimRequest, error: PagewireError | None) -> None:
        """A pod has said its last word of a request."""
        placed, now_s = request.placed, self._around.agenda.now()
        assert placed is not None
        self._first_came(request)
        del self._requests[request.request_id]
        placed.decode.close_inbox(request.request_id)
        placed.decode.room.release(str(request.number))
        self._changed(placed.decode)
        if error is not None:
            retries = status_of(error).retryable and request.attempts < self._config.max_attempts
            if retries and self._budget.spend():
                request.failed_keys.add(placed.key)
                self._place(request)
                return
        elif self._learns:
            if request.forecast is not None:
                request.forecast.finished(len(request.tokens_s), now_s)
            self._placer.learn(placed, finished(request))
        self._leave(request, error)

    def _leave(self, request: SimRequest, error: PagewireError | None) -> None:
        self._admission.leave(self._around.agenda.now())
        self._over(request, error)

    def _over(self, request: SimRequest, error: PagewireError | None) -> None:
        assert not request.is_over, f"request {request.number} is over twice"
        request.is_over = True
        request.error = error.cause if error is not None else ""
        self._on_over(request)

    # ------------------------------------------------------------------------------------------------------- the pods

    def _add(self, pod_id: str, role: Role, index_id: int) -> None:
        registration = Registration(
            pod_id=pod_id,
            incarnation="1",
            role=role,
            address=pod_id,
            metrics="",
            fingerprint=self._fingerprint,
            index_id=index_id,
        )
        pod = self._pods[pod_id] = self._pool.add(registration)
        self._pool.settle()
        peer = _Welcome(peer_id=pod_id, incarnation="1", fingerprint=self._fingerprint)
        link = self._links[pod_id] = cast(Link, _SimLink(peer, lambda submit: self._submitted(pod_id, submit)))
        self._pool.events(pod).on_up(link)

    def _submitted(self, pod_id: str, submit: Submit) -> None:
        self._around.frame(self._deliver, pod_id, self._requests[submit.spec.request_id], submit)


def config_of(composition: Composition) -> RouterConfig:
    """Return the settings of a router of such a cluster; without admission, its bounds are out of reach."""
    config = RouterConfig(
        model=("simulated",),
        cluster_secret=ROUTER_SECRET,
        policy=composition.policy,
        prefill_mode=PrefillMode(composition.prefill_mode),
        slo_ttft_s=composition.slo_ttft_s,
        slo_tpot_s=composition.slo_tpot_s,
        kv_limit=composition.admission,
    )
    return config if composition.admission else dataclasses.replace(config, max_concurrent=1 << 60, max_waiting=1 << 60)


def fingerprint_of(composition: Composition, kv_fingerprint: str) -> Fingerprint:
    """Return what all pods of the cluster serve."""
    return Fingerprint(
        model_name="simulated",
        model_digest="simulated",
        tokenizer_digest="",
        kv_fingerprint=kv_fingerprint,
        kv_layout="",
        block_size=composition.block_size,
        hash_version=HASH_VERSION,
        max_model_len=composition.max_model_len,
    )
