"""Sequences of windowed models give back what left their window, and their tokens are transformers' all the same.

On tiny random models in fp32: this shows that the mechanism is exact, not that answers make sense.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_runs import Heard, assert_at_rest, engine, greedy, run_all, spec
from reference import Reference, generate

from pagewire.core.engine_messages import Add, Bind, Join, Reserve
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import branches
from pagewire.engine.assembly import Engine

TinyModel = Callable[[str], Path]

WINDOW, CHUNK, B = 64, 32, 16
MOST = (WINDOW + CHUNK) // B + 1
BLOCK_BYTES = 3 * 2 * 2 * B * 16 * 4  # L, K and V, Hk, B, D, fp32


def prompt(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(256) for _ in range(length)]


def windowed(tiny: TinyModel, num_blocks: int, role: Role = Role.COLOCATED) -> Engine:
    return engine(
        tiny("mistral_64"), role, kv_memory_bytes=num_blocks * BLOCK_BYTES, max_model_len=1024, chunk_size=CHUNK,
        max_num_batched_tokens=64,
    )  # fmt: skip


def run_held(built: Engine, heard: Heard | None = None) -> tuple[Heard, int]:
    """Step to the end; return what was heard, and the most blocks that one sequence held after a step."""
    heard, most = heard or Heard(), 0
    while (done := built.loop.step()) is not None:
        built.loop.check()
        heard.hear(done)
        most = max([most, *(len(each.held) for each in built.scheduler.sequences.values())])
        assert built.scheduler.pool.num_orphaned(built.scheduler.tables()) == 0
    return heard, most


def test_prompts_larger_than_the_pool_equal_generate_within_their_windows(tiny: TinyModel) -> None:
    """Decoding goes on for more than a window; several at once preempt each other."""
    prompts = [prompt(length, seed) for seed, length in enumerate((10, 20, 500, 30, 390))]
    built = windowed(tiny, 2 * MOST)
    for number, each in enumerate(prompts):
        built.loop.add(Add(spec=spec(str(number), each, greedy(100))))
    heard, most = run_held(built)
    expected = Reference(tiny("mistral_64")).greedy(prompts, 100)
    assert [tuple(heard.tokens[str(i)]) for i in range(len(prompts))] == [each.tokens for each in expected]
    assert most <= MOST
    assert built.scheduler.num_preemptions > 0
    assert_at_rest(built.loop)


def test_what_left_a_window_is_cached_and_hit(tiny: TinyModel) -> None:
    shared = prompt(400)
    prompts = [shared + prompt(length, length) for length in (0, 1, 40)]
    built = windowed(tiny, 64)
    expected = generate(tiny("mistral_64"), prompts, 20)
    for number, each in enumerate(prompts):
        built.loop.add(Add(spec=spec(str(number), each, greedy(20))))
        heard, most = run_held(built)
        assert heard.tokens[str(number)] == expected[number]
        assert heard.ends[str(number)].cached_tokens == (400 if number else 0)
        assert most <= MOST
    assert_at_rest(built.loop)


def test_hits_are_right_when_the_end_of_a_prefix_was_evicted(tiny: TinyModel) -> None:
    """The pool is too small for a whole prompt: of its chain the beginning alone is left."""
    shared, other = prompt(300), prompt(150, 1)
    built = windowed(tiny, 14)
    expected = generate(tiny("mistral_64"), [shared, other], 12)
    cached = []
    for number, each in enumerate([shared, other, shared, shared]):
        built.loop.add(Add(spec=spec(str(number), each, greedy(12))))
        heard, most = run_held(built)
        assert heard.tokens[str(number)] == expected[each is other]
        assert most <= MOST
        cached.append(heard.ends[str(number)].cached_tokens)
    assert cached[0] == 0
    assert 0 < cached[-1] < 300
    assert_at_rest(built.loop)


def test_sequences_fork_behind_a_prompt_that_was_passed(tiny: TinyModel) -> None:
    tokens = prompt(200)
    built = windowed(tiny, 24)
    sampling = greedy(80, temperature=0.8, seed=7, n=3)
    built.loop.add(Add(spec=spec("n", tokens, sampling, branches=branches(3))))
    forked: dict[int, list[int]] = {}
    while (done := built.loop.step()) is not None:
        built.loop.check()
        for record in done.records:
            forked.setdefault(record.index, []).extend(record.tokens)
        assert all(len(each.held) <= MOST for each in built.scheduler.sequences.values())
    for index in range(3):
        alone = engine(tiny("mistral_64"), max_model_len=1024)
        run = run_all(alone.loop, [spec("1", tokens, greedy(80, temperature=0.8, seed=7), index=index)])
        assert forked[index] == run.tokens["1"]
    assert_at_rest(built.loop)


def test_a_shipment_lands_whole_and_passes_while_it_decodes(tiny: TinyModel) -> None:
    """A prefill pod keeps all blocks for who takes them, who lets go of them as the window moves on."""
    tokens = prompt(300)
    first, second = windowed(tiny, 80, Role.PREFILL), windowed(tiny, 40, Role.DECODE)
    heard = run_all(first.loop, [spec("1", tokens, greedy(60))])
    sent = [block for chunk in heard.chunks for block in chunk.block_ids]
    assert len(sent) == -(-300 // B)
    assert second.loop.reserve(Reserve(spec=spec("1", tokens, greedy(60)))).error is None
    bound = second.loop.bind(Bind(request_id="1", num_blocks=len(sent))).block_ids
    second.cache.pool[list(bound)] = first.cache.pool[sent]
    second.loop.join(Join(request_id="1", num_computed=300, output=tuple(heard.tokens["1"])))
    after, most = run_held(second, Heard(tokens={"1": list(heard.tokens["1"])}))
    assert after.tokens["1"] == generate(tiny("mistral_64"), [tokens], 60)[0]
    assert most <= MOST
    assert_at_rest(second.loop)


def test_what_does_not_fit_together_is_reserved_nothing_and_joins_to_be_computed(tiny: TinyModel) -> None:
    tokens = prompt(400)
    built = windowed(tiny, 12, Role.DECODE)
    reserved = built.loop.reserve(Reserve(spec=spec("1", tokens, greedy(8))))
    assert (reserved.error, reserved.hit_blocks, reserved.in_parts) == (None, 0, True)
    assert built.loop.bind(Bind(request_id="1", num_blocks=5)).block_ids == ()
    assert_at_rest(built.loop)
    built.loop.join(Join(request_id="1", num_computed=0, output=()))
    heard, most = run_held(built)
    assert heard.tokens["1"] == generate(tiny("mistral_64"), [tokens], 8)[0]
    assert most <= MOST
    refused = built.loop.reserve(Reserve(spec=spec("2", tokens, greedy(8, n=2), branches=branches(2)))).error
    assert refused is not None
    assert "the KV pool has 12" in refused.message
    assert_at_rest(built.loop)


@pytest.mark.parametrize(("name", "role"), [("llama", Role.COLOCATED), ("mistral_64", Role.PREFILL)])
def test_a_pool_too_small_for_whole_sequences_is_refused_where_they_stay_whole(
    tiny: TinyModel, name: str, role: Role
) -> None:
    with pytest.raises(ValueError, match="one sequence of max_model_len 512 needs"):
        engine(tiny(name), role, kv_memory_bytes=20 * BLOCK_BYTES, max_model_len=512, chunk_size=CHUNK)


@pytest.mark.parametrize("name", ["phi3", "gemma2"])
def test_the_general_path_passes_blocks_where_every_layer_has_a_window(tiny: TinyModel, name: str) -> None:
    tokens = prompt(200)
    built = engine(tiny(name), chunk_size=16, max_num_batched_tokens=32)
    built.loop.add(Add(spec=spec("1", tokens, greedy(30))))
    heard, most = run_held(built)
    assert heard.tokens["1"] == generate(tiny(name), [tokens], 30)[0]
    assert most == (-(-229 // B) if name == "gemma2" else -(-(24 + 16) // B) + 1)
    assert_at_rest(built.loop)
