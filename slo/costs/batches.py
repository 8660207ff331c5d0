"""Sees what a decode step of a batch takes: answers of a running cluster, while all of them are written.

Invariant: a step counts only between the last one's first token and the first one's last.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from dataclasses import dataclass
from itertools import pairwise

from pagewire.slo.costs.calibration import DecodeSeen
from pagewire.slo.costs.question import Asker

ANSWER = 48  # tokens
NORMAL_MEDIAN = 0.6745  # of |x| in deviations, where x is normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What steps of a batch took in the `mean`; `spread` is the deviation of their times' logarithm."""

    mean: DecodeSeen
    spread: float


async def steps_of(asker: Asker, batch: int, length: int) -> Steps | None:
    """Return what steps of `batch` answers to prompts of `length` tokens took; raises what a request of a client does.

    Where the first was done before the last had begun, all are asked again, for twice as much; None where so much does
    not fit beside the prompt.
    """
    max_tokens = ANSWER
    while length <= asker.longest(max_tokens):
        answers = await asyncio.gather(*(asker.ask(length, max_tokens) for _ in range(batch)))
        begun_s, over_s = max(each.moments[0] for each in answers), min(each.moments[-1] for each in answers)
        steps_s = [step_s for each in answers if (step_s := each.step_s(begun_s, over_s)) is not None]
        gaps_s = [  # a token that came with the one before says nothing of how far steps are apart
            after_s - before_s
            for each in answers
            for before_s, after_s in pairwise(each.moments)
            if begun_s <= before_s < after_s <= over_s
        ]
        if steps_s and gaps_s:
            middle_s, middle_gap_s = (begun_s + over_s) / 2, statistics.median(gaps_s)
            written = statistics.mean(sum(moment_s <= middle_s for moment_s in each.moments) for each in answers)
            mean = DecodeSeen(batch=batch, context=length + written, step_s=statistics.mean(steps_s))
            spread = statistics.median(abs(math.log(gap_s / middle_gap_s)) for gap_s in gaps_s) / NORMAL_MEDIAN
            return Steps(mean=mean, spread=spread)
        max_tokens *= 2
    return None
