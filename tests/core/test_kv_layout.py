"""KV layout: byte arithmetic, and a fingerprint that is equal exactly when blocks are interchangeable."""

from __future__ import annotations

import dataclasses
from math import prod
from typing import Any

import pytest

from pagewire.core.kv_layout import DTYPE_BYTES, BlockOrder, KVLayout

LAYOUT = KVLayout(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16, dtype="float32")


def test_bytes_follow_from_the_shape() -> None:
    assert LAYOUT.token_bytes == 2 * 30 * 3 * 64 * 4
    assert LAYOUT.block_bytes == LAYOUT.token_bytes * 16
    for order in BlockOrder:
        layout = dataclasses.replace(LAYOUT, order=order)
        assert prod(layout.shape(7)) * DTYPE_BYTES["float32"] == 7 * layout.block_bytes
    assert LAYOUT.shape(7) == (7, 30, 2, 3, 16, 64)
    assert dataclasses.replace(LAYOUT, order=BlockOrder.HEAD_OUTER).shape(7) == (7, 3, 30, 2, 16, 64)


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
@pytest.mark.parametrize(("head_dim", "gain"), [(64, 1.93), (128, 1.96)])
def test_quantised_kv_has_its_scales_in_the_slots(dtype: str, head_dim: int, gain: float) -> None:
    plain = dataclasses.replace(LAYOUT, head_dim=head_dim, dtype="bfloat16")
    for order in BlockOrder:
        layout = dataclasses.replace(plain, dtype=dtype, order=order)
        assert layout.slot_bytes == layout.shape(7)[-1] == head_dim + 2
        assert prod(layout.shape(7)) == 7 * layout.block_bytes
        assert plain.token_bytes / layout.token_bytes > gain
    prints = {dataclasses.replace(plain, dtype=name).fingerprint() for name in DTYPE_BYTES}
    assert len(prints) == len(DTYPE_BYTES), "no two are interchangeable"


@pytest.mark.parametrize(
    ("dtype", "slot_bytes"), [("float32", 256), ("bfloat16", 128), ("float16", 128), ("fp8", 66), ("int8", 66)]
)
@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_a_block_has_as_many_slots_as_it_is_long(dtype: str, slot_bytes: int, block_size: int) -> None:
    layout = dataclasses.replace(LAYOUT, dtype=dtype, block_size=block_size)
    assert layout.slot_bytes == slot_bytes
    assert layout.block_bytes == 2 * 30 * 3 * slot_bytes * block_size
    assert layout.num_blocks(3 * block_size + 1) == 4


def test_the_parts_of_a_block_have_its_heads_in_equal_numbers() -> None:
    for order in BlockOrder:
        layout = dataclasses.replace(LAYOUT, order=order)
        assert layout.part(1) == layout
        assert layout.part(3) == dataclasses.replace(layout, num_kv_heads=1)
        assert 3 * layout.part(3).block_bytes == layout.block_bytes
    for count in (0, 2, 6):
        with pytest.raises(ValueError, match=f"3 KV heads do not split into {count} equal parts"):
            LAYOUT.part(count)


def test_pods_of_any_release_have_the_same_name_for_a_layout() -> None:
    assert LAYOUT.fingerprint() == "d65afefb43c94063"


def test_blocks_for_tokens() -> None:
    assert [LAYOUT.num_blocks(num_tokens) for num_tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": 29},
        {"num_kv_heads": 1},
        {"head_dim": 32},
        {"block_size": 32},
        {"dtype": "bfloat16"},
        {"dtype": "fp8"},
        {"dtype": "int8"},
    ],
)
def test_everything_but_the_order_is_in_the_fingerprint(change: dict[str, Any]) -> None:
    assert dataclasses.replace(LAYOUT).fingerprint() == LAYOUT.fingerprint()
    assert dataclasses.replace(LAYOUT, **change).fingerprint() != LAYOUT.fingerprint()
    assert dataclasses.replace(LAYOUT, order=BlockOrder.HEAD_OUTER).fingerprint() == LAYOUT.fingerprint()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int4"}, "dtype 'int4' is not one of"),
        ({"block_size": 17}, "block_size 17 is not one of"),
        ({"num_layers": 0}, "num_layers must be positive, is 0"),
        ({"head_dim": -1}, "head_dim must be positive, is -1"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(LAYOUT, **change)
