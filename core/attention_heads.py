"""How many heads a decoder attends with, as a `config.json` says it in the field names of transformers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagewire.core.documents import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionHeads:
    """Heads of queries, heads of keys and values, and the width of each."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> AttentionHeads:
        """Return what a config says; raises ValueError naming the field that is missing or no whole number.

        Without heads of keys and values there are as many as of queries; without a width they share out the hidden one.
        """
        num_q_heads = whole(config, "num_attention_heads")
        return cls(
            num_q_heads=num_q_heads,
            num_kv_heads=whole(config, "num_key_value_heads") if config.get("num_key_value_heads") else num_q_heads,
            head_dim=whole(config, "head_dim")
            if config.get("head_dim")
            else whole(config, "hidden_size") // num_q_heads,
        )
