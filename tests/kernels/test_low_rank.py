"""What adapters add: each row is what weights with its adapter merged into them make of it, whatever is beside it."""

from __future__ import annotations

from dataclasses import replace

import kernel_definition as definition
import pytest
import torch
from decoder_layers import BLOCK, HIDDEN, SHAPE, adapter, empty_pool, run, weights
from tiled import ALL_BUILDS, native_backend

from pagewire.kernels.backend import Backend
from pagewire.kernels.cpu_stack import CpuStack
from pagewire.kernels.decoder_stack import ComposedStack, LayerWeights
from pagewire.kernels.low_rank import LayerAdapter
from pagewire.kernels.ragged import Spilled
from pagewire.kernels.scaled_weight import plain
from pagewire.kernels.torch_backend import TorchBackend

PARTS = ("qkv", "o", "gate_up", "down")


def merged(layer: LayerWeights, number: int) -> LayerWeights:
    """Return a layer in fp32 with an adapter as part of its weights."""
    own: dict[str, torch.Tensor] = {}
    for name in PARTS:
        own[name] = plain(getattr(layer, name)).float()
        part = getattr(layer.adapters[number - 1], name) if number else None
        if part is not None:
            own[name] = own[name] + part.up.float() @ part.down.float()
    others = ("input_norm", "q_norm", "k_norm", "post_norm", "qkv_bias", "o_bias", "gate_up_bias", "down_bias")
    for name in others:
        if (value := getattr(layer, name)) is not None:
            own[name] = value.float()
    return replace(layer, **own, adapters=())  # type: ignore[arg-type]


def adapted_layers(dtype: torch.dtype) -> list[LayerWeights]:
    """Return layers with three adapters of different ranks, one of which has part in two products alone."""

    def adapters() -> tuple[LayerAdapter, ...]:
        return adapter(dtype, 4), adapter(dtype, 40), adapter(dtype, 16, has=("o", "gate_up"))

    return [replace(layer, adapters=adapters()) for layer in weights(dtype, biases=True, qk_norm=False)]


def backend_named(build: str) -> Backend:
    return TorchBackend() if build == "torch" else native_backend(build)


@pytest.mark.parametrize("build", ["torch", *ALL_BUILDS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_composed", [False, True])
@pytest.mark.parametrize(
    ("lengths", "numbers"),
    [((37,), (1,)), ((5, 1, 1, 40), (2, 0, 2, 3)), ((1, 1, 1, 1, 1), (3, 1, 1, 0, 2)), ((400, 300, 3), (1, 2, 0))],
)
def test_a_row_is_what_merged_weights_make_of_it(
    threads: int, build: str, dtype: torch.dtype, is_composed: bool, lengths: tuple[int, ...], numbers: tuple[int, ...]
) -> None:
    torch.manual_seed(3)
    backend, layers = backend_named(build), adapted_layers(dtype)
    stack = ComposedStack(backend, layers, SHAPE) if is_composed else backend.decoder_stack(layers, SHAPE)
    assert isinstance(stack, CpuStack) == (build != "torch" and not is_composed)
    parts, num_blocks = [], 0
    for length in lengths:
        blocks = list(range(num_blocks, num_blocks + -(-length // BLOCK)))
        num_blocks += len(blocks)
        parts.append((torch.randn(length, HIDDEN).to(dtype), 0, blocks))
    found = run(stack, empty_pool(num_blocks, dtype), [(x.clone(), at, own) for x, at, own in parts], numbers=numbers)
    tolerance = 20 * definition.TOLERANCE[dtype]
    for rows, (x, _, blocks), number in zip(found, parts, numbers, strict=True):
        alone = ComposedStack(TorchBackend(), [merged(layer, number) for layer in layers], SHAPE)
        (expected,) = run(alone, empty_pool(num_blocks, torch.float32), [(x.float(), 0, blocks)])
        torch.testing.assert_close(rows, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("build", ALL_BUILDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_without_an_adapter_is_what_it_is_where_there_are_none(build: str, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    backend, layers = native_backend(build), adapted_layers(dtype)
    bare = backend.decoder_stack([replace(layer, adapters=()) for layer in layers], SHAPE)
    x, other = torch.randn(33, HIDDEN).to(dtype), torch.randn(20, HIDDEN).to(dtype)
    (expected,) = run(bare, empty_pool(5, dtype), [(x.clone(), 0, [0, 1, 2])])
    parts = [(other.clone(), 0, [3, 4]), (x.clone(), 0, [0, 1, 2])]
    for stack in (backend.decoder_stack(layers, SHAPE), ComposedStack(backend, layers, SHAPE)):
        _, found = run(stack, empty_pool(5, dtype), [(y.clone(), at, own) for y, at, own in parts], numbers=[2, 0])
        assert torch.equal(found, expected)


@pytest.mark.parametrize("build", ALL_BUILDS)
def test_a_layer_in_parts_over_spilled_blocks_has_its_adapter(build: str) -> None:
    torch.manual_seed(5)
    backend, layers = native_backend(build), adapted_layers(torch.float32)
    stack = backend.decoder_stack(layers, SHAPE)
    first, later = torch.randn(37, HIDDEN), torch.randn(5, HIDDEN)
    pool, host = empty_pool(8, torch.float32), empty_pool(4, torch.float32)
    run(stack, pool, [(first.clone(), 0, [3, 1, 6])], numbers=[1])
    (expected,) = run(stack, pool.clone(), [(later.clone(), 37, [3, 1, 6])], numbers=[1])
    host[[2, 0]] = pool[[3, 1]]
    pool[[3, 1]] = empty_pool(2, torch.float32)
    spilled = Spilled(memory=host, slots=(2, 0))
    (streamed,) = run(stack, pool, [(later.clone(), 37, [-1, -1, 6])], spilled, numbers=[1])
    torch.testing.assert_close(streamed, expected, rtol=1e-4, atol=1e-4)
