"""Greedy tokens in fp32 equal transformers' `generate`, token for token, whatever the batching, on tiny models.

Random weights: this shows that the mechanism is exact on each architecture, not that answers make sense.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
from engine_runs import ROOT, Heard, assert_at_rest, engine, greedy, run_all, run_until_idle, spec
from reference import Reference, fed_token_by_token, generate

from pagewire.core.block_hash import chain
from pagewire.core.engine_messages import Add, Bind, Hold, Join, Keep, Reserve
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.engine.assembly import Engine

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
    return functools.cache(lambda name: generate(tiny(name), prompts(), NUM_TOKENS))


def specs(max_tokens: int = NUM_TOKENS) -> list[Any]:
    return [spec(str(i), prompt, greedy(max_tokens)) for i, prompt in enumerate(prompts())]


@pytest.mark.parametrize("name", sorted(tiny_model.NATIVE))
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


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_the_order_of_a_block_changes_no_token_and_no_chain(
    tiny: TinyModel, expected: Callable[[str], list[list[int]]], name: str
) -> None:
    built = engine(tiny(name), kv_order="head_outer", chunk_size=20, max_num_batched_tokens=64)
    assert built.cache.pool.stride(3) == max(built.cache.pool.stride()[1:]), "heads are outermost"
    heard = run_all(built.loop, specs())
    assert [heard.tokens[str(i)] for i in range(len(prompts()))] == expected(name)
    ours, theirs = built.ready.fingerprint, engine(tiny(name)).ready.fingerprint
    assert ours.diff(theirs) == ""
    assert (ours.kv_layout, theirs.kv_layout) == tuple(
        theirs.kv_layout.replace("layer_outer", order) for order in ("head_outer", "layer_outer")
    )


@pytest.mark.parametrize(
    "name", ["llama", "yarn_rope", "qwen3_layer_types", "gemma2", "phi3", "gpt_oss", "deepseek_v3"]
)
def test_bfloat16_chooses_what_transformers_does_unless_it_is_close(tiny: TinyModel, name: str) -> None:
    built = engine(tiny(name), dtype="bfloat16", chunk_size=20, max_num_batched_tokens=64)
    heard = run_all(built.loop, specs(1))
    answers = Reference(tiny(name), torch.bfloat16).greedy(prompts(), 1)
    missed = {i: answer for i, answer in enumerate(answers) if heard.tokens[str(i)] != list(answer.tokens)}
    assert all(heard.tokens[str(i)] == list(answer.runners_up) for i, answer in missed.items())
    # Of logits that spread over several units, two that are as far apart as this may change places.
    assert all(answer.margins[0] < 0.15 for answer in missed.values()), missed


def test_dynamic_rope_beyond_the_original_positions(tiny: TinyModel) -> None:
    """A prompt beyond them has one meaning here, however it is cut: what transformers holds when fed token by token."""
    chance = random.Random(9)
    asked = [[chance.randrange(256) for _ in range(length)] for length in (101, 130, 190)]
    asked.append([*asked[1][:120], *asked[0][:20]])  # shares blocks beyond the 100 original positions
    expected = [fed_token_by_token(tiny("dynamic_rope"), prompt, NUM_TOKENS) for prompt in asked]
    for chunk_size in (512, 23):
        built = engine(tiny("dynamic_rope"), chunk_size=chunk_size, max_num_batched_tokens=2 * chunk_size)
        heard = run_all(built.loop, [spec(str(i), prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(asked)])
        assert [heard.tokens[str(i)] for i in range(len(asked))] == expected
        again = run_all(built.loop, [spec("again", asked[3], greedy(NUM_TOKENS))])
        assert (again.tokens["again"], again.ends["again"].cached_tokens) == (expected[3], 128)


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


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma3"])
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


def ship(source: Engine, block_ids: Iterable[int], target: Engine, targets: Iterable[int]) -> None:
    """Copy blocks as a transport does, whatever the order in which each pool keeps them."""
    target.cache.pool[list(targets)] = source.cache.pool[list(block_ids)]


@pytest.mark.parametrize("order", ["layer_outer", "head_outer"])
@pytest.mark.parametrize("length", [20, 33, 64])
def test_the_next_turn_of_a_chat_recomputes_nothing_on_either_pod(tiny: TinyModel, order: str, length: int) -> None:
    """The answer's blocks, filled while decoding, serve the decode pod itself, and the prefill pod fetches them."""
    prefill = engine(tiny("qwen3"), Role.PREFILL, chunk_size=20, kv_order=order)
    decode = engine(tiny("qwen3"), Role.DECODE)
    chance = random.Random(length)
    prompt = [chance.randrange(256) for _ in range(length)]
    known = 0  # tokens whose KV is on the decode pod
    for turn in range(3):
        name, size = str(turn), 16
        one = spec(name, prompt, greedy(30))
        hits = decode.loop.reserve(Reserve(spec=one)).hit_blocks
        assert hits == known // size
        here = prefill.loop.reserve(Reserve(spec=one, first_block=hits)).hit_blocks
        held = decode.loop.hold(Hold(request_id=f"fetch {turn}", hashes=tuple(chain(ROOT, prompt, size))[here:hits]))
        assert len(held.block_ids) == max(0, hits - here)
        bound = prefill.loop.bind(Bind(request_id=name, num_blocks=hits)).block_ids
        ship(decode, held.block_ids, prefill, bound[here:hits])
        decode.loop.release(f"fetch {turn}")
        prefill.loop.keep(Keep(request_id=name, num_computed=hits * size))
        prefill.loop.join(Join(request_id=name, num_computed=max(here, hits) * size, output=()))
        heard = run_until_idle(prefill.loop)
        last = heard.chunks[-1]
        assert (last.cached_tokens, last.fetched_tokens) == (here * size, max(0, hits - here) * size)
        assert last.computed_tokens == len(prompt) - known // size * size
        for chunk in heard.chunks:
            table = decode.loop.bind(Bind(request_id=name, num_blocks=chunk.first_block + len(chunk.block_ids)))
            ship(prefill, chunk.block_ids, decode, table.block_ids[chunk.first_block :])
        prefill.loop.release(name)
        first = tuple(heard.tokens[name])
        decode.loop.join(Join(request_id=name, num_computed=len(prompt), output=first))
        answered = run_until_idle(decode.loop, Heard(tokens={name: list(first)}))
        end = answered.ends[name]
        assert (end.cached_tokens, end.fetched_tokens) == (hits * size, len(prompt) - hits * size)
        assert end.computed_tokens == 0
        answer = answered.tokens[name]
        assert answer == generate(tiny("qwen3"), [prompt], 30)[0]
        known = len(prompt) + len(answer) - 1
        prompt = [*prompt, *answer, *(chance.randrange(256) for _ in range(15))]
    assert_at_rest(prefill.loop)
    assert_at_rest(decode.loop)


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
