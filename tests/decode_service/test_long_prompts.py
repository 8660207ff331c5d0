"""A prompt that the decode pod's pool does not hold whole is computed there in parts or refused, beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_model
from pods import BLOCK, Colocated, going_slowly, pods, prompt, until

from pagewire.core.sequence_spec import Branch

BLOCK_BYTES = 3 * 2 * 2 * BLOCK * 16 * 4  # L, K and V, Hk, B, D, fp32
SMALL: dict[str, Any] = {"kv_memory_bytes": 10 * BLOCK_BYTES, "host_kv_memory_bytes": 20 * BLOCK_BYTES}


@pytest.mark.parametrize("prefill", ["local", "auto"])
async def test_it_is_computed_where_it_decodes(model: Path, colocated: Colocated, prefill: str) -> None:
    long, short = prompt(40, 220), prompt(41, 60)
    async with pods(model, d=dict(SMALL)) as cluster:
        before = await cluster.submit("before", short)
        asked = await cluster.submit("long", long, prefill=prefill)
        after = await cluster.submit("after", short)
        for each, tokens in ((before, short), (asked, long), (after, short)):
            await cluster.end(each)
            assert (each.cause, each.tokens) == ("", colocated.answer(tokens))
        assert asked.report.placement == "local"
        assert asked.report.decode_computed_tokens == 220


async def test_it_is_refused_where_prefill_is_remote(model: Path) -> None:
    async with pods(model, d=dict(SMALL)) as cluster:
        asked = await cluster.ask("long", prompt(40, 220))
        assert asked.cause == "invalid_request"
        assert asked.ended is not None
        assert asked.ended.error is not None
        assert "220 tokens, which do not fit the KV pool" in asked.ended.error.message


async def test_an_answer_that_outgrew_the_pool_goes_on_on_another_pod_though_prefill_is_remote(
    model: Path, colocated: Colocated
) -> None:
    small: dict[str, Any] = {"kv_memory_bytes": 12 * BLOCK_BYTES, "host_kv_memory_bytes": 16 * BLOCK_BYTES}
    async with pods(model, 1, 2, d=small) as cluster:
        old, new = cluster.decode
        whole = await cluster.ask("whole", prompt(1, 100), 150, on=old)
        assert (whole.cause, whole.tokens) == ("", colocated.answer(prompt(1, 100), 150))
        rest = await cluster.ask("rest", prompt(1, 100), 150, on=new, output=tuple(whole.tokens[:110]))
        assert (rest.cause, rest.tokens) == ("", whole.tokens[110:])


async def test_several_answers_that_began_elsewhere_are_for_another_pod_where_they_do_not_fit(model: Path) -> None:
    """Nobody who has begun an answer is told that the request is wrong."""
    begun, others = (7,), (Branch(index=1, output=(9,)),)
    async with pods(model, d=dict(SMALL)) as cluster:
        asked = await cluster.ask("rest", prompt(1, 170), 30, output=begun, others=others, n=2)
        assert asked.cause == "unavailable"
        assert asked.ended is not None
        assert asked.ended.error is not None
        assert "the KV pool has 10" in asked.ended.error.message
        fresh = await cluster.ask("fresh", prompt(1, 170), 30, n=2)
        assert fresh.cause == "invalid_request"


async def test_cancelled_in_the_middle_it_leaves_nothing(model: Path, colocated: Colocated) -> None:
    async with pods(model, d=dict(SMALL)) as cluster:
        async with going_slowly(cluster.d):
            asked = await cluster.submit("long", prompt(40, 220), 30, prefill="local")
            await until(lambda: len(asked.tokens) > 2)
            await cluster.cancel(asked)
            await cluster.end(asked)
        assert asked.cause == "cancelled"
        again = await cluster.ask("short", prompt(41, 60))
        assert again.tokens == colocated.answer(prompt(41, 60))
        assert cluster.d.engine.engine.scheduler.pool.host.num_lent == 0


async def test_a_window_lets_a_prompt_be_longer_than_the_pool(tmp_path: Path) -> None:
    model = tiny_model.build(tmp_path, "mistral")  # a window of 24
    async with pods(model, d={"kv_memory_bytes": 10 * BLOCK_BYTES}) as cluster:
        asked = await cluster.ask("long", prompt(42, 220), prefill="local")
        assert (asked.cause, asked.tokens) == ("", Colocated(model).answer(prompt(42, 220)))
