"""What of the KV pool is allocated and holds no token, under a mixed load of long sequences: next to nothing.

A block at the end of each sequence is partly filled, and a prompt's blocks are taken when it is admitted. In place, on
a tiny model; the figure depends on lengths and block size alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from engine_runs import engine, greedy, run_all, spec

from pagewire.core.engine_messages import Add

TinyModel = Callable[[str], Path]

NUM_REQUESTS, BLOCK = 24, 16


def test_a_sequence_wastes_less_than_its_last_block_and_all_together_less_than_4_percent(tiny: TinyModel) -> None:
    draw = random.Random(0)
    built = engine(
        tiny("llama"), block_size=BLOCK, chunk_size=128, max_num_batched_tokens=256, max_num_seqs=8, max_model_len=512,
        kv_memory_bytes=16 << 20,
    )  # fmt: skip
    asked = [
        spec(str(n), [draw.randrange(256) for _ in range(draw.randrange(330, 400))], greedy(draw.randrange(60, 110)))
        for n in range(NUM_REQUESTS)
    ]
    allocated = filled = lengths = decoding = 0
    while True:
        if asked and draw.random() < 0.2:
            built.loop.add(Add(spec=asked.pop()))
        if built.loop.step() is None and not asked:
            break
        for sequence in built.scheduler.running:
            slots = len(sequence.block_table) * BLOCK
            allocated, filled = allocated + slots, filled + sequence.num_computed
            if sequence.is_decoding:
                decoding, lengths = decoding + 1, lengths + sequence.num_computed
                assert slots - sequence.num_computed <= BLOCK
    assert lengths / decoding >= 400
    waste = 1 - filled / allocated
    print(f"{waste:.1%} of {allocated} allocated slots hold no token; mean length {lengths / decoding:.0f}")
    assert waste < 0.04
    load = built.loop.load()
    assert 0 < 1 - load.token_steps / (load.block_steps * BLOCK) < 0.04


def test_the_counters_of_slots_are_those_of_every_step(tiny: TinyModel) -> None:
    built = engine(tiny("llama"), block_size=BLOCK)
    run_all(built.loop, [spec("a", range(20), greedy(5))])
    load = built.loop.load()
    # Two blocks in each of five steps: the prompt whole, then a token more each time.
    assert (load.block_steps, load.token_steps) == (5 * 2, 20 + 21 + 22 + 23 + 24)
