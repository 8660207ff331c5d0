"""Pods whose weights are kept alike ship KV to each other; others refuse each other by name."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pods import Colocated, pods, prompt

LONG = prompt(1, 100)


@pytest.mark.parametrize("weight_dtype", ["fp8", "int8"])
async def test_kv_of_codes_is_shipped(model: Path, weight_dtype: str) -> None:
    colocated = Colocated(model, weight_dtype=weight_dtype)
    async with pods(model, p={"weight_dtype": weight_dtype}, d={"weight_dtype": weight_dtype}) as cluster:
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.cause) == (colocated.answer(LONG), "")
        assert (asked.report.placement, asked.report.blocks_shipped) == ("remote", 7)


async def test_pods_of_other_weights_refuse_each_other_by_name(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    colocated = Colocated(model)
    async with pods(model, p={"weight_dtype": "fp8"}, d={"weight_dtype": "auto"}) as cluster:
        asked = await cluster.ask("a", LONG)
        assert (asked.tokens, asked.cause) == (colocated.answer(LONG), "")
        assert (asked.report.placement, asked.report.blocks_shipped) == ("local", 0)
    assert "model_digest: " in caplog.text
    assert "-fp8" in caplog.text
