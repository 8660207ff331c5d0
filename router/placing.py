"""Finds pods for a request: the policy's choice among the pods in reach, by what the index said of its prompt.

Knows nothing of tokens that come back.
"""

from __future__ import annotations

from collections.abc import Container, Sequence, Set
from dataclasses import dataclass

from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Source
from pagewire.router.actual_times import actual_times
from pagewire.router.calibration import Calibration
from pagewire.router.config import PrefillMode
from pagewire.router.events import Finished
from pagewire.router.explanation import Explanation
from pagewire.router.lookup import Prefix
from pagewire.router.pod import Pod
from pagewire.router.pods import PodPool
from pagewire.router.policies.explained import explained
from pagewire.router.policies.placement import Placement, Policy
from pagewire.router.policies.view import Demand, PodView
from pagewire.router.prediction import NO_TARGETS, Correction, Targets, Way
from pagewire.router.request import Request
from pagewire.router.roster import member_of

MAX_SOURCES = 3  # pods that are named as holders of a prompt's beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A placement with the pods behind its names; `prefill` is the first candidate, where the prompt should go.

    `sources` are other pods that hold a beginning of the prompt, as the index says, the longest first. `mode` is what
    the decode pod is told of where to prefill, `correction` what the prediction was corrected with.
    """

    placement: Placement
    decode: Pod
    prefill: Pod | None
    key: str  # of the decode pod's link when it was chosen
    mode: PrefillMode
    correction: Correction
    sources: tuple[Source, ...] = ()
    explanation: Explanation | None = None

    def decode_as_source(self, num_tokens: int) -> Source:
        """Return the decode pod as one to fetch `num_tokens` from."""
        return Source(pod_id=self.decode.pod_id, address=self.decode.registration.address, num_tokens=num_tokens)

    def prefill_begins(self, num_tokens: int) -> None:
        """Count a prompt on the pod that should prefill it, until its first token."""
        (self.prefill or self.decode).prompt_sent(num_tokens, is_prefill=self.prefill is not None)

    def prefill_is_over(self, num_tokens: int) -> None:
        """Take the count back."""
        (self.prefill or self.decode).prompt_built(num_tokens, is_prefill=self.prefill is not None)


class Placer:
    """Chooses pods for requests, and learns from what their placements came to."""

    def __init__(
        self,
        pool: PodPool,
        policy: Policy,
        *,
        mode: PrefillMode,
        policy_name: str = "",
        targets: Targets = NO_TARGETS,
    ) -> None:
        self.calibration = Calibration()
        self._pool = pool
        self._policy = policy
        self._mode = mode
        self._policy_name = policy_name
        self._targets = targets

    def reach(self, prefix: Prefix) -> list[Pod]:
        """Return the pods that may decode what was looked up: those among which `place` chooses."""
        views = _without(self._pool.roster.decode(prefix.fingerprint), frozenset(), self._pool.ejected())
        pods = [self._pool.behind(each) for each in views]
        return [pod for pod in pods if pod.is_usable]

    def place(self, request: Request, prefix: Prefix, avoid: Set[str]) -> Placed | None:
        """Return pods for the request, None when no decode pod is in reach; `avoid` holds the keys that failed it."""
        roster, serves = self._pool.roster, prefix.fingerprint
        out = self._pool.ejected()
        while True:
            decode = _without(roster.decode(serves), avoid, out)
            if not decode:
                return None
            prefill: Sequence[PodView] = ()
            # A search needs the prompt's logits where it decodes.
            if self._mode is not PrefillMode.LOCAL and not request.sampling.use_beam_search:
                prefill = _without(roster.prefill(serves), frozenset(), out)
            demand = self._demand(request, prefix, may_be_local=self._mode is PrefillMode.AUTO and bool(prefill))
            placement = self._policy.place(demand, decode, prefill)
            placed = self._placed(demand, placement, prefix, decode, prefill)
            if placed is not None:
                return placed

    def learn(self, placed: Placed, finished: Finished) -> None:
        """Compare what a request took with what was predicted; one that went other ways than placed says nothing."""
        report = finished.report
        if report is None or finished.attempts != 1 or report.causes:
            return
        self.calibration.answered(finished.longest)
        way = Way.REMOTE if report.placement == "remote" else Way.LOCAL
        is_as_placed = report.decode_pod == placed.decode.pod_id and (
            report.prefill_pod == placed.prefill.pod_id if placed.prefill is not None else way is Way.LOCAL
        )
        if is_as_placed:
            ours, *pods = finished.timelines
            predicted = placed.placement.prediction
            actual = actual_times(way, ours, pods, finished.longest, predicted)
            self.calibration.observe(way, predicted, placed.correction, actual)

    def _demand(self, request: Request, prefix: Prefix, *, may_be_local: bool) -> Demand:
        holders = sorted(prefix.cached.items(), key=lambda each: (-each[1], each[0])) if prefix.cached else []
        answer = min(float(request.sampling.max_tokens), self.calibration.answer_tokens)
        return Demand(
            num_tokens=len(request.prompt),
            block_size=prefix.fingerprint.block_size,
            num_sequences=request.sampling.num_sequences,
            cached=prefix.cached,
            on_host=prefix.on_host,
            sources=tuple(each for each in holders[:MAX_SOURCES] if each[1] > 0),
            may_be_local=may_be_local,
            answer_tokens=answer,
            explain=request.explain,
            correction=self.calibration.correction,
        )

    def _placed(
        self,
        demand: Demand,
        placement: Placement,
        prefix: Prefix,
        decode: Sequence[PodView],
        prefill: Sequence[PodView],
    ) -> Placed | None:
        """Return the pods behind a placement; None when one has gone down and nobody had said so yet."""
        views = [_named(decode, placement.decode)]
        if placement.candidates:
            views.append(_named(prefill, placement.candidates[0].pod_id))
        pods = [self._pool.behind(each) for each in views]
        gone = [pod for pod in pods if not pod.is_usable]
        for pod in gone:
            self._pool.refresh(pod)
        if gone:
            return None
        return Placed(
            placement=placement,
            decode=pods[0],
            prefill=pods[1] if len(pods) > 1 else None,
            key=views[0].key,
            mode=self._mode if placement.way is None else PrefillMode(placement.way.value),
            correction=demand.correction,
            sources=self._sources(prefix, pods[0]),
            explanation=self._explain(demand, placement, decode, prefill, views) if demand.explain else None,
        )

    def _explain(
        self,
        demand: Demand,
        placement: Placement,
        decode: Sequence[PodView],
        prefill: Sequence[PodView],
        chosen: Sequence[PodView],
    ) -> Explanation:
        options = placement.options or explained(
            demand, decode, prefill, chosen[0], chosen[1:], lambda *_: "the policy did not say"
        )
        return Explanation(policy=self._policy_name, targets=self._targets, options=options)

    def _sources(self, prefix: Prefix, chosen: Pod) -> tuple[Source, ...]:
        """Return who holds most of the prompt, of whatever role; who drains may still be asked."""
        holders = [(count, pod) for pod_id, count in prefix.cached.items() if (pod := self._pool.linked(pod_id))]
        holding = [
            (count, pod.pod_id, pod.registration.address)
            for count, pod in holders
            if count > 0 and not pod.misfit and pod is not chosen
        ]
        longest = sorted(holding, key=lambda each: (-each[0], each[1]))
        return tuple(
            Source(pod_id=pod_id, address=address, num_tokens=num_tokens)
            for num_tokens, pod_id, address in longest[:MAX_SOURCES]
        )


def _named(views: Sequence[PodView], pod_id: str) -> PodView:
    for view in views:
        if view.pod_id == pod_id:
            return view
    raise EngineFailed(f"the policy chose {pod_id!r}, which is not among the pods that it was given")


def _without(views: Sequence[PodView], avoid: Set[str], out: Container[str]) -> Sequence[PodView]:
    """Leave out the links that a request avoids and the pods that are kept out."""
    if not avoid and not out:
        return views
    return [view for view in views if view.key not in avoid and member_of(view.key) not in out]
