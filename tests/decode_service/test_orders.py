"""Pods whose pools lie in different orders serve one another: the taker translates, the answer is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from pods import Colocated, pods, prompt

LONG = prompt(1, 100)


@pytest.mark.parametrize(("p_order", "d_order"), [("head_outer", "layer_outer"), ("layer_outer", "head_outer")])
async def test_a_prompt_from_a_pool_of_the_other_order(
    model: Path, colocated: Colocated, p_order: str, d_order: str
) -> None:
    async with pods(model, p={"kv_order": p_order}, d={"kv_order": d_order}) as cluster:
        first = await cluster.ask("turn 1", LONG, 30)
        assert first.tokens == colocated.answer(LONG, 30)
        assert [pod.engine.ready.layout.order.value for pod in (cluster.p, cluster.d)] == [p_order, d_order]
        assert (first.report.placement, first.report.decode_computed_tokens) == ("remote", 0)
        # Both ways: now the prefill pod fetches the answer's blocks.
        second_prompt = LONG + first.tokens + prompt(5, 20)
        second = await cluster.ask("turn 2", second_prompt)
        assert second.tokens == colocated.answer(second_prompt)
        assert second.report.prefill_fetched_tokens > 0
