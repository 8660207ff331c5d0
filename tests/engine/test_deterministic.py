"""500 requests under random batching, chunks and preemption draw the tokens that each of them draws alone, in bf16 too.

In place, on tiny random models. What is shown is that no bit depends on company; that two machines compute alike is not
shown: the handshake asks for the same build.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import Heard, assert_at_rest, engine, run_all, run_until_idle, spec

from pagewire.core.engine_messages import Add
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec

TinyModel = Callable[[str], Path]

NUM_RUNS, NUM_REQUESTS = 5, 50  # for each dtype


def requests(draw: random.Random, run: int) -> list[SequenceSpec]:
    """Return requests of all lengths, greedy and seeded; some begin alike, so that blocks are shared."""
    shared = [draw.randrange(256) for _ in range(70)]
    made = []
    for number in range(NUM_REQUESTS):
        own = [draw.randrange(256) for _ in range(draw.choice([1, 3, 16, 40]))]
        tokens = shared[: draw.choice([0, 0, 33, 70])] + own
        temperature, top_p = draw.choice([(0.0, 1.0), (0.9, 1.0), (1.3, 0.9)])
        sampling = SamplingParams(
            max_tokens=draw.choice([1, 20, 50, 90]), temperature=temperature, top_p=top_p, seed=number, ignore_eos=True
        )
        made.append(spec(f"{run}-{number}", tokens, sampling))
    return made


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_token_depends_on_batch_chunk_or_preemption(tiny: TinyModel, dtype: str) -> None:
    model, draw = tiny("llama"), random.Random(dtype)
    num_preemptions = 0
    for run in range(NUM_RUNS):
        asked = requests(draw, run)
        alone = engine(model, dtype=dtype, deterministic=True)
        expected: dict[str, list[int]] = {}
        for one in asked:
            expected |= run_all(alone.loop, [one]).tokens
        crowded = engine(
            model, dtype=dtype, deterministic=True, chunk_size=draw.choice([5, 16, 37, 200]), max_num_seqs=16,
                max_model_len=208,
            kv_memory_bytes=14 * alone.ready.layout.block_bytes, max_num_batched_tokens=draw.choice([40, 128, 512]),
        )  # fmt: skip
        heard, waiting = Heard(), draw.sample(asked, len(asked))
        while waiting:
            for _ in range(min(len(waiting), draw.choice([0, 0, 1, 2, 10]))):
                crowded.loop.add(Add(spec=waiting.pop()))
            done = crowded.loop.step()
            if done is not None:
                heard.hear(done)
        run_until_idle(crowded.loop, heard)
        assert_at_rest(crowded.loop)
        assert heard.tokens == expected
        num_preemptions += crowded.scheduler.num_preemptions
    assert num_preemptions > 20, "too much room: nothing was preempted"


def test_the_general_path_cannot_promise_it_and_does_not_start(tiny: TinyModel) -> None:
    with pytest.raises(ValueError, match="general path"):
        engine(tiny("gpt_neox"), deterministic=True)


def test_pods_pair_that_compute_by_one_build(tiny: TinyModel) -> None:
    ours = engine(tiny("llama"), deterministic=True).ready.fingerprint
    assert ours.arithmetic
    assert engine(tiny("llama")).ready.fingerprint.arithmetic == ""
    assert "arithmetic" in ours.diff(replace(ours, arithmetic="another"))
