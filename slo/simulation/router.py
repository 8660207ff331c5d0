"""The router in virtual time: requests in, pods chosen, tokens on to whoever asked.

Placer, policies, the limits and the retry budget are the product's. What is told anew here is what `dispatch.py` does
with tasks. Requests are taken in one after another, as by one thread. Invariant: every request that came is over
exactly once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import cast

from pagewire.core.block_hash import chain, root_hash
from pagewire.core.errors import ContextTooLong, PagewireError, status_of
from pagewire.core.load import Load
from pagewire.core.messages import Submit
from pagewire.router.admission import Admission
from pagewire.router.config import PrefillMode, RouterConfig
from pagewire.router.inbox import Inbox
from pagewire.router.lookup import Prefix
from pagewire.router.placing import Placed, Placer
from pagewire.router.policies.named import policy_named, targets_of
from pagewire.router.prefix_index import held, probes
from pagewire.router.retry_budget import RetryBudget
from pagewire.slo.simulation.composition import Composition
from pagewire.slo.simulation.entrance import SimEntrance
from pagewire.slo.simulation.finish import finished
from pagewire.slo.simulation.fleet import SimFleet
from pagewire.slo.simulation.request import SimRequest
from pagewire.slo.simulation.surroundings import Surroundings

ROUTER_SECRET = "simulation"  # settings that nothing here is kept secret with


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
        self._config = config = config_of(around.composition)
        self._admission = Admission(config.max_concurrent)
        self._budget = RetryBudget(ratio=config.retry_ratio, burst=config.retry_burst)
        self._fleet = SimFleet(around, index_ids, self._submitted)
        self._fingerprint = self._fleet.fingerprint
        self.root = root_hash(model_digest="simulated", kv_fingerprint=self._fingerprint.kv_fingerprint)
        pool = self._fleet.pool
        self._placer = Placer(pool, policy_named(config), mode=config.prefill_mode, targets=targets_of(config))
        self._entrance = SimEntrance(around, config, pool, self._placer, self._placed, self._leave)
        self._learns = config.policy == "slo" or config.slo_ttft_s > 0 or config.slo_tpot_s > 0
        self._taking_in_until_s = 0.0

    @property
    def is_at_rest(self) -> bool:
        """True when no request is in."""
        return not (self._admission.active or self._requests or self._entrance.num_waiting)

    def on_heartbeat(self, pod_id: str, load: Load) -> None:
        """A pod has said what it has to do."""
        self._fleet.on_heartbeat(pod_id, load)

    # -------------------------------------------------------------------------------------------- a request's beginning

    def ask(self, request: SimRequest) -> None:
        """Take a request of a caller."""
        now_s, costs = self._around.agenda.now(), self._around.costs
        longest, num_prompt = self._fingerprint.max_model_len, len(request.asked.prompt)
        if num_prompt + request.max_tokens > longest:
            said = f"the prompt has {num_prompt}; max_tokens is {request.max_tokens}"
            self._over(request, ContextTooLong(said, max_tokens=longest))
            return
        try:
            self._admission.enter(now_s)
        except PagewireError as error:
            self._over(request, error)
            return
        try:
            request.place = self._entrance.gate.enter(now_s)
        except PagewireError as error:
            self._leave(request, error)
            return
        work_s = costs.intake_s + costs.intake_token_s * num_prompt
        self._taking_in_until_s = max(self._taking_in_until_s, now_s) + work_s
        self._around.agenda.at(self._taking_in_until_s, self._look_up, request)

    def _look_up(self, request: SimRequest) -> None:
        self._budget.earn()
        request.looked_up_s = self._around.agenda.now()
        cached: Mapping[str, int] = {}
        if request.has_first_seen:  # else nobody can have cached anything of it
            prompt, size = request.asked.prompt, self._fingerprint.block_size
            asked = probes(chain(self.root, prompt, size))
            answers = [sorted(self._around.index.get(probe.block_hash, ())) for probe in asked]
            cached = held(asked, answers, self._fleet.pool.index_members(), len(prompt), size).tokens
        request.prefix = Prefix(root=self.root, cached=cached, on_host={}, fingerprint=self._fingerprint)
        self._entrance.place(request)

    # ------------------------------------------------------------------------------------------------------ an attempt

    def _placed(self, request: SimRequest, placed: Placed) -> None:
        """Submit a request to the pods that it was placed on."""
        request.placed, request.submitted_s = placed, self._around.agenda.now()
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
        placed.decode.submit(submit, cast(Inbox, request))  # counted, and never put to

    def _submitted(self, pod_id: str, submit: Submit) -> None:
        self._around.frame(self._deliver, pod_id, self._requests[submit.spec.request_id], submit)

    def tokens(self, request: SimRequest, at_s: list[float]) -> None:
        """A pod has sampled tokens; whoever asked has them at `at_s`."""
        if not request.tokens_s:
            self._around.agenda.at(at_s[0], self._first_came, request)
            self._around.agenda.at(at_s[0], self._served, request)
        request.tokens_s += at_s
        if request.forecast is not None:
            for each_s in at_s:
                self._around.agenda.at(each_s, request.forecast.tokens_came, each_s)

    def _first_came(self, request: SimRequest) -> None:
        if request.is_building and request.placed is not None:
            request.is_building = False
            request.placed.prefill_is_over(len(request.asked.prompt))

    def _served(self, request: SimRequest) -> None:
        if not request.is_over and request.place is not None:
            self._entrance.gate.places.serve(request.place, self._around.agenda.now())

    def ended(self, request: SimRequest, error: PagewireError | None) -> None:
        """A pod has said its last word of a request."""
        placed, now_s = request.placed, self._around.agenda.now()
        assert placed is not None
        self._first_came(request)
        del self._requests[request.request_id]
        placed.decode.close_inbox(request.request_id)
        self._entrance.leave(request, placed.decode)
        if error is not None:
            retries = status_of(error).retryable and request.attempts < self._config.max_attempts
            if retries and self._budget.spend():
                request.failed_keys.add(placed.key)
                request.forecast = None
                if request.place is not None:
                    self._entrance.gate.places.forget(request.place)
                self._entrance.place(request)
                return
        elif self._learns:
            if request.forecast is not None:
                request.forecast.finished(len(request.tokens_s), now_s)
            self._placer.learn(placed, finished(request))
        self._leave(request, error)

    def _leave(self, request: SimRequest, error: PagewireError | None) -> None:
        now_s = self._around.agenda.now()
        if request.place is not None:
            self._entrance.gate.places.leave(request.place, now_s)
        self._admission.leave(now_s)
        self._over(request, error)

    def _over(self, request: SimRequest, error: PagewireError | None) -> None:
        assert not request.is_over, f"request {request.number} is over twice"
        request.is_over = True
        if error is not None:
            request.error, request.detail = error.cause, str(error)
        self._on_over(request)


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
