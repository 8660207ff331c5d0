"""One sequence larger than the pool: its first blocks in host memory, its tokens transformers' all the same.

On tiny random models in fp32: this shows that the mechanism is exact, not that answers make sense. What the bookkeeping
does under any order of commands is in test_scheduler_machine.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_runs import Heard, assert_at_rest, engine, greedy, run_all, run_until_idle, spec
from reference import generate

from pagewire.core.engine_messages import Add
from pagewire.core.errors import InvalidRequest
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import branches
from pagewire.engine.assembly import Engine
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.llm import LLM
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler
from pagewire.kernels.torch_backend import TorchBackend

TinyModel = Callable[[str], Path]

B = 16
LONG_BYTES = 3 * 2 * 1 * B * 16 * 4  # a block of "llama_long": L, K and V, Hk, B, D, fp32
HOST = {"host_kv_memory_bytes": 40 * LONG_BYTES}


def prompt(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(256) for _ in range(length)]


def small(model: Path, num_blocks: int, num_slots: int, block_bytes: int, **settings: Any) -> Engine:
    defaults: dict[str, Any] = {
        "kv_memory_bytes": num_blocks * block_bytes, "host_kv_memory_bytes": num_slots * block_bytes,
        "chunk_size": 48, "max_num_batched_tokens": 96, "max_model_len": 480,
    }  # fmt: skip
    return engine(model, **{**defaults, **settings})


def nothing_is_left(built: Engine) -> None:
    assert_at_rest(built.loop)
    assert built.scheduler.pool.host.num_lent == 0


def test_a_prompt_of_8192_tokens_in_a_pool_of_2048(tiny: TinyModel) -> None:
    tokens = prompt(8192)
    built = small(
        tiny("llama_long"), 2048 // B, 400, LONG_BYTES, chunk_size=512, max_num_batched_tokens=1024, max_model_len=8300
    )
    others = [prompt(100, 1), prompt(300, 2)]
    for name, each in (("before", others[0]), ("long", tokens), ("after", others[1])):
        built.loop.add(Add(spec=spec(name, each, greedy(16))))
    heard, most = Heard(), 0
    while (done := built.loop.step()) is not None:
        built.loop.check()
        heard.hear(done)
        most = max(most, built.scheduler.pool.host.num_lent)
        if built.scheduler.pool.host.num_lent:
            assert len(built.scheduler.running) == 1
    model = tiny("llama_long")
    assert heard.tokens["long"] == generate(model, [tokens], 16)[0]
    assert [heard.tokens["before"], heard.tokens["after"]] == generate(model, others, 16)
    assert most >= (8192 - 2048) // B
    nothing_is_left(built)


# What a block of each model takes with 3 layers: K and V, Hk, B, D, fp32.
@pytest.mark.parametrize(
    ("name", "heads", "settings"),
    [
        ("llama", 2, {}),
        ("llama3_rope", 2, {"kv_order": "head_outer"}),
        ("qwen2_sliding", 2, {}),  # some layers see a window, some everything
        ("gemma2", 2, {}),  # through the general path, with capped scores and windows
        ("gpt_oss", 2, {}),  # with sinks
    ],
)
def test_every_kind_of_attention_is_streamed(tiny: TinyModel, name: str, heads: int, settings: dict[str, Any]) -> None:
    """A short prompt that outgrows the pool while it decodes, and a prompt that is larger to begin with."""
    block_bytes = 3 * 2 * heads * B * 16 * 4
    built = small(tiny(name), 8, 26, block_bytes, **settings)
    prompts = [prompt(100), prompt(390, 1)]
    expected = generate(tiny(name), prompts, 60)
    for number, each in enumerate(prompts):
        built.loop.add(Add(spec=spec(str(number), each, greedy(60))))
    heard, most = Heard(), []
    while (done := built.loop.step()) is not None:
        built.loop.check()
        heard.hear(done)
        most.append(built.scheduler.pool.host.num_lent)
    assert [heard.tokens[str(number)] for number in range(2)] == expected
    assert max(most) > 390 // B - 8
    nothing_is_left(built)


def test_quantised_kv_spills_as_it_is_kept(tiny: TinyModel) -> None:
    """The same codes in host memory: the tokens are those of a pool that holds all of them."""
    tokens, block_bytes = prompt(300), 3 * 2 * 2 * B * 18
    whole = engine(tiny("llama"), kv_dtype="int8", max_model_len=480)
    built = small(tiny("llama"), 8, 26, block_bytes, kv_dtype="int8")
    answers = [run_all(each.loop, [spec("1", tokens, greedy(30))]).tokens["1"] for each in (whole, built)]
    assert answers[0] == answers[1]
    nothing_is_left(built)


def test_bfloat16_spills_without_changing_what_is_said(tiny: TinyModel) -> None:
    tokens, block_bytes = prompt(300), 3 * 2 * 2 * B * 16 * 2
    whole = engine(tiny("llama"), dtype="bfloat16", max_model_len=480)
    built = small(tiny("llama"), 8, 26, block_bytes, dtype="bfloat16")
    answers = [run_all(each.loop, [spec("1", tokens, greedy(8))]).tokens["1"] for each in (whole, built)]
    assert answers[0] == answers[1]
    nothing_is_left(built)


def test_an_abort_in_the_middle_leaves_nothing_held(tiny: TinyModel) -> None:
    built = small(tiny("llama_long"), 10, 40, LONG_BYTES)
    tokens = prompt(400)
    built.loop.add(Add(spec=spec("1", tokens, greedy(40))))
    while built.scheduler.pool.host.num_lent < 5:
        assert built.loop.step() is not None
    assert built.loop.load().blocks_host == built.scheduler.pool.host.num_lent
    assert built.loop.abort("1") is not None
    nothing_is_left(built)
    # A request as large runs in what it left, and so does one that goes before it.
    heard = run_all(built.loop, [spec("2", tokens, greedy(10)), spec("3", tokens[:50], greedy(10))])
    assert [heard.tokens[name] for name in "23"] == generate(tiny("llama_long"), [tokens, tokens[:50]], 10)
    nothing_is_left(built)


def test_one_that_is_larger_gives_way_and_starts_again(tiny: TinyModel) -> None:
    """It decodes beyond the pool beside another that came before it, so it is preempted, and comes back alone."""
    built = small(tiny("llama_long"), 8, 40, LONG_BYTES, preemption="swap")
    prompts = [prompt(40), prompt(30, 1)]
    heard = run_all(built.loop, [spec(str(i), each, greedy(90 * i + 40)) for i, each in enumerate(prompts)])
    assert [heard.tokens[str(i)] for i in range(2)] == [
        generate(tiny("llama_long"), [each], 90 * i + 40)[0] for i, each in enumerate(prompts)
    ]
    assert built.scheduler.num_preemptions > 0
    nothing_is_left(built)


def test_what_a_long_sequence_evicts_and_hits(tiny: TinyModel) -> None:
    """Cached blocks make room for it, in both tiers, and what the cache still has of it is not computed again."""
    built = small(tiny("llama_long"), 12, 40, LONG_BYTES)
    short, tokens = prompt(150, 3), prompt(420)
    expected = generate(tiny("llama_long"), [short, tokens], 8)
    for number, each in enumerate([short, tokens, tokens, short]):
        heard = run_all(built.loop, [spec(str(number), each, greedy(8))])
        assert heard.tokens[str(number)] == expected[each is tokens]
        nothing_is_left(built)


def test_llm_answers_long_prompts_among_others(tiny: TinyModel) -> None:
    prompts = [prompt(40), prompt(400, 1), prompt(50, 2)]
    with LLM(
        tiny("llama_long"), dtype="float32", kv_memory_bytes=10 * LONG_BYTES, host_kv_memory_bytes=40 * LONG_BYTES,
        chunk_size=48, max_num_batched_tokens=96, max_model_len=480,
    ) as llm:  # fmt: skip
        answers = llm.generate(prompts, greedy(12), progress=False)
        assert llm.load().blocks_held == 0
    assert [list(answer.token_ids) for answer in answers] == generate(tiny("llama_long"), prompts, 12)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "holds 160 tokens, beside 10 blocks of host memory$"),  # too little of it
        ({"host_kv_memory_bytes": 0}, "160 tokens; host_kv_memory_bytes 0 holds no block to spill$"),
        ({"host_kv_memory_bytes": 100}, "160 tokens; host_kv_memory_bytes 100 holds no block to spill$"),
        ({"role": Role.PREFILL, **HOST}, "160 tokens; a prefill pod ships sequences whole$"),
        ({"chunk_size": 200, **HOST}, "nothing spills to host memory where a chunk_size of 200 needs 14 blocks of 10$"),
        ({"deterministic": True, **HOST}, "nothing spills to host memory where deterministic is set, .*"),
    ],
)
def test_pods_that_could_not_hold_max_model_len_do_not_start(
    tiny: TinyModel, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=rf"one sequence of max_model_len 480 needs .*{why}"):
        small(tiny("llama_long"), 10, 10, LONG_BYTES, **settings)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "window of 64 and a chunk_size of 112 need 13 blocks of 12; host_kv_memory_bytes 0 holds no block .*"),
        ({"host_kv_memory_bytes": 12 * LONG_BYTES}, "beside 6 blocks of host memory; the model's window of 64 .*"),
        ({"role": Role.PREFILL}, "a prefill pod ships sequences whole$"),
    ],
)
def test_a_window_that_does_not_fit_with_a_chunk_is_named(tiny: TinyModel, settings: dict[str, Any], why: str) -> None:
    fits: dict[str, Any] = {"chunk_size": 96, "host_kv_memory_bytes": 0}
    small(tiny("mistral_64"), 12, 0, 2 * LONG_BYTES, **fits)
    with pytest.raises(ValueError, match=rf"one sequence of max_model_len 480 needs .*{why}"):
        small(tiny("mistral_64"), 12, 0, 2 * LONG_BYTES, **{**fits, "chunk_size": 112, **settings})


def test_requests_that_cannot_be_held_are_refused_by_name() -> None:
    limits = Limits(
        max_num_batched_tokens=64, max_num_seqs=8, chunk_size=32, block_size=B, max_model_len=1000, vocab_size=300,
        spills=True,
    )  # fmt: skip
    scheduler = Scheduler(BlockPool(10, 20), limits, policy_of(Role.DECODE))
    with pytest.raises(InvalidRequest, match="may have 500 tokens; the KV pool and host memory hold 480"):
        scheduler.add(spec("1", prompt(400), greedy(100)))
    with pytest.raises(InvalidRequest, match="2 sequences behind the prompt need 27 blocks; the KV pool has 10"):
        scheduler.add(spec("2", prompt(400), greedy(10), branches=branches(2)))
    tiny_pool = Scheduler(BlockPool(2, 40), limits, policy_of(Role.DECODE))
    with pytest.raises(InvalidRequest, match="2 blocks are less than the 3 that a chunk takes"):
        tiny_pool.add(spec("3", prompt(100), greedy(10)))
    prefill = Scheduler(BlockPool(10, 20), limits, policy_of(Role.PREFILL))
    with pytest.raises(InvalidRequest, match="the KV pool holds 160"):
        prefill.add(spec("4", prompt(400), greedy(10)))
    assert not scheduler.sequences


def test_steps_without_a_spilling_sequence_are_never_streamed(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    built = small(tiny("llama"), 40, 40, 3 * 2 * 2 * B * 16 * 4)

    def unexpected(*_arguments: Any) -> None:
        raise AssertionError("a batch was streamed")

    monkeypatch.setattr(TorchBackend, "partial_attention", unexpected)
    for number in range(3):
        built.loop.add(Add(spec=spec(str(number), prompt(100, number), greedy(20))))
    heard = run_until_idle(built.loop)
    assert [len(heard.tokens[str(number)]) for number in range(3)] == [20] * 3
    assert not [end for end in heard.ends.values() if end.error is not None]
