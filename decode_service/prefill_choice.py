"""Where to prefill: here or on a prefill pod. Pure; a comparison of predicted seconds, not a constant.

    local  = (waiting x c + prefix(here)) x (1 + running)        all that run stall while a chunk computes here
    remote = max(queue, waiting x c) + exchange + prefix(there)  its transfer hides behind its chunks but for the last

`prefix` is `plan_prefix`: what is cached, fetched, computed. c is measured by each pod's engine, the exchange by each
link, and both predictions are corrected by how wrong the last ones were (`Calibration`). What is said to take too long
is not chosen, and so not corrected: a correction that nothing comes to fades.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.load import Load
from pagewire.core.messages import Candidate
from pagewire.core.rest import Rest, faded
from pagewire.engine.exchange.prefix_plan import PrefixPlan
from pagewire.kvtransfer.link_cost import LinkCost

WEIGHT = 0.1  # of the newest observation
BOUND = 4.0  # a correction never goes further: a single stall must not turn all placements


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds until the first token, here and at the best candidate; 0 where that is no choice."""

    local_s: float = 0.0
    remote_s: float = 0.0


def local_s(prefix: PrefixPlan, load: Load, s_per_token: float) -> float:
    """Return the predicted seconds until a prompt that is built here has its first token."""
    return (load.waiting_tokens * s_per_token + prefix.seconds) * (1 + load.num_running)


def remote_s(prefix: PrefixPlan, candidate: Candidate, load: Load | None, s_per_token: float, link: LinkCost) -> float:
    """Return the same for a prompt that `candidate` builds; `load` is its own latest word, where it has spoken."""
    waiting_tokens = load.waiting_tokens if load is not None else 0
    return max(candidate.queue_s, waiting_tokens * s_per_token) + link.rtt_s + prefix.seconds


class Calibration:
    """How long things took over how long they were said to take, as a factor for the next prediction."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._rest = Rest()

    @property
    def belief(self) -> float:
        """What share of what was learned is believed still, 0 to 1: the longer nothing was observed, the less."""
        return self._rest.belief

    def observe(self, predicted_s: float, actual_s: float) -> None:
        """What was predicted, corrections included, as `predicted_s` took `actual_s`."""
        if predicted_s <= 0 or actual_s <= 0:
            return
        self._rest.ends()
        raw = self.factor * min(BOUND, max(1 / BOUND, actual_s / predicted_s))
        self.factor = min(BOUND, max(1 / BOUND, (1 - WEIGHT) * self.factor + WEIGHT * raw))

    def rested(self, seconds: float) -> None:
        """So much time has passed; what was observed in it was told apart."""
        self.factor = faded(self.factor, 1.0, self._rest.goes_on(seconds))
