"""Prefill pod, decode pod and way together: the least predicted TTFT that keeps the promised gap and TPOT.

Every decode pod has an option for each prefill pod, and one to compute the prompt itself where that is open.

1. Each decode pod keeps one option: of those that break the targets least (by nothing, as a rule) the soonest.
2. Of these, those stay that break the targets least, and of these those that are as soon as the soonest, within slack.
3. Among them the rest of the answer decides: gap + (tokens of an answer - 1) x TPOT.

A target is broken by the predicted time over it, less one; gap and TPOT are added up. The TPOT that is held against its
target counts what a prompt computed on a decode pod costs those that run there: its seconds over the tokens of an
answer. The target of TTFT excludes nothing: the soonest is taken in any case, and whether that is soon enough is for
admission to say.

Linear in the pods: of the prefill pods only the SHORTLIST soonest are paired with decode pods (`offers.py`), since one
differs from another for a decode pod only in how much of the transfer it hides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagewire.router.policies.arithmetic import build_times
from pagewire.router.policies.balance import in_order
from pagewire.router.policies.explained import explained
from pagewire.router.policies.offers import Offers, broken_by
from pagewire.router.policies.placement import MAX_CANDIDATES, Option, Placement, placement
from pagewire.router.policies.view import Demand, PodView
from pagewire.router.prediction import Targets, Way

SHORTLIST = MAX_CANDIDATES


class Slo:
    """Keeps the targets it was given."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    def place(self, demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView]) -> Placement:
        """Return the option that the rule leaves."""
        offers = Offers(demand, decode, self._targets)
        soonest = in_order(prefill, _built_s(demand, prefill), SHORTLIST)
        if soonest:
            offers.build_elsewhere(soonest)
        if demand.may_be_local or not prefill:
            offers.build_here()
        best = offers.best()
        chosen, builder = decode[best], offers.builders[best]
        builders = [] if builder is None else [builder, *(pod for pod in soonest if pod is not builder)]
        return placement(
            demand,
            chosen,
            builders,
            way=_way(demand, chosen, builder),
            options=explained(demand, decode, prefill, chosen, builders, self._why_not(demand, decode)),
        )

    def _why_not(self, demand: Demand, decode: Sequence[PodView]) -> Callable[[Option, Option], str]:
        pods = {pod.pod_id: pod for pod in decode} if demand.explain else {}

        def why_not(other: Option, ours: Option) -> str:
            if not other.prefill and ours.prefill and not demand.may_be_local:
                return "prompts go to prefill pods"
            theirs_by = broken_by(self._targets, demand, pods[other.decode], other.way, other.prediction)
            ours_by = broken_by(self._targets, demand, pods[ours.decode], ours.way, ours.prediction)
            if theirs_by > ours_by:
                return f"it breaks the targets of gap and TPOT by {theirs_by:.1%}, the chosen one by {ours_by:.1%}"
            if other.prediction.ttft_s > ours.prediction.ttft_s:
                return f"its TTFT is {other.prediction.ttft_s:.4f} s, the chosen one's {ours.prediction.ttft_s:.4f} s"
            return (
                f"as soon, but its TPOT is {other.prediction.tpot_s:.4f} s and its gap {other.prediction.gap_s:.4f} s"
            )

        return why_not


def _built_s(demand: Demand, prefill: Sequence[PodView]) -> list[float]:
    """Return the seconds until each prefill pod would have built the prompt."""
    factors = demand.correction.remote
    built_s = build_times(demand, prefill)
    return [
        factors.queue_s * pod.queue_s + factors.prefill_s * seconds
        for pod, seconds in zip(prefill, built_s, strict=True)
    ]


def _way(demand: Demand, decode: PodView, builder: PodView | None) -> Way | None:
    """Return where the prompt must go; None where nothing is to be settled, or a pool is too small to settle it."""
    if not demand.may_be_local or (builder is not None and 0 < decode.load.blocks_total < demand.blocks_on(decode)):
        return None
    return Way.LOCAL if builder is None else Way.REMOTE
