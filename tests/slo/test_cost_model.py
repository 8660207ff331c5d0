"""The cost model's arithmetic by hand, its file, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import pytest

from pagewire.core.sampling import SamplingParams
from pagewire.engine.block import table_of
from pagewire.engine.step import Draw, Grant, Step
from pagewire.kvtransfer.transport import Flow
from pagewire.slo.costs.cost_model import CostModel, LinkLaw, SharingLaw, StepKind, StepLaw, StepLine, StepShape

LINE = StepLine(step_s=1.0, prefill_token_s=0.1, decode_s=0.01, prefill_pair_s=1e-3, decode_pair_s=1e-4)


def grant(start: int, count: int) -> Grant:
    draw = Draw(sampling=SamplingParams(), index=0, position=0)
    return Grant(request_id=f"{start}", tokens=(7,) * count, start=start, block_ids=table_of(), draw=draw)


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
    [
        ("frame_s", -1.0),
        ("token_bytes", 0),
        ("version", 2),
        ("prefill", {"lines": [], "overhead_s": 0.0}),
        ("pace", 1),
        ("frame_s", "1"),
        ("noise", None),
        ("intake_s", True),
        ("residuals", [1]),
        ("about", "me"),
    ],
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


def test_an_idle_step_costs_what_every_step_costs() -> None:
    assert StepShape() == StepShape(prefill_tokens=0, decodes=0, prefill_pairs=0, decode_pairs=0)
    assert StepLaw(lines=(StepLine(),)).seconds(StepShape(prefill_tokens=5, decodes=5, decode_pairs=9)) == 0.0
    assert StepLaw(lines=(LINE,)).seconds(StepShape()) == LINE.step_s


@pytest.mark.parametrize(("decodes", "pairs"), [(0, 0), (1, 700), (64, 700), (64, 10**6)])
def test_a_step_that_only_decodes_takes_what_its_shape_takes(decodes: int, pairs: int) -> None:
    memory, arithmetic = StepLine(step_s=2.0, decode_pair_s=1e-4), StepLine(decode_s=0.5, decode_pair_s=1e-6)
    law = StepLaw(lines=(memory, arithmetic), overhead_s=0.25)
    shape = StepShape(decodes=decodes, decode_pairs=pairs)
    assert law.decode_seconds(decodes, pairs) == pytest.approx(law.seconds(shape))
    assert law.seconds(shape) == pytest.approx(0.25 + max(2.0 + 1e-4 * pairs, 0.5 * decodes + 1e-6 * pairs))


def test_a_prompt_in_it_makes_a_step_one_of_prompts() -> None:
    assert StepShape.of(Step(grants=(grant(9, 1), grant(4, 2)))).kind is StepKind.PREFILL
    assert StepShape.of(Step(grants=(grant(9, 1),))).kind is StepKind.DECODE
    assert StepShape.of(Step(grants=(grant(4, 2),))) == StepShape(prefill_tokens=2, prefill_pairs=5 + 6)


@pytest.mark.parametrize("figure", [-1.0, -1e-9, math.inf, math.nan])
@pytest.mark.parametrize(
    "made",
    [
        lambda figure: StepLine(decode_pair_s=figure),
        lambda figure: StepLaw(lines=(LINE,), overhead_s=figure),
        lambda figure: LinkLaw(latency_s=figure),
        lambda figure: LinkLaw(bytes_per_s=figure),
        lambda figure: CostModel(
            prefill=StepLaw(lines=(LINE,)), decode=StepLaw(lines=(LINE,)), token_bytes=4, noise=figure
        ),
        lambda figure: SharingLaw(prefill_beside_decode=figure),
    ],
)
def test_a_cost_that_is_negative_or_without_end_is_refused(made: Callable[[float], object], figure: float) -> None:
    with pytest.raises(ValueError, match=r"_s|noise|prefill_beside_decode"):
        made(figure)


@pytest.mark.parametrize("token_bytes", [-4, 0, 1, 2, 3, 6, 15])
def test_tokens_that_are_no_whole_words_of_memory_are_refused(token_bytes: int) -> None:
    law = StepLaw(lines=(LINE,))
    with pytest.raises(ValueError, match="token_bytes"):
        CostModel(prefill=law, decode=law, token_bytes=token_bytes)
    assert CostModel(prefill=law, decode=law, token_bytes=4).token_bytes == 4


def test_what_is_not_told_costs_nothing_and_a_link_has_the_products_window() -> None:
    law = StepLaw(lines=(LINE,))
    costs = CostModel(prefill=law, decode=law, token_bytes=20)
    assert (costs.frame_s, costs.intake_s, costs.intake_token_s, costs.noise, law.overhead_s) == (0, 0, 0, 0, 0)
    assert (costs.about, costs.residuals, costs.link.latency_s) == ({}, {}, 0)
    assert (costs.link.window_bytes, costs.link.message_bytes) == (Flow().window_bytes, Flow().message_bytes)
    assert (
        costs.sharing.slowdown(StepKind.PREFILL, [*StepKind])
        == costs.sharing.slowdown(StepKind.DECODE, [*StepKind])
        == 1
    )


@pytest.mark.parametrize("bytes_per_s", [0.0, -0.5])
def test_a_link_that_carries_nothing_is_refused_and_a_slow_one_is_not(bytes_per_s: float) -> None:
    with pytest.raises(ValueError, match="bytes_per_s"):
        LinkLaw(bytes_per_s=bytes_per_s)
    assert LinkLaw(bytes_per_s=0.5).bytes_per_s == 0.5


def test_each_pair_of_steps_has_a_factor_of_its_own() -> None:
    law = SharingLaw(
        prefill_beside_prefill=1.5, prefill_beside_decode=1.25, decode_beside_prefill=1.125, decode_beside_decode=1.0625
    )
    prefill, decode = StepKind.PREFILL, StepKind.DECODE
    assert [law.slowdown(mine, [other]) for mine in (prefill, decode) for other in (prefill, decode)] == [
        1.5, 1.25, 1.125, 1.0625,
    ]  # fmt: skip
    assert law.slowdown(prefill, [prefill, prefill, decode]) == 2.25


def test_a_file_is_an_object_of_version_1() -> None:
    law = StepLaw(lines=(LINE,))
    costs = CostModel(prefill=law, decode=law, token_bytes=64, noise=0.5)
    text = costs.to_json()
    assert text.endswith("}\n")
    assert json.loads(text) == json.loads(json.dumps(costs.as_json()))
    assert costs.as_json()["version"] == 1
    raw = json.loads(text)
    for wrong in ("[]", "{", json.dumps({name: value for name, value in raw.items() if name != "version"})):
        with pytest.raises(ValueError, match="cost model"):
            CostModel.from_json(wrong)
    for name in ("prefill", "link", "token_bytes"):
        with pytest.raises(ValueError, match="not a cost model"):
            CostModel.from_json(json.dumps({each: value for each, value in raw.items() if each != name}))
    with pytest.raises(ValueError, match="not a cost model"):
        CostModel.from_json(json.dumps({**raw, "decode": []}))
