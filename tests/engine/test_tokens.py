"""Greedy tokens in fp32 equal transformers' `generate`, token for token, whatever the batching, on tiny models.

Random weights: this shows that the mechanism is exact on each architecture, not that answers make sense.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
from engine_runs import assert_at_rest, engine, greedy, run_all, run_until_idle, spec
from reference import generate

from pagewire.core.engine_messages import Add, Bind, Join, Reserve
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams

TinyModel = Callable[[str], Path]

NUM_TOKENS = 12
SHARED = 37  # tokens that some prompts begin with


def prompts() -> list[list[int]]:
    chance = random.Random(0)
    lengths = [1, 2, 15, 16, 17, 33, 64, 100]
    shared = [chance.randrange(256) for _ in range(SHARED)]
    plain = [[chance.randrange(256) for _ in range(length)] for length in lengths]
    return plain + [shared + [chance.randrange(256) for _ in range(length)] for length in (1, 11, 40)] + [shared]


@pytest.fixture(scope="module")
def expected(tiny: TinyModel) -> Callable[[str], list[list[int]]]:
    known: dict[str, list[list[int]]] = {}

    def tokens(name: str) -> list[list[int]]:
        if name not in known:
            known[name] = generate(tiny(name), prompts(), NUM_TOKENS)
        return known[name]

    return tokens


def specs(max_tokens: int = NUM_TOKENS) -> list[Any]:
    return [spec(str(i), prompt, greedy(max_tokens)) for i, prompt in enumerate(prompts())]


@pytest.mark.parametrize("name", sorted(tiny_model.ARCHITECTURES))
@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 16, "chunk_size": 512, "max_num_batched_tokens": 1024},
        {"block_size": 32, "chunk_size": 7, "max_num_batched_tokens": 40},
        {"block_size": 64, "chunk_size": 33, "max_num_batched_tokens": 64, "max_num_seqs": 3},
    ],
    ids=["whole", "small-chunks", "few-at-once"],
)
def test_mixed_batches_equal_generate(
    tiny: TinyModel, expected: Callable[[str], list[list[int]]], name: str, settings: dict[str, Any]
) -> None:
    built = engine(tiny(name), **settings)
    heard = run_all(built.loop, specs())
    assert [heard.tokens[str(i)] for i in range(len(prompts()))] == expected(name)
    assert_at_rest(built.loop)


def test_prefix_hits_change_no_token(tiny: TinyModel, expected: Callable[[str], list[list[int]]]) -> None:
    built = engine(tiny("qwen3"))
    run_all(built.loop, specs())
    again = [spec(f"again {i}", prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(prompts())]
    heard = run_all(built.loop, again)
    assert [heard.tokens[f"again {i}"] for i in range(len(again))] == expected("qwen3")
    for i, prompt in enumerate(prompts()):
        end = heard.ends[f"again {i}"]
        assert end.cached_tokens == (len(prompt) - 1) // 16 * 16
        assert end.cached_tokens + end.computed_tokens == len(prompt)


def test_preemption_changes_no_token(tiny: TinyModel) -> None:
    asked, num_tokens = prompts()[2:6], 60
    # 3 layers x 2 heads x 16 dims x 2 x 4 bytes = 768 bytes a token: 17 blocks of 16.
    built = engine(tiny("llama"), kv_memory_bytes=17 * 16 * 768, max_model_len=128)
    heard = run_all(built.loop, [spec(str(i), prompt, greedy(num_tokens)) for i, prompt in enumerate(asked)])
    assert built.loop.load().preemptions > 0
    assert [heard.tokens[str(i)] for i in range(len(asked))] == generate(tiny("llama"), asked, num_tokens)
    assert_at_rest(built.loop)


def test_garbage_in_free_blocks_reaches_no_token(tiny: TinyModel, expected: Callable[[str], list[list[int]]]) -> None:
    built = engine(tiny("mistral"))
    built.cache.pool.fill_(torch.nan)
    heard = run_all(built.loop, specs())
    assert [heard.tokens[str(i)] for i in range(len(prompts()))] == expected("mistral")


def test_a_continued_sequence_says_the_rest(tiny: TinyModel, expected: Callable[[str], list[list[int]]]) -> None:
    built, known = engine(tiny("llama")), 5
    continued = [
        spec(str(i), prompt, greedy(NUM_TOKENS), output=tuple(answer[:known]))
        for i, (prompt, answer) in enumerate(zip(prompts(), expected("llama"), strict=True))
    ]
    for one in continued:
        built.loop.add(Add(spec=one))
    tokens: dict[str, list[int]] = {}
    while (done := built.loop.step()) is not None:
        for record in done.records:
            assert record.position == known + len(tokens.setdefault(record.request_id, []))
            tokens[record.request_id].extend(record.tokens)
    assert [tokens[str(i)] for i in range(len(continued))] == [answer[known:] for answer in expected("llama")]


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize("with_first_token", [True, False])
@pytest.mark.parametrize("lost_blocks", [0, 1])
def test_kv_from_another_pool_equals_local(
    tiny: TinyModel,
    expected: Callable[[str], list[list[int]]],
    name: str,
    with_first_token: bool,
    lost_blocks: int,
) -> None:
    """A prefill engine's blocks are copied into a decode engine's bound ones; what is lost is computed there."""
    prefill = engine(tiny(name), Role.PREFILL, chunk_size=20)
    decode = engine(tiny(name), Role.DECODE)
    prefill.cache.pool.fill_(torch.nan)
    decode.cache.pool.fill_(torch.nan)
    tokens: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts()):
        one = spec(str(i), prompt, greedy(NUM_TOKENS))
        reserved = decode.loop.reserve(Reserve(spec=one))
        prefill.loop.add(Add(spec=one, first_block=reserved.hit_blocks))
        heard = run_until_idle(prefill.loop)
        for chunk in heard.chunks:
            table = decode.loop.bind(Bind(request_id=str(i), num_blocks=chunk.first_block + len(chunk.block_ids)))
            targets = list(table.block_ids[chunk.first_block :])
            blocks = prefill.cache.pool[list(chunk.block_ids)]
            if chunk.is_last and len(prompt) % 16:
                assert int(blocks[-1, :, :, :, len(prompt) % 16 :].count_nonzero()) == 0, "the tail left unsealed"
            assert not blocks.isnan().any()
            decode.cache.pool[targets] = blocks
        prefill.loop.release(str(i))
        landed = len(prompt)
        if lost_blocks and reserved.hit_blocks * 16 <= (len(prompt) - 1) // 16 * 16:
            landed = (len(prompt) - 1) // 16 * 16
        output = tuple(heard.tokens[str(i)]) if with_first_token else ()
        tokens[str(i)] = list(output)
        decode.loop.join(Join(request_id=str(i), num_computed=landed, output=output))
        computed_before = decode.loop.load().prompt_tokens_computed
        while (done := decode.loop.step()) is not None:
            for record in done.records:
                assert record.position == len(tokens[str(i)])
                tokens[str(i)].extend(record.tokens)
        computed = decode.loop.load().prompt_tokens_computed - computed_before
        assert computed == max(len(prompt) - landed, 0 if with_first_token else 1)
    assert [tokens[str(i)] for i in range(len(prompts()))] == expected(name)
    assert_at_rest(prefill.loop)
    assert_at_rest(decode.loop)
    assert decode.loop.load().prompt_tokens_cached > 0


def test_seeded_sampling_does_not_depend_on_the_batch(tiny: TinyModel) -> None:
    def sampled(i: int) -> SamplingParams:
        return SamplingParams(max_tokens=NUM_TOKENS, temperature=0.8, top_p=0.9, seed=i, ignore_eos=True)

    asked = [spec(str(i), prompt, sampled(i)) for i, prompt in enumerate(prompts())]
    together = run_all(engine(tiny("llama"), chunk_size=16).loop, asked)
    alone = {one.request_id: run_all(engine(tiny("llama")).loop, [one]).tokens[one.request_id] for one in asked[::3]}
    assert {name: together.tokens[name] for name in alone} == alone
    other_seed = run_all(engine(tiny("llama")).loop, [spec("7", prompts()[7], sampled(99))])
    assert other_seed.tokens["7"] != together.tokens["7"]


def test_stop_rules_end_a_sequence(tiny: TinyModel, expected: Callable[[str], list[list[int]]]) -> None:
    prompt, answer = prompts()[5], expected("llama")[5]
    stop = answer[3]
    sampling = greedy(NUM_TOKENS, stop_token_ids=(stop,))
    heard = run_all(engine(tiny("llama")).loop, [spec("a", prompt, sampling)])
    assert heard.tokens["a"] == answer[: answer.index(stop) + 1]
    assert heard.reasons["a"] == "stop"
    short = run_all(engine(tiny("llama"), max_model_len=len(prompt) + 4).loop, [spec("a", prompt, greedy(50))])
    assert short.tokens["a"] == answer[:4]
    assert short.reasons["a"] == "length"
