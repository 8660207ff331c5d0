"""A decode or colocated pod in virtual time: it owns requests. What `decode_service` does with frames and tasks.

The engine, the reservations, the incoming shipments, the costs and the choice between local and remote are the
product's; the queue before the pool is `decode_service/admission.py` without its tasks: the first in rank asks, again
whenever blocks may have come free. Invariant: every request that was taken ends in exactly one word to the router.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import insort
from collections.abc import Iterable, Mapping
from typing import Protocol

from pagewire.core.engine_messages import Bind, Join, Reserve, Reserved, StepDone
from pagewire.core.errors import Overloaded, PagewireError
from pagewire.core.load import Load
from pagewire.core.messages import Candidate, Role, Submit
from pagewire.decode_service.prefill_costs import PrefillCosts
from pagewire.engine.scheduling_policy import policy_named
from pagewire.kvtransfer import effects as fx
from pagewire.kvtransfer.effects import Outcome, Verdict
from pagewire.kvtransfer.link_cost import LinkCost, LinkMeter
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.slo.simulation.engine import SimEngine
from pagewire.slo.simulation.prefill_pod import PrefillPod
from pagewire.slo.simulation.request import SimRequest
from pagewire.slo.simulation.surroundings import Surroundings

RETRY_AFTER_S = 1.0
DEADLINE_S = 1e9  # nobody gives up here


class Requester(Protocol):
    """The router, as a pod speaks to it. Each is a frame away."""

    def tokens(self, request: SimRequest, at_s: list[float]) -> None:
        """Tokens were sampled; whoever asked has them at `at_s`."""
        ...

    def ended(self, request: SimRequest, error: PagewireError | None) -> None:
        """The pod has said its last word of a request."""
        ...


class _Peer:
    """A prefill pod as this pod knows it."""

    def __init__(self, pod: PrefillPod) -> None:
        self.pod = pod
        self.load: Load | None = None
        self.meter = LinkMeter()

    @property
    def belief(self) -> float:
        """As a real pod's; nothing rests here."""
        return self.meter.belief


class DecodePod:
    """One pod; `prefill_pods` are those of the cluster, by name."""

    def __init__(
        self,
        pod_id: str,
        role: Role,
        around: Surroundings,
        router: Requester,
        prefill_pods: Mapping[str, PrefillPod],
    ) -> None:
        self.pod_id = pod_id
        self.role = role
        self.engine: SimEngine = around.engine(pod_id, role, self)
        self._around = around
        self._router = router
        self._prefill_pods = prefill_pods
        self._peers: dict[str, _Peer] = {}
        self._costs = PrefillCosts(around.layout, self._load_now, self)
        self._scheduling = policy_named(around.composition.scheduling)
        self._requests: dict[str, SimRequest] = {}
        self._submits: dict[str, Submit] = {}
        self._queue: list[tuple[float, int, SimRequest]] = []  # who has no blocks yet, first in rank first
        self._numbers = itertools.count()
        self._counted: tuple[float, Load] = (-1.0, Load())  # when that was counted last, and what it was
        self._shipments: dict[ShipmentKey, SimRequest] = {}

    @property
    def is_at_rest(self) -> bool:
        """True when nothing is owned, waited for or on its way."""
        return not (self._requests or self._queue or self._shipments)

    @property
    def waits_for_blocks(self) -> bool:
        """True while some request has no blocks yet."""
        return bool(self._queue)

    def load(self) -> Load:
        """Return what the pod tells others."""
        load = self.engine.load()
        costs = [peer.meter.cost for peer in self._peers.values() if peer.meter.is_measured]
        if not costs:
            return load
        rtt_s = sum(cost.rtt_s for cost in costs) / len(costs)
        s_per_byte = sum(cost.s_per_byte for cost in costs) / len(costs)
        return dataclasses.replace(
            load, link_rtt_s=rtt_s, link_s_per_token=s_per_byte * self._around.layout.token_bytes
        )

    def _load_now(self) -> Load:
        """Return what predictions look at, counted once for all who ask at one moment."""
        now_s = self._around.agenda.now()
        if self._counted[0] != now_s:
            self._counted = now_s, self.engine.prefill_load()
        return self._counted[1]

    # ------------------------------------------------------------------------------- what it knows of prefill pods

    def all(self) -> Mapping[str, _Peer]:
        """Return the prefill pods that were met."""
        return self._peers

    def known(self, pod_id: str, address: str) -> _Peer | None:
        """Return a prefill pod that was met."""
        return self._peers.get(pod_id)

    def cost(self, pod_id: str, address: str) -> LinkCost:
        """Return what taking blocks from a pod is known to cost."""
        peer = self._peers.get(pod_id)
        return peer.meter.cost if peer is not None else LinkCost()

    def tick(self) -> None:
        """Time has passed: corrections of what prompts cost fade where nothing comes."""
        self._costs.tick(self._around.agenda.now())

    def on_heartbeat(self, pod_id: str, load: Load) -> None:
        """A prefill pod has said what it has to do."""
        if (peer := self._peers.get(pod_id)) is not None:
            peer.load = load
            peer.pod.on_heartbeat(self.pod_id)

    # ------------------------------------------------------------------------------------------- a request's beginning

    def submit(self, request: SimRequest, submit: Submit) -> None:
        """Take a request from the router's frame."""
        request.accepted_s = self._around.agenda.now()
        self._requests[request.request_id] = request
        self._submits[request.request_id] = submit
        self._around.answers[request.request_id] = request.answer
        candidates = self._candidates(request, submit, 0) if request.max_tokens == 1 else ()
        if candidates:  # its only token is sampled elsewhere, and no block held here
            self._run_on(request, candidates[0], ships=False)
            return
        self._wait(request)

    def _wait(self, request: SimRequest) -> None:
        if len(self._queue) >= self._around.composition.max_num_waiting:
            message = f"{len(self._queue)} requests wait for KV blocks already"
            self._end(request, Overloaded(message, retry_after_s=RETRY_AFTER_S))
            return
        now_s, spec = self._around.agenda.now(), request.spec
        rank_s = now_s + self._scheduling.handicap_s(spec.priority, len(spec.tokens) + len(spec.output))
        insort(self._queue, (rank_s, next(self._numbers), request))
        self._admit()

    def _admit(self) -> None:
        """Let those ask for blocks whose turn it is, until one has to wait."""
        while self._queue:
            request = self._queue[0][2]
            reserved = self.engine.loop.reserve(Reserve(spec=request.spec))
            error = reserved.error.error() if reserved.error is not None else None
            if isinstance(error, Overloaded):
                self.engine.kick()  # it asks again after the step that runs
                return
            self._queue.pop(0)
            self.engine.kick()  # it may have evicted, and tells so
            if error is not None:
                self._end(request, error)
                continue
            # The question and its answer are a frame each; the blocks are taken at once.
            self._around.agenda.after(2 * self._around.costs.frame_s, self._reserved, request, reserved)

    def _reserved(self, request: SimRequest, reserved: Reserved) -> None:
        request.reserved_s = self._around.agenda.now()
        request.hit_blocks = reserved.hit_blocks
        submit = self._submits[request.request_id]
        candidates = () if request.max_tokens == 1 else self._candidates(request, submit, reserved.hit_blocks)
        if candidates:
            self._run_on(request, candidates[0], ships=True)
        else:
            self._join(request, reserved.hit_blocks * self._around.layout.block_size, ())

    def _candidates(self, request: SimRequest, submit: Submit, cached_blocks: int) -> tuple[Candidate, ...]:
        """Return who is to build the prompt, the soonest first; nobody when it is built here."""
        num_tokens = len(request.spec.tokens)
        if submit.prefill == "local" or not submit.candidates:
            return ()
        there = sorted((self._costs.remote_s(num_tokens, each, ()), at) for at, each in enumerate(submit.candidates))
        here_s = self._costs.local_s(num_tokens, cached_blocks, ())
        is_known = self._costs.s_per_token > 0
        if is_known:
            request.predicted_local_s, request.predicted_remote_s = here_s, there[0][0]
            request.chosen_s = self._around.agenda.now()
        if submit.prefill == "remote":
            return submit.candidates
        if is_known and here_s <= there[0][0]:
            return ()
        return tuple(submit.candidates[at] for _, at in there)

    # ---------------------------------------------------------------------------------------------------- a shipment

    def _run_on(self, request: SimRequest, candidate: Candidate, *, ships: bool) -> None:
        pod = self._prefill_pods[candidate.pod_id]
        if candidate.pod_id not in self._peers:
            self._peers[candidate.pod_id] = _Peer(pod)
        request.prefill_pod = candidate.pod_id
        num_blocks = self._around.layout.num_blocks(len(request.spec.tokens))
        shipment = request.incoming = IncomingShipment(
            request_id=request.request_id,
            generation=request.attempts,
            shipment_id=request.number,
            first_block=request.hit_blocks,
            max_blocks=num_blocks - request.hit_blocks,
            deadline_s=DEADLINE_S,
        )
        self._shipments[ShipmentKey(shipment.shipment_id, shipment.generation)] = request
        self._around.frame(lambda: pod.run(request, self, ships=ships))

    def accepted(self, request: SimRequest) -> None:
        """The prefill pod queued the prompt."""
        if request.incoming is not None:
            self._peers[request.prefill_pod].meter.answered(2 * self._around.costs.frame_s)
            self._act(request, request.incoming.accepted())

    def chunk_ready(self, request: SimRequest, first_block: int, num_blocks: int) -> None:
        """Blocks are announced."""
        if request.incoming is not None:
            now_s = self._around.agenda.now()
            self._act(request, request.incoming.chunk_ready(first_block, num_blocks, now_s))

    def first_token(self, request: SimRequest, num_blocks: int) -> None:
        """The first token is there, and goes on to whoever asked, before its KV is here."""
        now_s = self._around.agenda.now()
        request.first_received_s = now_s
        self._costs.there.observe(request.predicted_remote_s, now_s - request.chosen_s)
        self._router.tokens(request, [now_s + 2 * self._around.costs.frame_s])
        if request.incoming is not None:
            self._act(request, request.incoming.first_token(num_blocks, now_s))

    def deliver(self, key: ShipmentKey, indices: range, at_s: float) -> None:
        """A message of the bulk stream arrived at `at_s`."""
        request = self._shipments.get(key)
        if request is None or request.incoming is None:
            return
        shipment = request.incoming
        for index in indices:
            verdict, _ = shipment.claim(index)
            assert verdict is Verdict.PLACE, f"block {index} of {request.request_id} is {verdict}"
            if effects := shipment.settle(index, True, at_s):
                self._act(request, effects)

    def _act(self, request: SimRequest, effects: fx.Effects) -> None:
        shipment = request.incoming
        assert shipment is not None
        for effect in effects:
            match effect:
                case fx.AskBind(num_blocks=num_blocks):
                    bound = self.engine.loop.bind(Bind(request_id=request.request_id, num_blocks=num_blocks))
                    self.engine.kick()
                    self._act(request, shipment.bound(bound.block_ids))
                case fx.Detach():
                    del self._shipments[ShipmentKey(shipment.shipment_id, shipment.generation)]
                case fx.SendLanded():
                    self._around.frame(self._prefill_pods[request.prefill_pod].landed, request)
                case fx.HandOver(outcome=outcome, kept_blocks=kept):
                    shipment.close()
                    self._handed_over(request, outcome, kept)
                case _:
                    raise AssertionError(f"nothing here asks for {effect}")

    def _handed_over(self, request: SimRequest, outcome: Outcome, kept_blocks: int) -> None:
        shipment = request.incoming
        assert shipment is not None
        if outcome is Outcome.FINISHED:
            self._end(request, None)
            return
        num_bytes = kept_blocks * self._around.layout.block_bytes
        self._peers[request.prefill_pod].meter.landed(num_bytes, shipment.transfer_s)
        self._join(request, len(request.spec.tokens), (request.answer,))

    def _join(self, request: SimRequest, num_computed: int, output: tuple[int, ...]) -> None:
        request.joined_s = self._around.agenda.now()
        self._around.frame(self._joins, Join(request_id=request.request_id, num_computed=num_computed, output=output))

    def _joins(self, join: Join) -> None:
        self.engine.loop.join(join)
        self.engine.kick()

    # ---------------------------------------------------------------------------------------------------- the engine

    def on_step(self, step: StepDone) -> None:
        """Pass on what a step sampled."""
        self._around.publish(self.pod_id, step.stored, step.evicted)
        self.on_tokens([record.request_id for record in step.records if record.tokens], [self._around.agenda.now()])
        for end in step.ends:
            if end.error is not None:
                self._end(self._requests[end.request_id], end.error.error())
            else:
                self.on_end(end.request_id, end.cached_tokens)
        self._admit()

    def on_tokens(self, request_ids: Iterable[str], at_s: list[float]) -> None:
        """Pass on tokens that were sampled at `at_s`, one of each request at each moment."""
        way_s = 2 * self._around.costs.frame_s
        heard_s = [each + way_s for each in at_s]
        for request_id in request_ids:
            request = self._requests[request_id]
            if request.first_step_s is None:
                request.first_step_s = at_s[0]
                if not request.prefill_pod:
                    self._costs.here.observe(request.predicted_local_s, at_s[0] - request.chosen_s)
            self._router.tokens(request, heard_s)

    def on_end(self, request_id: str, cached_tokens: int) -> None:
        """A request has its last token. What was cached counts where its prompt was built."""
        request = self._requests[request_id]
        if not request.prefill_pod:
            request.cached_tokens = cached_tokens
        self._end(request, None)

    def on_cached(self) -> None:
        """What is new of the cache is published, and whoever waits for blocks asks again."""
        stored, evicted = self.engine.pool.drain_events()
        self._around.publish(self.pod_id, stored, evicted)
        self._admit()

    def _end(self, request: SimRequest, error: PagewireError | None) -> None:
        del self._requests[request.request_id], self._submits[request.request_id]
        self._around.answers.pop(request.request_id, None)
        self._around.agenda.after(2 * self._around.costs.frame_s, self._router.ended, request, error)
