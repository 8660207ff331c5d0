"""What is asked of the sampler crosses pods: the first token is drawn on one, the others on another, as by one alone.

Real pods, links and engines, tiny models: penalties, bans, grammars, seeds and log probabilities are folds over prompt
and output, so it never shows where a token was drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_runs import engine, greedy, run_until_idle, spec
from pods import Asked, Pods, pods, prompt

from pagewire.core.engine_messages import Add
from pagewire.core.sampling import Grammar, GrammarKind, SamplingParams, TokenBias, TokenSequence
from pagewire.core.token_record import TokenLogprobs

LONG = prompt(1, 70)
ASKED: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.8, "temperature": 1.2},
    "bans": {
        "bad_words": (TokenSequence(tokens=(LONG[-1], 7)), TokenSequence(tokens=(8,)), TokenSequence(tokens=(7, 9))),
        "allowed_token_ids": (7, 8, 9, 10),
        "temperature": 1.0,
    },
    "bias": {"logit_bias": (TokenBias(token=33, bias=9.0),), "typical_p": 0.7, "min_p": 0.01, "temperature": 1.0},
    "ends": {"min_tokens": 7, "stop_token_ids": (1, 2), "allowed_token_ids": (1, 2, 3), "temperature": 1.0},
    "grammar": {
        "grammar": Grammar(kind=GrammarKind.REGEX, text="[a-f]{3}-[0-9]{2,}", field="guide"),
        "temperature": 1.0,
        "ignore_eos": False,
    },
    "logprobs": {"logprobs": 5, "temperature": 0.9},
}


async def whole(model: Path, **sampling: Any) -> Asked:
    """Return what a single engine says."""
    loop = engine(model).loop
    asked = Asked(spec("whole", LONG, greedy(12, **sampling)))
    loop.add(Add(spec=asked.spec))
    while (done := loop.step()) is not None:
        for record in done.records:
            asked.hear(record)
    run_until_idle(loop)
    return asked


def alike(ours: list[TokenLogprobs], theirs: list[TokenLogprobs]) -> None:
    assert [each.token for each in ours] == [each.token for each in theirs]
    assert [each.logprob for each in ours] == pytest.approx([each.logprob for each in theirs], abs=1e-4)
    assert [len(each.top_tokens) for each in ours] == [len(each.top_tokens) for each in theirs]


@pytest.mark.parametrize("name", sorted(ASKED))
async def test_a_first_token_drawn_elsewhere_changes_nothing(model: Path, name: str) -> None:
    expected = await whole(model, seed=11, **ASKED[name])
    async with pods(model) as cluster:
        for max_tokens in (12, 1):  # one token alone is sampled on the prefill pod, and nothing is shipped
            asked = await cluster.ask(f"{name} {max_tokens}", LONG, max_tokens, **_fit(max_tokens, name))
            assert (asked.cause, asked.report.placement) == ("", "remote")
            assert asked.tokens == expected.tokens[:max_tokens] or name == "ends"
            alike(asked.logprobs, expected.logprobs[:max_tokens])
    assert len(expected.tokens) > 1


def _fit(max_tokens: int, name: str) -> dict[str, Any]:
    asked = {"seed": 11, **ASKED[name]}
    return asked | ({"min_tokens": max_tokens} if asked.get("min_tokens", 0) > max_tokens else {})


async def test_a_sequence_goes_on_on_another_pod_with_all_that_was_asked(model: Path) -> None:
    async with pods(model, num_decode=2) as cluster:
        for name, sampling in ASKED.items():
            expected = await whole(model, seed=11, **sampling)
            known = tuple(expected.tokens[:5])
            rest = await cluster.ask(name, LONG, 12, on=cluster.decode[1], output=known, seed=11, **sampling)
            assert rest.cause == ""
            assert rest.tokens == expected.tokens[5:]
            alike(rest.logprobs, expected.logprobs[5:])


async def test_a_prompt_that_is_scored_is_computed_where_it_is_decoded(model: Path) -> None:
    expected = await whole(model, prompt_logprobs=3)
    async with pods(model) as cluster:
        await cluster.ask("before", LONG)
        asked = await cluster.ask("a", LONG, 12, prompt_logprobs=3)
        assert (asked.cause, asked.report.placement) == ("", "local")
        assert asked.report.decode_computed_tokens == len(LONG)
        assert asked.tokens == expected.tokens
        assert len(asked.prompt_logprobs) == len(LONG) - 1
        alike(asked.prompt_logprobs, expected.prompt_logprobs)
        one = await cluster.ask("one", LONG, 1, prompt_logprobs=3)
        alike(one.prompt_logprobs, expected.prompt_logprobs)
        assert cluster.p.counter("prompts_accepted") == 1


async def test_a_bad_grammar_comes_back_by_its_field_and_warns_of_no_loss(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Grammar(kind=GrammarKind.REGEX, text="((", field="guided_regex")
    async with pods(model) as cluster:
        for max_tokens in (8, 1):
            asked = await cluster.ask(f"bad {max_tokens}", LONG, max_tokens, grammar=bad, ignore_eos=False)
            assert (asked.cause, asked.tokens) == ("invalid_request", [])
            assert asked.ended is not None
            assert asked.ended.error is not None
            assert asked.ended.error.field == "guided_regex"
        await _still_works(cluster)
    assert [each.getMessage() for each in caplog.records if "bad " in each.getMessage()] == []


async def test_what_no_pod_can_index_is_refused_at_the_door(model: Path) -> None:
    async with pods(model) as cluster:
        asked = await cluster.ask("a", LONG, allowed_token_ids=(259,))
        assert asked.cause == "invalid_request"
        await _still_works(cluster)


async def _still_works(cluster: Pods) -> None:
    assert (await cluster.ask("well", LONG)).cause == ""


def test_the_cases_ask_for_what_they_are_called() -> None:
    for asked in ASKED.values():
        SamplingParams(**{"max_tokens": 12, **asked}).validate(259)
