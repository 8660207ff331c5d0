"""Sees what pods of a running cluster take from one another: steps beside those of another pod, and the same alone.

Each is seen alone before and after, so that a machine that slows down by itself does not count. Which pods a request
ran on its timelines say: prompts and answers of one pod are nothing that was seen. Invariant: what is seen at
once is one observation of each kind, however many requests it took: they share their steps or what they are held
against, so that chance is common to them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence

from pagewire.slo.costs.calibration import BesideSeen
from pagewire.slo.costs.cost_model import StepKind
from pagewire.slo.costs.question import Asker, Question

PROMPT = 384  # tokens
BATCHES = (1, 4)  # answers that prompts are built beside
CONTEXT = 128  # tokens of their prompts
WARM_UP = 8  # tokens of an answer before it counts
ALONE = 32  # that are written alone first
BUSY = 128  # and until nothing is asked beside it any more
ANSWER = 168


async def prompts_beside_answers(asker: Asker, batch: int) -> list[BesideSeen]:
    """Build prompts on one pod while another writes `batch` answers, and return what each took from the other."""
    alone = [await asker.ask(PROMPT, 1) for _ in range(2)]
    answers = [asker.begin(CONTEXT, ANSWER) for _ in range(batch)]
    await asyncio.gather(*(answer.has(WARM_UP) for answer in answers))
    warm_s = time.monotonic()
    written = max(len(answer.moments) for answer in answers)
    await asyncio.gather(*(answer.has(min(written + ALONE, BUSY)) for answer in answers))
    begun_s, beside = time.monotonic(), []
    while max(len(answer.moments) for answer in answers) < BUSY:
        beside.append(await asker.ask(PROMPT, 1))
    over_s = time.monotonic()
    await asyncio.gather(*(answer.done() for answer in answers))
    alone += [await asker.ask(PROMPT, 1) for _ in range(2)]
    if not beside or {answer.writer for answer in answers} & {prompt.builder for prompt in (*beside, *alone)}:
        return []
    overlap = min(1.0, sum(prompt.compute_s for prompt in beside) / (over_s - begun_s))
    spans = ((warm_s, begun_s), (begun_s, over_s), (over_s, min(answer.moments[-1] for answer in answers)))
    return [_prompts(alone, beside, StepKind.DECODE), *_steps(answers, StepKind.PREFILL, spans, overlap)]


async def answers_beside_answers(asker: Asker) -> list[BesideSeen]:
    """Write an answer, in the middle of it one on another pod, and return what the second took from the first."""
    first = asker.begin(CONTEXT, 2 * ANSWER)
    await first.has(WARM_UP)
    warm_s = time.monotonic()
    await first.has(WARM_UP + ALONE)
    alone_s = time.monotonic()
    second = asker.begin(CONTEXT, BUSY)
    await second.has(WARM_UP)
    begun_s = time.monotonic()
    await asyncio.gather(first.done(), second.done())
    if first.writer == second.writer:
        return []
    over_s = second.moments[-1]
    spans = ((warm_s, alone_s), (begun_s, over_s), (over_s, first.moments[-1]))
    return _steps([first], StepKind.DECODE, spans, 1.0)


async def prompts_beside_prompts(asker: Asker) -> list[BesideSeen]:
    """Build a prompt, two at once and one again, and return what those on two pods took from one another."""
    alone = [await asker.ask(PROMPT, 1)]
    both = await asyncio.gather(*(asker.ask(PROMPT, 1) for _ in range(2)))
    alone.append(await asker.ask(PROMPT, 1))
    if both[0].builder == both[1].builder:
        return []
    return [_prompts(alone, both, StepKind.PREFILL)]


def _prompts(alone: Sequence[Question], beside: Sequence[Question], other: StepKind) -> BesideSeen:
    """Return what prompts took in the mean, alone and beside."""
    alone_s, beside_s = (statistics.mean(prompt.compute_s for prompt in each) for each in (alone, beside))
    return BesideSeen(mine=StepKind.PREFILL, other=other, alone_s=alone_s, beside_s=beside_s)


def _steps(
    answers: Sequence[Question], other: StepKind, spans: Sequence[tuple[float, float]], overlap: float
) -> list[BesideSeen]:
    """Return what a decode step of the answers took in the middle one of three spans, and in those around it.

    Nothing where too few tokens came in one of them to say.
    """
    steps_s = [[answer.step_s(*span) for answer in answers] for span in spans]
    seen_s = [statistics.mean(known) for each in steps_s if (known := [s for s in each if s is not None])]
    if len(seen_s) < len(spans):
        return []
    before_s, beside_s, after_s = seen_s
    alone_s = (before_s + after_s) / 2  # both, because contexts grow
    return [BesideSeen(mine=StepKind.DECODE, other=other, alone_s=alone_s, beside_s=beside_s, overlap=overlap)]
