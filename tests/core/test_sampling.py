"""Sampling parameters: each bound is refused by name, and NaN is outside all of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pagewire.core.errors import InvalidRequest
from pagewire.core.sampling import (
    MAX_SEED,
    EarlyStopping,
    Grammar,
    GrammarKind,
    SamplingParams,
    TokenBias,
    TokenSequence,
)

NUMBERS = SamplingParams()
BEAMS = SamplingParams(n=3, use_beam_search=True)


def refused(params: SamplingParams, vocab_size: int | None = None) -> str | None:
    """Return the field that parameters are refused for, None where they are taken."""
    try:
        params.validate(vocab_size)
    except InvalidRequest as error:
        return error.field
    return None


@pytest.mark.parametrize(
    ("params", "field", "least", "most"),
    [
        (NUMBERS, "n", 1, 128),
        (NUMBERS, "max_tokens", 1, 2**31 - 1),
        (SamplingParams(max_tokens=7), "min_tokens", 0, 7),
        (NUMBERS, "temperature", 0.0, 100.0),
        (NUMBERS, "top_k", 0, 2**31 - 1),
        (NUMBERS, "min_p", 0.0, 1.0),
        (NUMBERS, "repetition_penalty", 0.01, 100.0),
        (NUMBERS, "presence_penalty", -2.0, 2.0),
        (NUMBERS, "frequency_penalty", -2.0, 2.0),
        (NUMBERS, "seed", -(2**63), 2**63 - 1),
        (NUMBERS, "logprobs", 0, 20),
        (NUMBERS, "prompt_logprobs", 0, 20),
        (BEAMS, "beam_width", 3, 128),
        (BEAMS, "length_penalty", -10.0, 10.0),
    ],
)
def test_a_number_lies_between_its_bounds(params: SamplingParams, field: str, least: Any, most: Any) -> None:
    beyond: list[Any] = [math.nextafter(least, -math.inf), math.nextafter(most, math.inf)]
    if isinstance(least, int):
        beyond = [least - 1, most + 1]
    assert [refused(dataclasses.replace(params, **{field: value})) for value in (least, most)] == [None, None]
    assert [refused(dataclasses.replace(params, **{field: value})) for value in beyond] == [field, field]


@pytest.mark.parametrize("field", ["top_p", "typical_p"])
def test_a_share_of_what_is_likely_is_more_than_nothing(field: str) -> None:
    for value in (5e-324, 0.5, 1.0):
        assert refused(SamplingParams(**{field: value})) is None  # type: ignore[arg-type]
    for value in (0.0, -0.5, math.nextafter(1.0, 2.0)):
        assert refused(SamplingParams(**{field: value})) == field  # type: ignore[arg-type]


def biases(count: int) -> tuple[TokenBias, ...]:
    return tuple(TokenBias(token=token, bias=1.0) for token in range(count))


@pytest.mark.parametrize(
    ("field", "kept", "broken"),
    [
        ("logit_bias", biases(1024), biases(1025)),
        ("logit_bias", {5: 100.0, 6: -100.0}, {5: 100.5}),
        ("logit_bias", {5: 100}, {5: -100.5}),
        ("logit_bias", biases(2), (*biases(2), TokenBias(token=1, bias=2.0))),
        ("allowed_token_ids", range(65_536), range(65_537)),
        ("bad_words", [[1]] * 1024, [[1]] * 1025),
        ("bad_words", [[1], range(64)], [[1], range(65)]),
        ("bad_words", [[1]], [[1], []]),
        ("stop", ["x" * 256] * 16, ["x"] * 17),
        ("stop", ["x", "x" * 256], ["x", "x" * 257]),
        ("stop", ["x"], ["x", ""]),
        ("stop_token_ids", range(128), range(129)),
        ("grammar", Grammar(kind=GrammarKind.REGEX, text="a"), Grammar(kind=GrammarKind.REGEX, text="")),
        (
            "grammar",
            Grammar(kind=GrammarKind.REGEX, text="a" * 65_536),
            Grammar(kind=GrammarKind.REGEX, text="a" * 65_537),
        ),
    ],
)
def test_what_is_long_is_bounded(field: str, kept: Any, broken: Any) -> None:
    assert refused(SamplingParams(**{field: kept})) is None
    assert refused(SamplingParams(**{field: broken})) == field


@pytest.mark.parametrize(
    ("field", "of_token"),
    [
        ("logit_bias", lambda token: {3: 1.0, token: 1.0}),
        ("allowed_token_ids", lambda token: [3, token]),
        ("bad_words", lambda token: [[3], [3, token]]),
    ],
)
def test_a_token_is_one_of_the_vocabulary(field: str, of_token: Any) -> None:
    params = {token: SamplingParams(**{field: of_token(token)}) for token in (-1, 0, 9, 10, 2**31 - 1, 2**31)}
    assert [refused(params[token], 10) for token in (-1, 0, 9, 10)] == [field, None, None, field]
    assert [refused(params[token]) for token in (-1, 2**31 - 1, 2**31)] == [field, None, field]


def test_a_stop_token_that_the_model_lacks_never_comes() -> None:
    assert refused(SamplingParams(stop_token_ids=(0, 10, 2**31 - 1)), 10) is None
    assert refused(SamplingParams(stop_token_ids=(0, 2**31)), 10) == "stop_token_ids"


@pytest.mark.parametrize(
    ("allowed", "bad_words", "field"),
    [
        ([5, 6], [[5], [6]], "bad_words"),
        ([5, 6], [[6], [7], [5]], "bad_words"),
        ([5, 6], [[5]], None),
        ([5, 6], [[5, 6], [6, 5]], None),
        ([5, 6], [[5], [6, 7]], None),
        ([], [[5]], None),
    ],
)
def test_something_that_is_allowed_is_left(allowed: list[int], bad_words: list[list[int]], field: str | None) -> None:
    params = SamplingParams(allowed_token_ids=allowed, bad_words=bad_words)  # type: ignore[arg-type]
    assert refused(params) == field


def test_a_grammar_is_refused_by_the_name_that_its_caller_gave_it() -> None:
    for text in ("", "a" * 65_537, "a\ud800"):
        grammar = Grammar(kind=GrammarKind.REGEX, text=text, field="guided_regex")
        assert refused(SamplingParams(grammar=grammar)) == "guided_regex"
    grammar = Grammar(kind=GrammarKind.REGEX, text="a", field="guided_regex")
    assert refused(SamplingParams(grammar=grammar)) is None
    assert refused(dataclasses.replace(BEAMS, grammar=grammar)) == "guided_regex"
    assert refused(SamplingParams(grammar=grammar, ignore_eos=True)) == "ignore_eos"
    assert refused(SamplingParams(ignore_eos=True)) is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"temperature": 1.0}, None),
        ({"temperature": 0.0}, None),
        ({"temperature": 0.5}, "temperature"),
        ({"temperature": 2.0}, "temperature"),
        ({"top_k": 0}, None),
        ({"top_k": 1}, "top_k"),
        ({"top_p": 0.5}, "top_p"),
        ({"min_p": 1.0}, "min_p"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"logprobs": 0}, "logprobs"),
        ({"stop": "x"}, "stop"),
        ({"early_stopping": "never", "length_penalty": 0.5, "repetition_penalty": 1.5, "stop_token_ids": (1,)}, None),
        ({"logit_bias": {1: 1.0}, "allowed_token_ids": [1], "bad_words": [[2]], "prompt_logprobs": 1}, None),
    ],
)
def test_what_draws_or_has_no_meaning_for_beams_is_refused_with_them(change: dict[str, Any], field: str | None) -> None:
    assert refused(dataclasses.replace(BEAMS, **change)) == field
    assert refused(dataclasses.replace(NUMBERS, **change)) == ("length_penalty" if "length_penalty" in change else None)


@pytest.mark.parametrize("change", [{"beam_width": 2}, {"length_penalty": 0.5}, {"early_stopping": True}])
def test_what_steers_a_beam_search_needs_one(change: dict[str, Any]) -> None:
    (field,) = change
    assert refused(SamplingParams(**change)) == field
    assert refused(SamplingParams(use_beam_search=True, **change)) is None


@pytest.mark.parametrize(
    ("params", "num_beams", "num_sequences"),
    [
        (SamplingParams(), 0, 1),
        (SamplingParams(n=3), 0, 3),
        (BEAMS, 3, 3),
        (SamplingParams(n=3, use_beam_search=True, beam_width=5), 5, 5),
        (SamplingParams(n=3, beam_width=5), 0, 3),
    ],
)
def test_as_many_sequences_run_as_answers_or_beams(params: SamplingParams, num_beams: int, num_sequences: int) -> None:
    assert (params.num_beams, params.num_sequences) == (num_beams, num_sequences)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, (False, False, False)),
        ({"temperature": 0.5, "top_k": 5, "seed": 7, "stop": "x", "logprobs": 1}, (False, False, False)),
        ({"repetition_penalty": 2.0}, (True, True, True)),
        ({"presence_penalty": 1.0}, (True, True, True)),
        ({"frequency_penalty": 1.0}, (True, True, True)),
        ({"presence_penalty": -0.5}, (True, True, True)),
        ({"bad_words": [[1]]}, (False, True, True)),
        ({"grammar": Grammar(kind=GrammarKind.REGEX, text="a")}, (False, True, True)),
        ({"min_tokens": 1}, (False, False, True)),
        ({"logit_bias": {1: 1.0}}, (False, False, True)),
        ({"allowed_token_ids": [1]}, (False, False, True)),
    ],
)
def test_what_is_done_to_the_logits(change: dict[str, Any], said: tuple[bool, bool, bool]) -> None:
    params = SamplingParams(**change)
    assert (params.has_penalties, params.reads_tokens, params.edits_logits) == said


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (True, EarlyStopping.TRUE),
        (False, EarlyStopping.FALSE),
        ("never", EarlyStopping.NEVER),
        ("True", EarlyStopping.TRUE),
        (EarlyStopping.NEVER, EarlyStopping.NEVER),
    ],
)
def test_early_stopping_is_said_as_transformers_says_it(given: Any, taken: EarlyStopping) -> None:
    assert SamplingParams(early_stopping=given).early_stopping is taken


@pytest.mark.parametrize("given", ["sometimes", None, 1, ""])
def test_another_early_stopping_is_none(given: Any) -> None:
    with pytest.raises(InvalidRequest, match=r'^early_stopping is true, false or "never", not ') as caught:
        SamplingParams(early_stopping=given)
    assert caught.value.field == "early_stopping"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": "x"}, "^logprobs is of type int or None, not 'x'$"),
        ({"top_p": "x"}, "^top_p is of type int or float, not 'x'$"),
        ({"allowed_token_ids": "12"}, "^allowed_token_ids is of type int, not '12'$"),
        ({"bad_words": ["ab"]}, "^a bad word is a list of token ids, not 'ab'; LLM.bad_words makes tokens of a text$"),
        ({"bad_words": [5]}, "^a bad word is a list of token ids, not 5$"),
    ],
)
def test_a_value_of_another_type_is_told_what_it_should_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        SamplingParams(**change).validate()


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
        ("bad_words", [[True]]), ("stop", ["a\ud800"]), ("stop", {5: 1.0}), ("allowed_token_ids", ""),
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
