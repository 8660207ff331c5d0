"""A workload on a cluster that is not there: what each request would have come to.

Everything that decides is the product's own code; the costs of steps, links and frames are a `CostModel`'s. The same
composition, costs, workload and seed give the same records.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

from pagewire.core.load import Load
from pagewire.core.messages import Role, Submit
from pagewire.slo.costs.cost_model import CostModel
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.ttft_parts import ttft_parts_s
from pagewire.slo.simulation.composition import Composition
from pagewire.slo.simulation.decode_pod import DecodePod
from pagewire.slo.simulation.finish import timelines
from pagewire.slo.simulation.player import Player
from pagewire.slo.simulation.prefill_pod import PrefillPod
from pagewire.slo.simulation.request import SimRequest
from pagewire.slo.simulation.router import SimRouter
from pagewire.slo.simulation.surroundings import Surroundings
from pagewire.slo.workloads.workload import Workload

HEARTBEAT_S = 1.0  # between two words of a pod on its load
FIRST_HEARTBEAT_S = 0.05  # a pod says what it has as soon as it is linked


class Simulator:
    """One run of one cluster. With `is_fast` off every step is scheduled, for the proof that it makes no difference.

    No request is due from `duration_s` on. Without `is_detailed` records have neither gaps, which for long answers are
    most of their memory, nor parts of TTFT.
    """

    def __init__(
        self,
        composition: Composition,
        costs: CostModel,
        workload: Workload,
        seed: int = 0,
        *,
        is_fast: bool = True,
        is_detailed: bool = True,
        duration_s: float = math.inf,
    ) -> None:
        index_ids = {pod_id: number for number, pod_id in enumerate(composition.roles, start=1)}
        self._around = around = Surroundings(composition, costs, index_ids, seed, is_fast=is_fast)
        self._router = SimRouter(around, index_ids, self._deliver, self._over)
        self.prefill_pods = {
            pod_id: PrefillPod(pod_id, around) for pod_id, role in composition.roles.items() if role is Role.PREFILL
        }
        self.decode_pods = {
            pod_id: DecodePod(pod_id, role, around, self._router, self.prefill_pods)
            for pod_id, role in composition.roles.items()
            if role is not Role.PREFILL
        }
        self._player = Player(around.agenda, workload, self._router.root, self._router.ask, duration_s)
        self._random = random.Random(seed)
        self._is_detailed = is_detailed
        self._on_record: Callable[[Record], None] = lambda _: None
        self._on_request: Callable[[SimRequest], None] = lambda _: None

    @property
    def pods(self) -> list[PrefillPod | DecodePod]:
        """All of them."""
        return [*self.prefill_pods.values(), *self.decode_pods.values()]

    @property
    def is_cut(self) -> bool:
        """Whether there was more to ask than came before `duration_s`."""
        return self._player.is_cut

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return self._around.agenda.now()

    def run(self) -> list[Record]:
        """Return what became of every request, in the order in which they were over."""
        records: list[Record] = []
        self.play(records.append)
        return records

    def play(
        self, on_record: Callable[[Record], None], on_request: Callable[[SimRequest], None] = lambda _: None
    ) -> None:
        """Run to the end; `on_record` hears of each request as it is over. To be called once.

        `on_request` is given the request itself, whose moments say where the time went.
        """
        self._on_record, self._on_request = on_record, on_request
        agenda = self._around.agenda
        for pod in self.pods:
            agenda.at(0.0, self._say_load, pod)
            agenda.after(FIRST_HEARTBEAT_S + self._random.random() * HEARTBEAT_S, self._heartbeat, pod)
        self._player.begin()
        while not self._player.is_over and agenda.step():
            pass
        while not self._is_at_rest and agenda.step():
            pass  # heartbeats go on for ever
        self.check()

    def check(self) -> None:
        """Raise AssertionError unless the cluster is at rest: nothing is held, owed or on its way."""
        assert self._player.is_over, "requests are left over"
        assert self._router.is_at_rest, "the router has requests"
        for pod in self.pods:
            pool = pod.engine.pool
            pool.check()
            assert pod.is_at_rest, f"{pod.pod_id} is not at rest"
            assert pool.num_held == pool.num_reserved == 0, f"{pod.pod_id} has blocks that nobody owns"
            assert pool.num_free + pool.num_cached == pool.num_blocks, f"{pod.pod_id} has lost blocks"

    @property
    def _is_at_rest(self) -> bool:
        return self._router.is_at_rest and all(pod.is_at_rest for pod in self.pods)

    def _deliver(self, pod_id: str, request: SimRequest, submit: Submit) -> None:
        self.decode_pods[pod_id].submit(request, submit)

    def _heartbeat(self, pod: PrefillPod | DecodePod) -> None:
        if isinstance(pod, DecodePod):
            pod.tick()
        self._say_load(pod)
        self._around.agenda.after(HEARTBEAT_S, self._heartbeat, pod)

    def _say_load(self, pod: PrefillPod | DecodePod) -> None:
        load = pod.load()
        self._around.frame(self._hear_load, pod, load)
        if isinstance(pod, PrefillPod):
            for decode in self.decode_pods.values():
                self._around.frame(decode.on_heartbeat, pod.pod_id, load)

    def _hear_load(self, pod: PrefillPod | DecodePod, load: Load) -> None:
        pod.engine.catch_up()  # with a report the router looks at how far each answer is
        self._router.on_heartbeat(pod.pod_id, load)

    def _over(self, request: SimRequest) -> None:
        self._on_request(request)
        self._on_record(_record(request, self.now_s, is_detailed=self._is_detailed))
        self._player.over(request)


def _record(request: SimRequest, ended_s: float, *, is_detailed: bool) -> Record:
    tokens_s = request.tokens_s
    pairs = pairwise(tokens_s) if is_detailed else ()
    parts_s = ttft_parts_s(timelines(request)) if is_detailed and not request.error else None
    return Record(
        arrival=request.arrival,
        turn=request.turn,
        intended_s=request.due_s,
        sent_s=request.due_s,
        first_s=tokens_s[0] if tokens_s else None,
        last_s=tokens_s[-1] if tokens_s else None,
        gaps_s=tuple(after_s - before_s for before_s, after_s in pairs),
        input_tokens=len(request.asked.prompt),
        output_tokens=len(tokens_s),
        wanted_tokens=request.max_tokens,
        cached_tokens=None if request.error else request.cached_tokens,  # as a router says it: with a whole answer
        ttft_parts_s=parts_s,
        ended_s=ended_s,
        error=request.error,
        detail=request.detail,
        session=request.session,
        request_id=str(request.number),
    )
