"""Quantised KV between real pods: shipped as it is kept, in either order; and between pods that keep KV differently."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pods import Colocated, pods, prompt

LONG = prompt(1, 100)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
@pytest.mark.parametrize("order", ["layer_outer", "head_outer"])
async def test_shipped_as_it_is_kept(model: Path, kv_dtype: str, order: str) -> None:
    colocated = Colocated(model, kv_dtype=kv_dtype)
    follows = LONG[:80] + prompt(3, 30)
    async with pods(model, p={"kv_dtype": kv_dtype, "kv_order": order}, d={"kv_dtype": kv_dtype}) as cluster:
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.cause) == (colocated.answer(LONG), "")
        report = asked.report
        assert (report.placement, report.prefill_computed_tokens, report.decode_computed_tokens) == ("remote", 100, 0)
        assert report.blocks_shipped == 7
        assert report.bytes_shipped == 7 * 16 * 3 * 2 * 2 * (16 + 2)  # slots, layers, K and V, heads, codes and scale
        asked = await cluster.ask("b", follows)
        assert asked.tokens == colocated.answer(follows)
        assert (asked.report.decode_cached_tokens, asked.report.blocks_shipped) == (80, 2)


async def test_pods_that_keep_kv_differently_refuse_each_other_by_name(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    colocated = Colocated(model, kv_dtype="int8")
    async with pods(model, p={"kv_dtype": "fp8"}, d={"kv_dtype": "int8"}) as cluster:
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.cause) == (colocated.answer(LONG), "")
        assert (asked.report.placement, asked.report.blocks_shipped) == ("local", 0)
    assert "kv_layout: " in caplog.text
    assert "int8 layer_outer" in caplog.text
    assert "fp8 layer_outer" in caplog.text
