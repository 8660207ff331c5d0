"""How much KV a memory holds: bytes to blocks, blocks to sequences, and whether what is wanted fits.

The one arithmetic of an engine's start and of `pagewire kv-size`. Knows a layout and numbers; reads no file and knows
nothing of weights, which have their own memory. Invariant: what it says fits, an engine with that memory admits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagewire.core.attention_heads import AttentionHeads
from pagewire.core.documents import whole
from pagewire.core.kv_layout import BlockOrder, KVLayout, stored_head_dim

# A sequence that will decode is promised one block besides those of its tokens.
SPARE_BLOCKS = 1
# What a decoder must say, and how GPT-2 and its kin say it.
OLDER_NAMES = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSizing:
    """What `memory_bytes` hold of blocks of `layout`."""

    layout: KVLayout
    memory_bytes: int

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise ValueError(
                f"a KV budget of {self.memory_bytes} bytes is less than one block of {self.layout.block_bytes}"
            )

    @property
    def num_blocks(self) -> int:
        """Whole blocks of the pool: floor(memory / block bytes)."""
        return self.memory_bytes // self.layout.block_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens that the whole pool holds: N B."""
        return self.num_blocks * self.layout.block_size

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole blocks; less than one block of the memory is left over."""
        return self.num_blocks * self.layout.block_bytes

    def sequence_blocks(self, context: int) -> int:
        """Return the blocks that a sequence of `context` tokens takes at most: ceil(T / B), and the one to spare."""
        return self.layout.num_blocks(context) + SPARE_BLOCKS

    def num_sequences(self, context: int) -> int:
        """Return how many sequences of `context` tokens are in the pool at once, none sharing a block."""
        return self.num_blocks // self.sequence_blocks(context)

    def headroom_blocks(self, context: int, concurrency: int) -> int:
        """Return the blocks beside `concurrency` such sequences; below 0 is what is missing."""
        return self.num_blocks - concurrency * self.sequence_blocks(context)

    def require(self, context: int, host_blocks: int = 0, why_not: str = "") -> None:
        """Raise ValueError unless one sequence of `context` tokens fits, with `host_blocks` that it may spill to.

        `why_not` ends the message: what else would make room, and why it does not.
        """
        if self.sequence_blocks(context) > self.num_blocks + host_blocks:
            needed = self.sequence_blocks(context) * self.layout.block_bytes
            beside = f", beside {host_blocks} blocks of host memory" if host_blocks else ""
            raise ValueError(
                f"one sequence of max_model_len {context} needs {needed} bytes of KV memory; "
                f"kv_memory_bytes is {self.memory_bytes}, which holds {self.num_tokens} tokens{beside}"
                + (f"; {why_not}" if why_not else "")
            )


def layout_of(
    hf: Mapping[str, Any], *, block_size: int, dtype: str, order: BlockOrder = BlockOrder.LAYER_OUTER
) -> KVLayout:
    """Return the KV layout of the decoder that a config.json describes, in the field names of transformers.

    Latents (multi-head latent attention) are kept expanded, as keys and values of every head. Raises ValueError where
    the config describes no such decoder.
    """
    inside = hf.get("text_config")  # a model of several modalities has its decoder inside
    decoder = dict(inside if inside and isinstance(inside, dict) else hf)
    for name, older in OLDER_NAMES.items():
        decoder.setdefault(name, decoder.get(older))
    missing = [name for name in OLDER_NAMES if not decoder[name]]
    if missing:
        raise ValueError(f"the config describes no decoder: it has no {', '.join(missing)}")
    heads = AttentionHeads.of(decoder)
    num_kv_heads, head_dim = 1 if decoder.get("multi_query") else heads.num_kv_heads, heads.head_dim
    if decoder.get("kv_lora_rank"):
        # Keys and values of unequal width share the wider one.
        keys = whole(decoder, "qk_nope_head_dim") + whole(decoder, "qk_rope_head_dim")
        num_kv_heads, head_dim = heads.num_q_heads, max(keys, whole(decoder, "v_head_dim"))
    return KVLayout(
        num_layers=whole(decoder, "num_hidden_layers"),
        num_kv_heads=num_kv_heads,
        head_dim=stored_head_dim(head_dim),
        block_size=block_size,
        dtype=dtype,
        order=order,
    )


def shard(layout: KVLayout, ranks: int) -> KVLayout:
    """Return what one of `ranks` tensor-parallel ranks keeps: its share of the KV heads, or a copy of one of them.

    Raises ValueError where heads and ranks do not divide.
    """
    heads = layout.num_kv_heads
    if ranks < 1 or (heads % ranks and ranks % heads):
        raise ValueError(f"{heads} KV heads cannot be shared by {ranks} tensor-parallel ranks")
    return dataclasses.replace(layout, num_kv_heads=max(1, heads // ranks))
