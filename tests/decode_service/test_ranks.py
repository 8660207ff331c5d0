"""A pod of two ranks and one of one ship to each other, whatever the order of their blocks: the answer is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pods import Colocated, pods, prompt

LONG = prompt(1, 100)
TWO = {"tensor_parallel": 2, "kv_order": "head_outer"}


@pytest.mark.parametrize("transports", ["grpc", "shm"])
@pytest.mark.parametrize(("p", "d"), [(TWO, {}), ({}, TWO)], ids=["from two to one", "from one to two"])
async def test_prompts_and_answers_go_both_ways(
    model: Path, colocated: Colocated, p: dict[str, Any], d: dict[str, Any], transports: str
) -> None:
    settings = {"transports": transports}
    async with pods(model, p={**p, **settings}, d={**d, **settings}) as cluster:
        first = await cluster.ask("turn 1", LONG, 30)
        assert first.tokens == colocated.answer(LONG, 30)
        assert (first.report.placement, first.report.decode_computed_tokens) == ("remote", 0)
        second_prompt = LONG + first.tokens + prompt(5, 20)
        second = await cluster.ask("turn 2", second_prompt)
        assert second.tokens == colocated.answer(second_prompt)
        assert second.report.prefill_fetched_tokens > 0
