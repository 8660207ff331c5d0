"""The sampler inside a whole engine: tokens equal transformers' `generate` with its processors, log probabilities its
logits, whatever the batching, the chunks, preemption, and whichever pod goes on with a sequence.

Tiny models with random weights in fp32: the mechanism is exact, answers make no sense.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import Heard, assert_at_rest, engine, run_all, run_until_idle, spec
from transformers import AutoModelForCausalLM, GenerationConfig

from pagewire.core.engine_messages import Add, Join, Reserve, StepDone
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams, TokenBias, TokenSequence
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.core.token_record import TokenLogprobs
from pagewire.engine import sampler
from pagewire.engine.engine_loop import EngineLoop

TinyModel = Callable[[str], Path]

COUNT = 14
EOS = [258, 256]  # of tests/support/tiny_model.py
BIAS = {3: 4.0, 90: -8.0}
BAD = [[11], [200, 7]]


def prompts() -> list[list[int]]:
    chance = random.Random(5)
    return [[chance.randrange(256) for _ in range(length)] for length in (1, 17, 40, 33)]


def words(*ids: list[int]) -> tuple[TokenSequence, ...]:
    return tuple(TokenSequence(tokens=tuple(each)) for each in ids)


def bad_of(answer: list[int]) -> list[list[int]]:
    """Return what bans something that a plain answer says: its 2nd token, its 5th to 7th."""
    return [answer[1:2], answer[4:7]]


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> Any:
    loaded = AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype=torch.float32).eval()
    loaded.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return loaded


def generated(model: Any, prompt: list[int], **asked: Any) -> list[int]:
    tokens = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=COUNT, **asked)
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        out: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return out.double()


def test_greedy_answers_are_those_of_generate_with_its_processors(tiny: TinyModel, model: Any) -> None:
    asked: list[tuple[SequenceSpec, list[int]]] = []
    for i, prompt in enumerate(prompts()):
        plain = generated(model, prompt)
        bad = bad_of(plain)
        both = {"repetition_penalty": 1.4, "bad_words_ids": bad}
        theirs: list[dict[str, Any]] = [
            {},
            {"repetition_penalty": 1.8},
            {"bad_words_ids": bad},
            {"sequence_bias": {(token,): bias for token, bias in BIAS.items()}, **both},
            {"eos_token_id": plain[2], "min_new_tokens": 6, "pad_token_id": 0},
        ]
        biased = tuple(TokenBias(token=token, bias=bias) for token, bias in BIAS.items())
        ours: list[dict[str, Any]] = [
            {},
            {"repetition_penalty": 1.8},
            {"bad_words": words(*bad)},
            {"logit_bias": biased, "repetition_penalty": 1.4, "bad_words": words(*bad)},
            {"stop_token_ids": (plain[2],), "min_tokens": 6},
        ]
        for k, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            sampling = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True, **one)
            asked.append((spec(f"{i} {k}", prompt, sampling), generated(model, prompt, **other)))
    heard = run_all(engine(tiny("llama"), chunk_size=16, max_num_batched_tokens=64).loop, [one for one, _ in asked])
    assert {one.request_id: heard.tokens[one.request_id] for one, _ in asked} == {
        one.request_id: answer for one, answer in asked
    }
    changed = [answer != asked[place // 5 * 5][1] for place, (_, answer) in enumerate(asked)]
    assert sum(changed) >= 12, "the parameters must change answers, or nothing is shown"


def every_feature() -> list[SequenceSpec]:
    """Return a batch of sequences that each ask for something else, drawn with a seed."""
    asked: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"repetition_penalty": 1.5, "logprobs": 3},
        {"presence_penalty": 0.9, "frequency_penalty": 0.6, "top_p": 0.9},
        {"typical_p": 0.6, "top_k": 30, "prompt_logprobs": 2},
        {"bad_words": words([5], [7, 8], [8, 7]), "allowed_token_ids": (5, 7, 8, 9), "logprobs": 0},
        {"min_tokens": 9, "stop_token_ids": (9, 10, 11), "allowed_token_ids": (9, 10, 11, 12), "ignore_eos": False},
        {"logit_bias": (TokenBias(token=40, bias=6.0),), "min_p": 0.05},
    ]
    return [
        spec(
            str(i),
            prompts()[i % 4],
            SamplingParams(**{"max_tokens": COUNT, "temperature": 1.3, "seed": i, "ignore_eos": True, **each}),
        )
        for i, each in enumerate(asked)
    ]


class Records:
    """What a loop reported of each sequence."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self.num_partial = 0

    def hear(self, done: StepDone) -> None:
        for record in done.records:
            name = record.request_id
            assert record.tokens or record.prompt_logprobs, "an empty record"
            assert len(record.logprobs) in (0, len(record.tokens))
            self.tokens.setdefault(name, []).extend(record.tokens)
            self.logprobs.setdefault(name, []).extend(record.logprobs)
            self.prompt_logprobs.setdefault(name, []).extend(record.prompt_logprobs)
            self.num_partial += not record.tokens

    @classmethod
    def of(cls, loop: EngineLoop, specs: list[SequenceSpec]) -> Records:
        records = cls()
        for one in specs:
            loop.add(Add(spec=one))
        while (done := loop.step()) is not None:
            records.hear(done)
        assert_at_rest(loop)
        return records


def test_a_mixed_batch_equals_each_sequence_alone(tiny: TinyModel) -> None:
    together = Records.of(engine(tiny("llama"), chunk_size=16).loop, every_feature())
    alone = engine(tiny("llama"))
    for one in every_feature():
        found = Records.of(alone.loop, [one])
        assert found.tokens[one.request_id] == together.tokens[one.request_id], one.sampling
        for ours, theirs in (
            (found.logprobs[one.request_id], together.logprobs[one.request_id]),
            (found.prompt_logprobs[one.request_id], together.prompt_logprobs[one.request_id]),
        ):
            assert [each.token for each in ours] == [each.token for each in theirs]
            assert [each.logprob for each in ours] == pytest.approx([each.logprob for each in theirs], abs=1e-5)
    assert set(together.tokens["5"]) <= {7, 8, 9}
    assert together.tokens["6"][-1] in (9, 10, 11)
    assert 10 <= len(together.tokens["6"]) <= COUNT
    assert set(together.tokens["6"][:9]) == {12}, "nothing that ends may come before min_tokens"


@pytest.mark.parametrize("known", [1, 6])
def test_a_sequence_that_goes_on_elsewhere_says_the_same(tiny: TinyModel, known: int) -> None:
    """Continued from its tokens alone, as after a loss, and joined behind a first token that another pod sampled."""
    whole = Records.of(engine(tiny("llama")).loop, every_feature())
    other = engine(tiny("llama"), Role.DECODE)
    for one in every_feature():
        name, answer = one.request_id, whole.tokens[one.request_id]
        records = Records()
        if known == 1:
            hits = other.loop.reserve(Reserve(spec=one)).hit_blocks
            other.loop.join(Join(request_id=name, num_computed=hits * 16, output=tuple(answer[:1])))
        else:
            other.loop.add(Add(spec=spec(name, one.tokens, one.sampling, output=tuple(answer[:known]))))
        while (done := other.loop.step()) is not None:
            records.hear(done)
        assert records.tokens[name] == answer[known:], one.sampling
        assert [each.token for each in records.logprobs[name]] == [each.token for each in whole.logprobs[name]][known:]


def test_preemption_changes_nothing_that_is_said(tiny: TinyModel) -> None:
    asked = [
        spec(
            str(i),
            prompt,
            SamplingParams(
                max_tokens=60, temperature=1.1, seed=i, repetition_penalty=1.3, presence_penalty=0.4, logprobs=1,
                prompt_logprobs=1, ignore_eos=True, bad_words=words([i], [9, 9]),
            ),
        )
        for i, prompt in enumerate(([*prompts()[1], *prompts()[2]], *prompts()[1:]))
    ]  # fmt: skip
    roomy = Records.of(engine(tiny("llama")).loop, asked)
    tight = engine(tiny("llama"), kv_memory_bytes=17 * 16 * 768, max_model_len=128, chunk_size=16)
    found = Records.of(tight.loop, asked)
    assert tight.loop.load().preemptions > 0
    assert found.tokens == roomy.tokens
    for name in roomy.tokens:
        for ours, theirs in ((found.logprobs, roomy.logprobs), (found.prompt_logprobs, roomy.prompt_logprobs)):
            assert [each.token for each in ours[name]] == [each.token for each in theirs[name]]
            assert [each.logprob for each in ours[name]] == pytest.approx(
                [each.logprob for each in theirs[name]], abs=1e-5
            )


def test_logprobs_are_the_models_own_before_any_edit(tiny: TinyModel, model: Any) -> None:
    prompt = prompts()[2]
    sampling = SamplingParams(
        max_tokens=COUNT, temperature=0.7, repetition_penalty=1.6, bad_words=words([3]), seed=4, logprobs=20,
        ignore_eos=True,
    )  # fmt: skip
    found = Records.of(engine(tiny("llama"), chunk_size=16).loop, [spec("a", prompt, sampling)])
    answer = found.tokens["a"]
    expected = logits_of(model, prompt + answer).log_softmax(dim=-1)[len(prompt) - 1 :]
    for place, said in enumerate(found.logprobs["a"]):
        assert said.token == answer[place]
        assert said.logprob == pytest.approx(float(expected[place, said.token]), abs=1e-4)
        best = expected[place].topk(20)
        assert list(said.top_logprobs) == pytest.approx(best.values.tolist(), abs=1e-4)
        assert set(said.top_tokens[:10]) == set(best.indices[:10].tolist())
        assert said.rank == int((expected[place] > expected[place, said.token]).sum()) + 1


@pytest.mark.parametrize("settings", [{}, {"chunk_size": 7}, {"chunk_size": 16, "block_size": 32}], ids=str)
def test_a_prompt_is_scored_whole_chunk_by_chunk_whatever_is_cached(
    tiny: TinyModel, model: Any, settings: dict[str, Any]
) -> None:
    built = engine(tiny("llama"), **settings)
    prompt = [*prompts()[2], *prompts()[3], *prompts()[1]]
    run_all(built.loop, [spec("before", prompt, SamplingParams(max_tokens=2, ignore_eos=True))])
    sampling = SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=4, ignore_eos=True)
    plain = spec("plain", [*prompt, 1], SamplingParams(max_tokens=1, ignore_eos=True))
    found = Records.of(built.loop, [spec("a", prompt, sampling), plain])
    expected = logits_of(model, prompt).log_softmax(dim=-1)
    said = found.prompt_logprobs["a"]
    assert [each.token for each in said] == prompt[1:]
    assert [each.logprob for each in said] == pytest.approx(
        expected[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist(), abs=1e-4
    )
    assert [each.top_tokens for each in said] == [tuple(row) for row in expected[:-1].topk(4).indices.tolist()]
    assert found.num_partial == (len(prompt) - 1) // settings.get("chunk_size", 512)
    assert "plain" in found.tokens
    assert built.loop.load().prompt_tokens_cached > 0, "who asks for no scores takes what is cached"


def test_one_token_has_nothing_to_score(tiny: TinyModel) -> None:
    sampling = SamplingParams(max_tokens=2, prompt_logprobs=1, ignore_eos=True)
    assert Records.of(engine(tiny("llama")).loop, [spec("a", [5], sampling)]).prompt_logprobs["a"] == []


def test_who_may_choose_nothing_ends_by_name_and_nobody_else(tiny: TinyModel) -> None:
    stuck = SamplingParams(max_tokens=9, allowed_token_ids=(5,), bad_words=words([5, 5]), ignore_eos=True)
    fine = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
    built = engine(tiny("llama"))
    heard = run_all(built.loop, [spec("stuck", [1, 2], stuck), spec("fine", [3, 4], fine)])
    assert heard.tokens["stuck"] == [5]
    error = heard.ends["stuck"].error
    assert error is not None
    assert (error.cause, error.field) == ("invalid_request", "sampling")
    assert heard.tokens["fine"] == run_all(engine(tiny("llama")).loop, [spec("fine", [3, 4], fine)]).tokens["fine"]
    assert_at_rest(built.loop)


def test_a_token_outside_the_vocabulary_is_refused_before_anything_is_computed(tiny: TinyModel) -> None:
    built = engine(tiny("llama"))
    for field, value in (
        ("logit_bias", (TokenBias(token=259, bias=1.0),)),
        ("allowed_token_ids", (259,)),
        ("bad_words", words([1, 259])),
    ):
        heard: Heard = run_all(built.loop, [spec(field, [1], SamplingParams(**{field: value}))])  # type: ignore[arg-type]
        error = heard.ends[field].error
        assert error is not None
        assert (error.cause, error.field) == ("invalid_request", field)
    assert run_until_idle(built.loop).steps == 0


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("num_top", [0, 3])
def test_a_row_without_a_distribution_has_no_log_probabilities(fill: float, num_top: int) -> None:
    logits = torch.randn(2, 10)
    assert len(sampler._report(logits, [1, 2], [num_top, num_top])) == 2
    logits[1] = fill
    with pytest.raises(ValueError, match="no distribution"):
        sampler._report(logits, [1, 2], [num_top, num_top])
