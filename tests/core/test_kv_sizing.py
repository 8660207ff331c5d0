"""KV sizing, against figures computed by hand from the published shapes of four models, and against the scheduler.

What says that it fits is proved by admitting it: no sequence waits or is preempted up to its last token.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.block_hash import root_hash
from pagewire.core.kv_layout import KVLayout
from pagewire.core.kv_sizing import KVSizing, layout_of, shard
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine import progress
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.step import Computed

LLAMA_3_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
QWEN2_5_1_5B = {"num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "hidden_size": 1536}
SMOLLM2_135M = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
OPEN_LLAMA_3B = {"num_hidden_layers": 26, "num_attention_heads": 32, "hidden_size": 3200}
GIB = 1 << 30


@pytest.mark.parametrize(
    ("hf", "memory", "context", "token_bytes", "blocks", "sequence_blocks", "sequences"),
    [
        # 2 x 32 x 8 x 128 x 2 = 131,072; a block 2 MiB; 80 GiB / 2 MiB = 40,960; 8192 / 16 + 1 = 513; 40960 // 513 = 79
        (LLAMA_3_8B, 80 * GIB, 8192, 131_072, 40_960, 513, 79),
        # 2 x 28 x 2 x 128 x 2 = 28,672; a block 458,752; 24 GiB / that = 56,173.7; 32768 / 16 + 1 = 2049; 27.4
        (QWEN2_5_1_5B, 24 * GIB, 32_768, 28_672, 56_173, 2049, 27),
        # 2 x 30 x 3 x 64 x 2 = 23,040; a block 368,640; 1 GiB / that = 2,912.7; ceil(1000 / 16) + 1 = 64; 45.5
        (SMOLLM2_135M, GIB, 1000, 23_040, 2912, 64, 45),
        # Heads of 100, kept as 112: 2 x 26 x 32 x 112 x 2 = 372,736; a block 5,963,776; 16 GiB / that = 2,880.7; 22.3
        (OPEN_LLAMA_3B, 16 * GIB, 2048, 372_736, 2880, 129, 22),
    ],
    ids=["llama-3-8b", "qwen2.5-1.5b", "smollm2-135m", "open-llama-3b"],
)
def test_figures_computed_by_hand(
    hf: dict[str, Any], memory: int, context: int, token_bytes: int, blocks: int, sequence_blocks: int, sequences: int
) -> None:
    layout = layout_of(hf, block_size=16, dtype="bfloat16")
    sizing = KVSizing(layout=layout, memory_bytes=memory)
    assert layout.token_bytes == token_bytes
    assert sizing.num_blocks == blocks
    assert sizing.sequence_blocks(context) == sequence_blocks
    assert sizing.num_sequences(context) == sequences
    assert sizing.headroom_blocks(context, sequences) == blocks - sequences * sequence_blocks >= 0
    assert sizing.headroom_blocks(context, sequences + 1) < 0


def test_ranks_share_heads_or_copy_them() -> None:
    llama, qwen = (layout_of(hf, block_size=16, dtype="bfloat16") for hf in (LLAMA_3_8B, QWEN2_5_1_5B))
    assert shard(llama, 4).token_bytes == 131_072 // 4
    assert shard(qwen, 8).token_bytes == 28_672 // 2, "8 ranks of 2 KV heads keep one each"
    assert shard(llama, 1) == llama
    assert shard(llama, 8).num_kv_heads == shard(llama, 16).num_kv_heads == 1


@pytest.mark.parametrize("ranks", [3, 12, 0, -1, -2])
def test_heads_that_ranks_cannot_share_are_refused(ranks: int) -> None:
    llama = layout_of(LLAMA_3_8B, block_size=16, dtype="bfloat16")
    with pytest.raises(ValueError, match=f"^8 KV heads cannot be shared by {ranks} tensor-parallel ranks$"):
        shard(llama, ranks)


def test_a_config_without_a_decoder_is_refused() -> None:
    with pytest.raises(
        ValueError, match="describes no decoder: it has no num_hidden_layers, num_attention_heads, hidden"
    ):
        layout_of({}, block_size=16, dtype="bfloat16")


@pytest.mark.parametrize("absent", ["num_hidden_layers", "num_attention_heads", "hidden_size"])
def test_a_decoder_says_its_layers_heads_and_width(absent: str) -> None:
    config = {name: value for name, value in LLAMA_3_8B.items() if name != absent}
    for silent in (config, {**config, absent: 0}, {**config, absent: None}):
        with pytest.raises(ValueError, match=f"^the config describes no decoder: it has no {absent}$"):
            layout_of(silent, block_size=16, dtype="bfloat16")


def test_a_model_of_several_modalities_has_its_decoder_inside() -> None:
    llama, qwen = (layout_of(hf, block_size=16, dtype="bfloat16") for hf in (LLAMA_3_8B, QWEN2_5_1_5B))
    assert layout_of({**LLAMA_3_8B, "text_config": QWEN2_5_1_5B}, block_size=16, dtype="bfloat16") == qwen
    nothing: list[Any] = [None, {}, [], "qwen2", ["qwen2"]]
    for inside in nothing:
        assert layout_of({**LLAMA_3_8B, "text_config": inside}, block_size=16, dtype="bfloat16") == llama


def test_older_names_and_latents_are_read() -> None:
    gpt2 = {"n_layer": 12, "n_head": 12, "n_embd": 768}
    assert layout_of(gpt2, block_size=16, dtype="bfloat16").token_bytes == 2 * 12 * 12 * 64 * 2
    assert layout_of({**gpt2, "multi_query": True}, block_size=16, dtype="bfloat16").token_bytes == 2 * 12 * 64 * 2
    heads = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    expanded = layout_of({**LLAMA_3_8B, **heads}, block_size=16, dtype="bfloat16")
    assert (expanded.num_kv_heads, expanded.head_dim) == (32, 192)
    wide = layout_of({**LLAMA_3_8B, **heads, "v_head_dim": 256}, block_size=16, dtype="bfloat16")
    assert wide.head_dim == 256, "the wider of keys and values"
    assert layout_of({**gpt2, "num_hidden_layers": 3}, block_size=16, dtype="bfloat16").num_layers == 3


def test_what_does_not_fit_is_refused_with_the_bytes() -> None:
    layout = layout_of(SMOLLM2_135M, block_size=16, dtype="bfloat16")
    with pytest.raises(ValueError, match="a KV budget of 368639 bytes is less than one block of 368640"):
        KVSizing(layout=layout, memory_bytes=368_639)
    one = KVSizing(layout=layout, memory_bytes=2 * 368_640 - 1)
    assert (one.num_blocks, one.num_tokens, one.pool_bytes) == (1, 16, 368_640)
    sizing = KVSizing(layout=layout, memory_bytes=10 * 368_640 + 5)
    assert (sizing.num_blocks, sizing.num_tokens, sizing.pool_bytes) == (10, 160, 3_686_400)
    sizing.require(144)
    with pytest.raises(ValueError, match=r"max_model_len 145 needs 4055040 bytes .* holds 160 tokens$"):
        sizing.require(145)


def test_host_memory_has_room_for_what_spills() -> None:
    layout = layout_of(SMOLLM2_135M, block_size=16, dtype="bfloat16")
    sizing = KVSizing(layout=layout, memory_bytes=10 * 368_640)
    sizing.require(176, host_blocks=2)
    with pytest.raises(ValueError, match=r"holds 160 tokens, beside 2 blocks of host memory$"):
        sizing.require(177, host_blocks=2)
    with pytest.raises(ValueError, match=r"holds 160 tokens; a window would do, and there is none$"):
        sizing.require(145, why_not="a window would do, and there is none")


@settings(deadline=None, max_examples=50)
@given(num_blocks=st.integers(2, 40), context=st.integers(2, 100))
def test_the_scheduler_runs_as_many_as_fit_to_their_last_token(num_blocks: int, context: int) -> None:
    layout = KVLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_size=16, dtype="float32")
    sizing = KVSizing(layout=layout, memory_bytes=num_blocks * layout.block_bytes)
    count = sizing.num_sequences(context)
    limits = Limits(
        max_num_batched_tokens=10_000, max_num_seqs=100, chunk_size=100, block_size=16, max_model_len=context + 1,
        vocab_size=1000,
    )  # fmt: skip
    scheduler = Scheduler(BlockPool(sizing.num_blocks), limits, policy_of(Role.COLOCATED))
    root = root_hash(model_digest="m", kv_fingerprint="k")
    for number in range(count):
        # The last sampled token has no KV yet: a context of T is T - 1 of prompt and output, and the next one.
        sampling = SamplingParams(max_tokens=context, temperature=0.0, ignore_eos=True)
        prompt = (number,) * (context // 2)
        scheduler.add(SequenceSpec(request_id=str(number), tokens=prompt, sampling=sampling, root=root))
    for _ in range(context - context // 2):
        step = scheduler.schedule()
        assert len(step.grants if step is not None else ()) == count
        for grant in step.grants if step is not None else ():
            progress.commit(
                scheduler, scheduler.sequences[grant.request_id], grant, {grant.request_id: Computed(token=7)}
            )
    assert {sequence.num_tokens for sequence in scheduler.sequences.values()} <= {context}
    assert scheduler.num_preemptions == 0
