"""500 requests draw the tokens that each of them draws alone, in bf16 too, greedy and seeded.

Under random batching, chunks, placement (prefilled on another engine), continuation, and preemption by either way. In
place, on tiny random models. What is shown is that no bit depends on company; that two machines compute alike is not
shown: the handshake asks for the same build.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lora_folders
import pytest
from engine_runs import Heard, assert_at_rest, engine, run_all, run_until_idle, spec

from pagewire.core.engine_messages import Add, Bind, Join, Reserve
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine.assembly import Engine

TinyModel = Callable[[str], Path]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "llama")  # a run of each, for each dtype
NUM_REQUESTS = 50
ADAPTERS = ("", "", "all", "patterns")


def requests(draw: random.Random, run: int) -> list[SequenceSpec]:
    """Return requests of all lengths, greedy and seeded, with adapters and without; some begin alike, so that blocks
    are shared.
    """
    shared = [draw.randrange(256) for _ in range(70)]
    made = []
    for number in range(NUM_REQUESTS):
        own = [draw.randrange(256) for _ in range(draw.choice([1, 3, 16, 40]))]
        tokens = shared[: draw.choice([0, 0, 33, 70])] + own
        temperature, top_p = draw.choice([(0.0, 1.0), (0.9, 1.0), (1.3, 0.9)])
        sampling = SamplingParams(
            max_tokens=draw.choice([1, 20, 50, 90]), temperature=temperature, top_p=top_p, seed=number, ignore_eos=True
        )
        made.append(spec(f"{run}-{number}", tokens, sampling, adapter=ADAPTERS[number % len(ADAPTERS)]))
    return made


def go_on(one: SequenceSpec, said: list[int], target: Engine, heard: Heard) -> None:
    """Have a request come with what was said of its answer elsewhere."""
    heard.tokens[one.request_id] = list(said)
    target.loop.add(Add(spec=replace(one, output=tuple(said))))


def ship(one: SequenceSpec, source: Engine, target: Engine, heard: Heard) -> bool:
    """Have a request's prompt computed on a prefill pod and its blocks shipped; False where there is no room for it."""
    reserved = target.loop.reserve(Reserve(spec=one))
    if reserved.error is not None:
        return False
    source.loop.add(Add(spec=one, first_block=reserved.hit_blocks))
    prefilled = run_until_idle(source.loop)
    for chunk in prefilled.chunks:
        end = chunk.first_block + len(chunk.block_ids)
        bound = target.loop.bind(Bind(request_id=one.request_id, num_blocks=end)).block_ids
        target.cache.pool[list(bound[chunk.first_block :])] = source.cache.pool[list(chunk.block_ids)]
    source.loop.release(one.request_id)
    heard.tokens[one.request_id] = prefilled.tokens[one.request_id]
    first = tuple(prefilled.tokens[one.request_id])
    target.loop.join(Join(request_id=one.request_id, num_computed=len(one.tokens), output=first))
    return True


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_token_depends_on_batch_chunk_placement_preemption_or_continuation(
    tiny: TinyModel, tmp_path: Path, dtype: str
) -> None:
    draw = random.Random(dtype)
    num_preemptions = num_swaps = num_continued = num_shipped = 0
    for run, family in enumerate(FAMILIES):
        model, asked = tiny(family), requests(draw, run)
        adapters = [f"{kind}={lora_folders.build(model, tmp_path / f'{run}-{kind}', kind)}" for kind in ADAPTERS[2:]]
        alone = engine(model, dtype=dtype, deterministic=True, adapters=adapters)
        expected: dict[str, list[int]] = {}
        for one in asked:
            expected |= run_all(alone.loop, [one]).tokens
        block_bytes = alone.ready.layout.block_bytes
        crowded = engine(
            model, dtype=dtype, deterministic=True, adapters=adapters, chunk_size=draw.choice([5, 16, 37, 200]),
            max_num_seqs=16,
            max_model_len=208, kv_memory_bytes=14 * block_bytes, max_num_batched_tokens=draw.choice([40, 128, 512]),
            host_kv_memory_bytes=run % 2 * 40 * block_bytes, preemption="swap" if run % 2 else "recompute",
        )  # fmt: skip
        prefill = engine(
            model,
            Role.PREFILL,
            dtype=dtype,
            deterministic=True,
            adapters=adapters,
            chunk_size=draw.choice([7, 32, 200]),
            max_model_len=208,
        )
        heard, waiting = Heard(), draw.sample(asked, len(asked))
        while waiting:
            for _ in range(min(len(waiting), draw.choice([0, 1, 2, 10, 16]))):
                one, way = waiting.pop(), draw.choice(["whole", "continued", "shipped", "shipped"])
                is_long = one.sampling.max_tokens > 1
                if is_long and way == "continued":
                    num_continued += 1
                    known = draw.randrange(1, one.sampling.max_tokens)
                    go_on(one, expected[one.request_id][:known], crowded, heard)
                elif is_long and way == "shipped" and ship(one, prefill, crowded, heard):
                    num_shipped += 1
                else:
                    crowded.loop.add(Add(spec=one))
            done = crowded.loop.step()
            if done is not None:
                heard.hear(done)
        run_until_idle(crowded.loop, heard)
        assert_at_rest(crowded.loop)
        assert heard.tokens == expected
        num_preemptions += crowded.scheduler.num_preemptions
        num_swaps += crowded.scheduler.num_swaps
    assert num_swaps > 5, "too much room: nothing was swapped"
    assert num_preemptions - num_swaps > 10, "too much room: nothing was computed anew"
    assert num_continued > 30
    assert num_shipped > 5


def test_the_general_path_cannot_promise_it_and_does_not_start(tiny: TinyModel) -> None:
    with pytest.raises(ValueError, match="general path"):
        engine(tiny("gpt_neox"), deterministic=True)


def test_pods_pair_that_compute_by_one_build(tiny: TinyModel) -> None:
    ours = engine(tiny("llama"), deterministic=True).ready.fingerprint
    assert ours.arithmetic
    assert engine(tiny("llama")).ready.fingerprint.arithmetic == ""
    assert "arithmetic" in ours.diff(replace(ours, arithmetic="another"))
