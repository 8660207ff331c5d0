"""What each decode pod has to offer for a request: its best option so far, kept as columns of plain numbers.

The sums are those of `arithmetic.py`, done for all pods at once. Pure. Invariant: a decode pod's option is, of those it
was asked for, one that breaks the targets least, and of these the soonest; but a pod that another one beats whatever
it offers may be left with a worse one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagewire.router.policies.arithmetic import RELAY_S, build_s, build_times, exposed_s, places_of, room_s
from pagewire.router.policies.view import Demand, PodView
from pagewire.router.prediction import Prediction, Targets, Way

# Predictions are not better than that: a share of the least TTFT, and seconds.
SLACK_SHARE = 0.05
SLACK_S = 0.002
EPSILON = 1e-9  # what sums of seconds may be off in their last digits


def over(seconds: float, target_s: float) -> float:
    """Return by how much a target is broken, as a share of it; 0 where it is kept or there is none."""
    return seconds / target_s - 1 if 0 < target_s < seconds else 0.0


def broken_by(targets: Targets, demand: Demand, decode: PodView, way: Way, predicted: Prediction) -> float:
    """Return by how much an option breaks the targets of gap and TPOT."""
    stall_s = predicted.prefill_s / demand.answer_tokens if way is Way.LOCAL and decode.busy else 0.0
    return over(predicted.gap_s, targets.gap_s) + over(predicted.tpot_s + stall_s, targets.tpot_s)


class Offers:
    """The options of `decode` for one demand; `builders` are the prefill pods in them, None for the pod itself."""

    def __init__(self, demand: Demand, decode: Sequence[PodView], targets: Targets) -> None:
        self._demand = demand
        self._decode = decode
        self._targets = targets
        asked = demand.num_sequences
        self._step_s = [pod.tpot_s + asked * pod.crowd_s for pod in decode]
        most = -(-demand.num_tokens // demand.block_size) + asked
        self._room_s = {at: room_s(demand, pod) for at, pod in enumerate(decode) if pod.spare_blocks < most}
        self.builders: list[PodView | None] = []
        self._ttft_s: list[float] = []
        self._gap_s: list[float] = []
        self._tpot_s: list[float] = []
        self._over: list[float] = []  # by how much the targets of gap and TPOT are broken

    def build_elsewhere(self, builders: Sequence[PodView]) -> None:
        """Offer every decode pod to have the prompt built by one of `builders`, the soonest first."""
        demand, factors = self._demand, self._demand.correction.remote
        built = [build_s(demand, builder) for builder in builders]
        soon = [
            factors.queue_s * builder.queue_s + factors.prefill_s * built_s + factors.relay_s * RELAY_S
            for builder, built_s in zip(builders, built, strict=True)
        ]
        rtt, soonest_s = factors.relay_s, soon[0]
        self.builders = [builders[0]] * len(self._decode)
        self._ttft_s = [soonest_s + rtt * pod.rtt_s for pod in self._decode]
        for at, seconds in self._room_s.items():
            self._ttft_s[at] += factors.queue_s * seconds
        self._gap_s = self._gaps(range(len(self._decode)), builders[0], built[0])
        self._tpot_s = [factors.tpot_s * step_s for step_s in self._step_s]
        self._over = _over(self._gap_s, self._tpot_s, self._targets)
        if self._targets.gap_s:
            self._shorten_gaps(builders, built, soon)

    def _shorten_gaps(self, builders: Sequence[PodView], built: Sequence[float], soon: Sequence[float]) -> None:
        """Let decode pods whose gap is too long have a later builder that hides more of the transfer."""
        target_s, most_s = self._targets.gap_s, self._most_step_s(self._targets.tpot_s)
        seen = [(self._chunk(builders[0]), built[0])]
        late = [at for at, gap_s in enumerate(self._gap_s) if gap_s > target_s and self._tpot_s[at] <= most_s]
        for builder, built_s, soon_s in zip(builders[1:], built[1:], soon[1:], strict=True):
            if not late:
                return
            chunk = self._chunk(builder)
            if any(chunk >= other and built_s <= longer_s for other, longer_s in seen):
                continue  # it hides no more than one before
            seen.append((chunk, built_s))
            gaps = zip(late, self._gaps(late, builder, built_s), strict=True)
            for at, gap_s in [(at, gap_s) for at, gap_s in gaps if gap_s < self._gap_s[at]]:
                self._over[at] = over(gap_s, target_s) + over(self._tpot_s[at], self._targets.tpot_s)
                self._gap_s[at] = gap_s
                self._ttft_s[at] += soon_s - soon[builders.index(self.builders[at])]
                self.builders[at] = builder
            late = [at for at in late if self._gap_s[at] > target_s]

    def _gaps(self, places: Sequence[int], builder: PodView, built_s: float) -> list[float]:
        """Return the gap of each decode pod at `places` when `builder` builds."""
        factor, tokens, chunk = self._demand.correction.remote.gap_s, self._demand.num_tokens, self._chunk(builder)
        pods, steps, tail = self._decode, self._step_s, min(chunk, tokens)
        if len(places) < len(pods):
            pods, steps = [pods[at] for at in places], [steps[at] for at in places]
        before = tokens - tail
        gaps = [
            factor
            * (
                pod.boarding_s
                + step_s
                + (tail * pod.ship_s if before * pod.ship_s <= built_s else tokens * pod.ship_s - built_s)
            )
            for pod, step_s in zip(pods, steps, strict=True)
        ]
        for at in places_of(pods, self._demand.cached):
            exposed = exposed_s(self._demand, pods[at], builder, built_s)
            gaps[at] = factor * (pods[at].boarding_s + steps[at] + exposed)
        return gaps

    def _chunk(self, builder: PodView) -> int:
        return builder.load.prefill_budget or self._demand.num_tokens

    def build_here(self) -> None:
        """Offer every decode pod to compute the prompt itself."""
        demand, factors = self._demand, self._demand.correction.local
        built = build_times(demand, self._decode)
        queue, prefill, relay_s = factors.queue_s, factors.prefill_s, factors.relay_s * RELAY_S
        ttft_s = [
            queue * pod.queue_s + prefill * seconds + relay_s for pod, seconds in zip(self._decode, built, strict=True)
        ]
        for at, seconds in self._room_s.items():
            ttft_s[at] += queue * seconds
        by = self._over_here(built)
        if not self.builders:
            self.builders = [None] * len(self._decode)
            self._ttft_s = ttft_s
            self._gap_s = [factors.gap_s * step_s for step_s in self._step_s]
            self._tpot_s = [factors.tpot_s * step_s for step_s in self._step_s]
            self._over = by
            return
        better = [
            at
            for at, (here, there) in enumerate(zip(by, self._over, strict=True))
            if here < there - EPSILON or (here <= there + EPSILON and ttft_s[at] < self._ttft_s[at])
        ]
        for at in better:
            step_s = self._step_s[at]
            self.builders[at] = None
            self._ttft_s[at], self._over[at] = ttft_s[at], by[at]
            self._gap_s[at], self._tpot_s[at] = factors.gap_s * step_s, factors.tpot_s * step_s

    def _most_step_s(self, target_s: float) -> float:
        """Return the seconds beyond which a pod breaks this target more than the best breaks both, and is out."""
        return (1 + min(self._over)) * target_s * (1 + EPSILON) if target_s else math.inf

    def _over_here(self, built_s: Sequence[float]) -> list[float]:
        """Return by how much the targets are broken where each decode pod computes the prompt in `built_s` seconds.

        Those are not corrected yet.
        """
        if not (self._targets.gap_s or self._targets.tpot_s):
            return [0.0] * len(built_s)  # sooner than by sums that nothing is held against
        factors = self._demand.correction.local
        stall = factors.prefill_s / self._demand.answer_tokens
        gaps = [factors.gap_s * step_s for step_s in self._step_s]
        tpots = [
            factors.tpot_s * step_s + (stall * seconds if pod.busy else 0.0)
            for pod, step_s, seconds in zip(self._decode, self._step_s, built_s, strict=True)
        ]
        return _over(gaps, tpots, self._targets)

    def best(self) -> int:
        """Return the decode pod, by its place, whose option is taken."""
        least = min(self._over)
        ttft_s = self._ttft_s
        kept: Sequence[int] = range(len(ttft_s))
        if least < max(self._over):
            kept = [at for at, by in enumerate(self._over) if by <= least + EPSILON]
        soonest_s = min([ttft_s[at] for at in kept])
        bound_s = soonest_s + max(SLACK_S, SLACK_SHARE * soonest_s)
        steps = max(0.0, self._demand.answer_tokens - 1)
        gap_s, tpot_s = self._gap_s, self._tpot_s
        return min([(gap_s[at] + steps * tpot_s[at], ttft_s[at], at) for at in kept if ttft_s[at] <= bound_s])[2]


def _over(gap_s: Sequence[float], tpot_s: Sequence[float], targets: Targets) -> list[float]:
    """Return `over` of both targets, added up, for each pair."""
    if not (targets.gap_s or targets.tpot_s):
        return [0.0] * len(gap_s)
    most_gap_s, most_s = targets.gap_s or math.inf, targets.tpot_s or math.inf
    return [
        (gap / most_gap_s - 1 if gap > most_gap_s else 0.0) + (tpot / most_s - 1 if tpot > most_s else 0.0)
        for gap, tpot in zip(gap_s, tpot_s, strict=True)
    ]
