"""Edits of logits are transformers' processors, bit for bit, on the same logits; the others are their definitions.

Built as the engine builds them, from what sequences ask; so this is also the test of `EditBuilder`.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from pagewire.core.sampling import SamplingParams, TokenBias, TokenSequence
from pagewire.engine.edit_builder import EditBuilder
from pagewire.engine.step import Draw
from pagewire.kernels.logit_edits import edit

V = 41
EOS = (3, 40)
BIAS = {5: 2.5, 7: -100.0, 0: 0.25}
BAD = [[9], [1, 2], [4, 4, 4], [6, 5], [2, 8]]


def tokens(*ids: list[int]) -> tuple[TokenSequence, ...]:
    return tuple(TokenSequence(tokens=tuple(each)) for each in ids)


BIASED = tuple(TokenBias(token=token, bias=bias) for token, bias in BIAS.items())
ASKED: list[dict[str, Any]] = [
    {},
    {"logit_bias": BIASED},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"bad_words": tokens(*BAD)},
    {"bad_words": tokens([1, 2])},
    {"min_tokens": 6},
    {"min_tokens": 2},
    {"presence_penalty": 0.7},
    {"frequency_penalty": -0.3, "presence_penalty": 1.1},
    {"allowed_token_ids": (0, 1, 2, 4, 20, 21)},
    {"logit_bias": BIASED, "repetition_penalty": 1.3, "bad_words": tokens(*BAD), "min_tokens": 6},
    {"stop_token_ids": (11, 2**30), "min_tokens": 5, "ignore_eos": True},
]


def sequences(seed: int) -> tuple[torch.Tensor, list[Draw]]:
    chance = random.Random(seed)
    draws = []
    for asked in ASKED:
        prompt = tuple(chance.choices(range(10), k=chance.randrange(1, 9)))
        output = tuple(chance.choices([1, 2, 4, 6, 9, 12], k=chance.randrange(0, 9)))
        sampling = SamplingParams(max_tokens=100, **asked)
        reads = sampling.reads_tokens
        draws.append(
            Draw(
                sampling=sampling,
                index=0,
                position=len(output),
                prompt=prompt if reads else (),
                output=output if reads else (),
            )
        )
    return torch.randn((len(ASKED), V), generator=torch.Generator().manual_seed(seed)), draws


def edited(logits: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
    builder = EditBuilder(frozenset(EOS), torch.device("cpu"))
    edits = builder.build({str(row): draw for row, draw in enumerate(draws)}, V)
    return logits if edits is None else edit(logits, edits)


def transformers_edited(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Run the processors in the order in which `generate` does."""
    sampling, processors = draw.sampling, LogitsProcessorList()
    if sampling.logit_bias:
        processors.append(SequenceBiasLogitsProcessor({(each.token,): each.bias for each in sampling.logit_bias}))
    if sampling.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.bad_words:
        processors.append(NoBadWordsLogitsProcessor([list(word.tokens) for word in sampling.bad_words]))
    if sampling.min_tokens:
        processors.append(MinNewTokensLengthLogitsProcessor(0, sampling.min_tokens, list(EOS)))
    # The processor counts ids behind a prompt of length 0; the others read ids, of which a lone min_tokens has none.
    ids = draw.prompt + draw.output if sampling.reads_tokens else (1,) * draw.position
    if sampling.min_tokens and sampling.reads_tokens:
        processors.pop()
        processors.append(MinNewTokensLengthLogitsProcessor(len(draw.prompt), sampling.min_tokens, list(EOS)))
    scores: torch.Tensor = processors(torch.tensor([ids], dtype=torch.int64), logits[None])  # type: ignore[arg-type]
    return scores[0]


THEIRS = [row for row, asked in enumerate(ASKED) if set(asked) <= {"logit_bias", "repetition_penalty", "bad_words"}
          or (set(asked) <= {"logit_bias", "repetition_penalty", "bad_words", "min_tokens"})]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_edits_are_those_of_transformers(seed: int) -> None:
    logits, draws = sequences(seed)
    found = edited(logits, draws)
    assert len(THEIRS) == 9
    for row in THEIRS:
        assert torch.equal(found[row], transformers_edited(logits[row], draws[row])), ASKED[row]


@pytest.mark.parametrize("seed", range(12))
def test_penalties_lists_and_ends_are_their_definitions(seed: int) -> None:
    logits, draws = sequences(seed)
    found = edited(logits, draws)
    for row, draw in enumerate(draws):
        asked = draw.sampling
        if row in THEIRS:
            continue
        for token in range(V):
            expected = float(logits[row, token])
            count = draw.output.count(token)
            expected -= asked.frequency_penalty * count + asked.presence_penalty * (count > 0)
            if asked.allowed_token_ids and token not in asked.allowed_token_ids:
                expected = -torch.inf
            if draw.position < asked.min_tokens and token in asked.stop_token_ids:
                expected = -torch.inf
            assert float(found[row, token]) == pytest.approx(expected, abs=1e-5), (ASKED[row], token)


@pytest.mark.parametrize("seed", range(4))
def test_a_mixed_batch_equals_each_row_alone(seed: int) -> None:
    logits, draws = sequences(seed)
    together = edited(logits, draws)
    for row, draw in enumerate(draws):
        assert torch.equal(edited(logits[row : row + 1], [draw])[0], together[row]), ASKED[row]


def test_who_asks_for_nothing_gets_no_edits() -> None:
    builder = EditBuilder(frozenset(EOS), torch.device("cpu"))
    plain = Draw(
        sampling=SamplingParams(temperature=0.7, top_p=0.9, logprobs=5, stop_token_ids=(1,)), index=0, position=9
    )
    assert builder.build({"a": plain, "b": plain}, V) is None


def calls_of(asked: dict[str, Any], num_rows: int) -> int:
    """Return how many Python functions a step of so many known sequences calls to build its edits."""
    builder, calls = EditBuilder(frozenset(EOS), torch.device("cpu")), 0
    every = [SamplingParams(max_tokens=100, **asked) for _ in range(num_rows)]
    draws = {
        str(row): Draw(sampling=each, index=0, position=1, prompt=(1, 2), output=(3,)) for row, each in enumerate(every)
    }

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    builder.build(draws, V)
    sys.setprofile(count)
    try:
        builder.build(draws, V)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("asked", [asked for asked in ASKED if asked], ids=str)
def test_a_sequence_more_takes_a_look_at_what_it_asks_and_no_array_of_its_own(asked: dict[str, Any]) -> None:
    """All that is done to arrays is done to those of all rows: many functions of numpy are Python, and call others."""
    kinds = len(asked.keys() - {"max_tokens", "ignore_eos", "stop_token_ids"})
    assert calls_of(asked, 96) - calls_of(asked, 32) <= 64 * (8 + 6 * kinds)


def test_lists_are_remembered_by_request_and_never_mixed_up() -> None:
    """More requests than are remembered, each with lists of its own, twice."""
    builder = EditBuilder(frozenset(), torch.device("cpu"))
    logits = torch.zeros(1, 1000)
    for _ in range(2):
        for token in range(600):
            sampling = SamplingParams(logit_bias=(TokenBias(token=token, bias=1.0),))
            edits = builder.build({"a": Draw(sampling=sampling, index=0, position=0)}, 1000)
            assert edits is not None
            assert int(edit(logits, edits).argmax()) == token


def test_outputs_are_remembered_by_name_and_never_mixed_up() -> None:
    """Sequences that go on, are taken back, go on as another did, and whose names are used again; and too many."""
    chance, builder = random.Random(0), EditBuilder(frozenset(), torch.device("cpu"))
    outputs: dict[str, tuple[int, ...]] = {str(each): () for each in range(300)}
    for step in range(60):
        for name, output in outputs.items():
            way = chance.random()
            if way < 0.8:
                outputs[name] = (*output, *chance.choices(range(V), k=chance.randrange(1, 4)))
            elif way < 0.9:
                outputs[name] = chance.choice(list(outputs.values()))
            else:
                outputs[name] = output[: chance.randrange(len(output) + 1)]
        names = list(outputs) if step == 30 else chance.sample(list(outputs), 20)
        draws = {
            name: Draw(
                sampling=SamplingParams(max_tokens=1000, frequency_penalty=0.5, repetition_penalty=1.5),
                index=0, position=len(outputs[name]), prompt=(1, 2), output=outputs[name],
            )
            for name in names
        }  # fmt: skip
        found, alone = (each.build(draws, V) for each in (builder, EditBuilder(frozenset(), torch.device("cpu"))))
        assert found is not None
        assert alone is not None
        logits = torch.randn(len(draws), V)
        assert torch.equal(edit(logits, found), edit(logits, alone))
