"""Sampling parameters: each bound is refused by name, and NaN is outside all of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pagewire.core.errors import InvalidRequest
from pagewire.core.sampling import MAX_SEED, Grammar, GrammarKind, SamplingParams, TokenBias, TokenSequence


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 1},
        {"temperature": 0.0},
        {"temperature": 100.0},
        {"temperature": 1e-5},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100.0},
        {"top_k": 0},
        {"top_p": 1.0},
        {"min_p": 1.0},
        {"seed": -MAX_SEED - 1},
        {"stop": ("x" * 256,) * 16},
        {"stop_token_ids": (0, 2**31 - 1)},
    ],
)
def test_the_bounds_themselves_are_allowed(change: dict[str, Any]) -> None:
    dataclasses.replace(SamplingParams(), **change).validate()


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 0},
        {"max_tokens": 2**31},
        {"temperature": -0.1},
        {"temperature": -1e-300},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-38},
        {"repetition_penalty": 0.0099},
        {"repetition_penalty": 101.0},
        {"repetition_penalty": math.nan},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": math.nan},
        {"seed": MAX_SEED + 1},
        {"stop": ("",)},
        {"stop": ("x" * 257,)},
        {"stop": ("x",) * 17},
        {"stop_token_ids": (-1,)},
        {"stop_token_ids": tuple(range(129))},
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        dataclasses.replace(SamplingParams(), **change).validate()
    assert caught.value.field == next(iter(change))


def test_greedy() -> None:
    assert SamplingParams(temperature=0.0).is_greedy
    assert SamplingParams(top_k=1).is_greedy
    assert not SamplingParams().is_greedy
    for next_to_nothing in (9.9e-6, 1e-8, 5e-324):
        assert SamplingParams(temperature=next_to_nothing).temperature == 0.0
    assert SamplingParams(temperature=1e-5).temperature == 1e-5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", "3"), ("n", 2.5), ("n", True), ("temperature", "hot"), ("max_tokens", 2.5), ("ignore_eos", 1),
        ("logprobs", 1.0), ("grammar", "[0-9]+"), ("bad_words", ["x"]), ("stop", [5]), ("stop_token_ids", ["a"]),
        ("logit_bias", [5]), ("allowed_token_ids", 1.5), ("logit_bias", {"42": 1.0}), ("logit_bias", {42: "1"}),
        ("bad_words", "x"), ("bad_words", [5]), ("bad_words", [["a"]]),
        ("bad_words", [TokenSequence(tokens=7)]),  # type: ignore[arg-type]
        ("bad_words", [[True]]), ("stop", ["a\ud800"]),
        ("grammar", Grammar(kind="foo", text="a")),  # type: ignore[arg-type]
        ("grammar", Grammar(kind=["regex"], text="a")),  # type: ignore[arg-type]
        ("grammar", Grammar(kind=GrammarKind.JSON_SCHEMA, text={"type": "object"})),  # type: ignore[arg-type]
        ("grammar", Grammar(kind=GrammarKind.REGEX, text="a\ud800b")),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value}).validate()  # type: ignore[arg-type]
    assert caught.value.field == field


def test_what_users_write_is_taken() -> None:
    written = SamplingParams(stop="ab", stop_token_ids=[1, 2], logit_bias={5: 1.0})  # type: ignore[arg-type]
    assert written == SamplingParams(stop=("ab",), stop_token_ids=(1, 2), logit_bias=(TokenBias(token=5, bias=1.0),))
    written.validate(10)
    words = (TokenSequence(tokens=(4, 2)), TokenSequence(tokens=(7,)))
    for bad_words in ([[4, 2], (7,)], [TokenSequence(tokens=[4, 2]), words[1]]):  # type: ignore[arg-type]
        assert SamplingParams(bad_words=bad_words).bad_words == words  # type: ignore[arg-type]
    SamplingParams(grammar=Grammar(kind="regex", text="a")).validate()  # type: ignore[arg-type]
