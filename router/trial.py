"""One attempt as its pods are judged by it: what speaks for them, what against, and what says nothing.

Knows what errors mean of a pod; the judging is `ejection.py`'s. A request that is wrong, too much, cancelled or out of
time says nothing of the pod that had it; neither does a link that broke, which is counted where it broke.
"""

from __future__ import annotations

from pagewire.core.errors import (
    Draining,
    EngineFailed,
    HandedOver,
    PagewireError,
    Poisoned,
    TransferFailed,
    Unavailable,
)
from pagewire.core.timeline import Phase
from pagewire.router.ejection import Ejection
from pagewire.router.life import Life
from pagewire.router.outliers import Result
from pagewire.router.placing import Placed

FAILURES = (EngineFailed, TransferFailed, Unavailable)
NO_FAILURES = (Draining, HandedOver, Poisoned)
MIN_TOKENS = 8  # of an answer whose pace is compared


class Trial:
    """One attempt on a decode pod, and on the prefill pod that was named first; `end` is called once."""

    def __init__(self, ejection: Ejection, placed: Placed) -> None:
        self._ejection = ejection
        self._placed = placed
        self._decode_turn = ejection.begin(placed.decode)
        self._prefill_turn = ejection.begin(placed.prefill) if placed.prefill is not None else 0
        self._decode = self._prefill = Result(None)

    def failed(self, error: PagewireError) -> None:
        """The attempt ended with an error."""
        is_linked = self._placed.decode.key == self._placed.key and self._placed.decode.is_linked
        if is_linked and isinstance(error, FAILURES) and not isinstance(error, NO_FAILURES):
            self._decode = Result(False)

    def succeeded(self, life: Life) -> None:
        """The attempt came to its end."""
        longest = max(len(each.output) for each in life.sequences)
        is_paced = life.attempt == 1 and longest >= MIN_TOKENS
        rest_s = life.watch.timeline().between_s(Phase.FIRST_TOKEN, Phase.LAST_TOKEN) if is_paced else None
        self._decode = Result(True, (rest_s or 0.0) / max(1, longest - 1))
        report = life.ended.report if life.ended is not None else None
        if report is not None and self._placed.prefill is not None:
            pod_id = self._placed.prefill.pod_id
            if pod_id in report.lost_on:
                self._prefill = Result(False)
            elif report.prefill_pod == pod_id:
                self._prefill = Result(True)

    def end(self) -> None:
        """Hand in what was seen."""
        self._ejection.end(self._placed.decode, self._decode_turn, self._decode)
        if self._placed.prefill is not None:
            self._ejection.end(self._placed.prefill, self._prefill_turn, self._prefill)
