"""Heads of a decoder: what a config says, what it leaves out, what is none."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.core.attention_heads import AttentionHeads

FULL = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 128, "hidden_size": 576}


@pytest.mark.parametrize(
    ("left_out", "heads"),
    [
        ((), (9, 3, 128)),
        (("num_key_value_heads",), (9, 9, 128)),
        (("head_dim",), (9, 3, 64)),
        (("hidden_size",), (9, 3, 128)),
    ],
)
def test_what_a_config_leaves_out(left_out: tuple[str, ...], heads: tuple[int, int, int]) -> None:
    found = AttentionHeads.of({name: value for name, value in FULL.items() if name not in left_out})
    assert (found.num_q_heads, found.num_kv_heads, found.head_dim) == heads


@pytest.mark.parametrize("name", ["num_attention_heads", "num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("value", [-1, "9", 2.5])
def test_what_is_no_number_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        AttentionHeads.of({**FULL, name: value})
