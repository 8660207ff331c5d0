"""A pod in brownout, with a real engine: a clipped answer is the beginning of the whole one, and its report says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pods import Colocated, pods, prompt, until

from pagewire.core.engine_messages import StepDone
from pagewire.core.load import BrownoutLevel
from pagewire.core.sampling import FinishReason

LONG = prompt(1, 100)


async def test_a_clipped_answer_is_told(model: Path, colocated: Colocated) -> None:
    async with pods(model, d={"brownout_max_tokens": 5}) as cluster:
        pod = cluster.d
        for level, count in ((BrownoutLevel.SMALL_PREFILL, 8), (BrownoutLevel.SHORT_ANSWERS, 5)):
            await until(lambda: pod.front.load().num_running == 0)
            pod.front.note(StepDone(load=dataclasses.replace(pod.front.load(), brownout=level)))
            asked = await cluster.ask(level.value, LONG)
            assert asked.tokens == colocated.answer(LONG)[:count]
            assert asked.reason is FinishReason.LENGTH
            assert (asked.report.notes != ()) == (count == 5)
        assert asked.report.notes == ("brownout short_answers: max_tokens is 5 instead of 8",)
        assert pod.counter("requests_shortened") == 1
