"""The cost model's arithmetic by hand, its file, and what it refuses."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pagewire.core.sampling import SamplingParams
from pagewire.engine.step import Draw, Grant, Step
from pagewire.slo.cost_model import CostModel, LinkLaw, SharingLaw, StepKind, StepLaw, StepLine, StepShape
from pagewire.slo.roofline import Device, ModelShape, roofline

LINE = StepLine(step_s=1.0, prefill_token_s=0.1, decode_s=0.01, prefill_pair_s=1e-3, decode_pair_s=1e-4)


def grant(start: int, count: int) -> Grant:
    draw = Draw(sampling=SamplingParams(), index=0, position=0)
    return Grant(request_id=f"{start}", tokens=(7,) * count, start=start, block_ids=(), draw=draw)


def test_a_steps_shape_counts_pairs_of_a_token_and_what_it_looks_at() -> None:
    shape = StepShape.of(Step(grants=(grant(4, 3), grant(9, 1), grant(0, 1))))
    # Tokens 4, 5, 6 look at 5, 6, 7 tokens; token 9 at ten, token 0 at itself.
    assert shape == StepShape(prefill_tokens=3, decodes=2, prefill_pairs=18, decode_pairs=11)


def test_a_law_is_the_slowest_of_its_lines() -> None:
    shape = StepShape(prefill_tokens=10, decodes=2, prefill_pairs=100, decode_pairs=1000)
    assert LINE.seconds(shape) == pytest.approx(1.0 + 1.0 + 0.02 + 0.1 + 0.1)
    law = StepLaw(lines=(LINE, StepLine(step_s=5.0)), overhead_s=0.5)
    assert law.seconds(shape) == pytest.approx(5.5)
    assert StepLaw(lines=(LINE,)).decode_seconds(2, 1000) == LINE.seconds(StepShape(decodes=2, decode_pairs=1000))


def test_a_file_says_what_was_written() -> None:
    law = StepLaw(lines=(LINE, LINE), overhead_s=0.25)
    costs = CostModel(prefill=law, decode=law, token_bytes=64, link=LinkLaw(latency_s=1.0), about={"model": "m"})
    costs = dataclasses.replace(costs, sharing=SharingLaw(decode_beside_prefill=1.5))
    assert CostModel.from_json(costs.to_json()) == costs


@pytest.mark.parametrize(
    ("field", "value"),
    [("frame_s", -1.0), ("token_bytes", 0), ("version", 2), ("prefill", {"lines": [], "overhead_s": 0.0}), ("pace", 1)],
)
def test_a_file_that_is_none_is_refused_by_name(field: str, value: object) -> None:
    law = StepLaw(lines=(LINE,))
    raw = json.loads(CostModel(prefill=law, decode=law, token_bytes=64).to_json())
    with pytest.raises(ValueError, match="line" if field == "prefill" else field):
        CostModel.from_json(json.dumps({**raw, field: value}))


def test_no_cost_is_negative() -> None:
    with pytest.raises(ValueError, match="decode_s"):
        dataclasses.replace(LINE, decode_s=-1e-9)


def test_company_adds_what_each_adds_and_makes_nothing_quicker() -> None:
    law = SharingLaw(prefill_beside_decode=1.5, decode_beside_prefill=1.25, decode_beside_decode=1.125)
    assert law.slowdown(StepKind.DECODE, []) == law.slowdown(StepKind.PREFILL, [StepKind.PREFILL]) == 1
    assert law.slowdown(StepKind.DECODE, [StepKind.DECODE, StepKind.PREFILL, StepKind.PREFILL]) == 1.625
    assert law.slowdown(StepKind.PREFILL, [StepKind.DECODE]) == 1.5
    with pytest.raises(ValueError, match="decode_beside_decode"):
        SharingLaw(decode_beside_decode=0.9)


def test_a_roofline_is_memory_for_one_token_and_arithmetic_for_many() -> None:
    model = ModelShape(name="m", parameters=1e9, num_layers=10, num_heads=8, num_kv_heads=2, head_dim=64)
    costs = roofline(model, Device(flops=1e14, bandwidth=1e12, efficiency=0.5), link_bytes_per_s=1e9)
    assert costs.token_bytes == 2 * 10 * 2 * 64 * 2
    one = costs.decode.seconds(StepShape(decodes=1, decode_pairs=1000)) - costs.decode.overhead_s
    assert one == pytest.approx((2e9 + 1000 * costs.token_bytes) / 0.5e12)
    many = costs.prefill.seconds(StepShape(prefill_tokens=4096, prefill_pairs=0)) - costs.prefill.overhead_s
    assert many == pytest.approx(2 * 1e9 * 4096 / 0.5e14)


@pytest.mark.parametrize(
    "told",
    [
        {"flops": 0.0, "bandwidth": 1.0},
        {"flops": 1.0, "bandwidth": 0.0},
        {"flops": 1.0, "bandwidth": 1.0, "efficiency": 0.0},
        {"flops": 1.0, "bandwidth": 1.0, "efficiency": 1.01},
    ],
)
def test_what_does_nothing_or_more_than_all_is_no_device(told: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no device"):
        Device(**told)
    assert Device(flops=1.0, bandwidth=1.0, efficiency=1.0).efficiency == 1.0


def test_a_config_says_a_models_shape() -> None:
    config = {
        "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "intermediate_size": 1536, "vocab_size": 49_152, "tie_word_embeddings": True,
    }  # fmt: skip
    shape = ModelShape.of("smollm2", config)
    assert shape.parameters == pytest.approx(134.5e6, rel=1e-3)  # norms left out
    assert shape.token_bytes == 2 * 30 * 3 * 64 * 2
    with pytest.raises(ValueError, match="vocab_size"):
        ModelShape.of("m", {name: value for name, value in config.items() if name != "vocab_size"})
