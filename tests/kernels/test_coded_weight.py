"""Products in 8 bits are those of the definition, exact in integers, whatever the processor and whoever is beside."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from decoder_layers import BLOCK, HIDDEN, SHAPE, adapter, empty_pool, run, weights
from hypothesis import given
from hypothesis import strategies as st
from tiled import CODED_BUILDS, native_backend

from pagewire.kernels.coded_weight import GROUP, CodedWeight, code_rows
from pagewire.kernels.cpu_stack import CpuStack
from pagewire.kernels.decoder_stack import ComposedStack, LayerWeights
from pagewire.kernels.ragged import Spilled
from pagewire.kernels.scaled_weight import plain as numbers_of
from pagewire.kernels.torch_backend import TorchBackend

SHAPES = [(32, 16), (16, 64), (72, 144), (100, 80), (960, 576)]  # outputs, inputs
ROWS = (1, 4, 5, 13, 40)
NUMBERS = st.floats(-1e4, 1e4, width=32)


def random_rows(num_rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows one input of which is far larger than the others."""
    rows = torch.randn(num_rows, size)
    rows[:, 3] *= 80
    return rows.to(dtype)


def random_weight(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> CodedWeight:
    return CodedWeight.of(torch.randn(num_outputs, num_inputs).to(dtype))


@given(rows=st.lists(st.lists(NUMBERS, min_size=70, max_size=70), min_size=1, max_size=3))
def test_a_code_is_the_nearest_of_its_groups_scale(rows: list[list[float]]) -> None:
    codes, scales = code_rows(torch.tensor(rows))
    assert codes.shape == (len(rows), 3, GROUP)
    assert not codes[:, 2, 70 - 2 * GROUP :].any()
    for row, (own, scale) in enumerate(zip(codes.tolist(), scales.tolist(), strict=True)):
        for group in range(3):
            given = rows[row][group * GROUP : (group + 1) * GROUP]
            assert scale[group] == pytest.approx(max(map(abs, given)) / 127, rel=1e-6, abs=2.0**-100)
            assert max(map(abs, own[group])) in (0, 127)
            for code, number in zip(own[group], given, strict=False):
                assert code == int(code)
                assert abs(code * scale[group] - number) <= 0.5001 * scale[group]


@given(rows=st.lists(st.lists(NUMBERS, min_size=40, max_size=40), min_size=1, max_size=3))
def test_a_weight_is_what_its_codes_stand_for_to_half_of_a_scale(rows: list[list[float]]) -> None:
    weight = torch.tensor(rows)
    kept = CodedWeight.of(weight)
    assert kept.codes.abs().max() <= 127
    scales = kept.scales.float().repeat_interleave(GROUP, dim=1)[:, :40]
    # A scale is rounded to a bfloat16: the largest may be beyond 127 of it by a 512th.
    assert ((kept.decoded() - weight).abs() <= 0.51 * scales + weight.abs() / 500).all()


@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES[:3])
def test_the_definition_is_the_sum_of_the_products_of_codes(num_outputs: int, num_inputs: int) -> None:
    torch.manual_seed(0)
    x, weight = random_rows(3, num_inputs, torch.float32), random_weight(num_outputs, num_inputs, torch.float32)
    codes, scales = code_rows(x)
    found = weight.linear(x, torch.arange(float(num_outputs)))
    for row in range(3):
        for output in range(0, num_outputs, 7):
            total = Fraction(output)
            for place in range(num_inputs):
                group = place // GROUP
                both = Fraction(scales[row, group].item()) * Fraction(weight.scales[output, group].item())
                total += both * int(codes[row, group, place % GROUP]) * int(weight.codes[output, place])
            assert found[row, output].item() == pytest.approx(float(total), rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("build", CODED_BUILDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_natively_it_is_the_definition(
    threads: int, build: str, dtype: torch.dtype, num_outputs: int, num_inputs: int, has_bias: bool
) -> None:
    torch.manual_seed(1)
    weight = random_weight(num_outputs, num_inputs, dtype)
    bias = torch.randn(num_outputs).to(dtype) if has_bias else None
    linear = native_backend(build).linear(weight, bias)
    for num_rows in ROWS:
        x = random_rows(num_rows, num_inputs, dtype)
        found, expected = linear(x), weight.linear(x, bias)
        # The last bit of a bfloat16: both round the same sum, but for the order of its parts.
        rtol = 1e-5 if dtype == torch.float32 else 2.0**-7
        torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-5 * expected.abs().max().item())
        alone = torch.cat([linear(row[None]) for row in x])
        assert torch.equal(found, alone)


@pytest.mark.parametrize("build", CODED_BUILDS)
def test_extremes_stay_in_their_row(threads: int, build: str) -> None:
    torch.manual_seed(2)
    weight = random_weight(48, 96, torch.float32)
    linear, x = native_backend(build).linear(weight, None), torch.randn(40, 96)
    expected = linear(x)
    x[1, 5], x[2, 70], x[3], x[4] = float("nan"), float("-inf"), 0.0, 1e-38
    found = linear(x)
    assert torch.equal(found[[0, *range(5, 40)]], expected[[0, *range(5, 40)]])
    assert found[1].isnan().all()
    assert not found[2].isfinite().any()
    assert not found[3].any()
    assert found[4].abs().max() < 1e-30
    assert torch.equal(weight.linear(x, None).isfinite(), found.isfinite())
    assert linear(x[:0]).shape == (0, 48)


def test_codes_reach_as_far_as_weights_do() -> None:
    weight = torch.tensor([[0.0] * 16, [-3.0] + [3.0] * 15, [65504.0] + [1.0] * 15, [1e-20] * 16])
    kept = CodedWeight.of(weight)
    assert kept.codes.tolist() == [[0] * 16, [-127] + [127] * 15, [127] + [0] * 15, [127] * 16]
    assert kept.decoded()[:, 0].tolist() == pytest.approx([0.0, -3.0, 65504.0, 1e-20], rel=1 / 250)


def test_inputs_that_are_no_whole_vectors_are_multiplied_in_torch() -> None:
    torch.manual_seed(3)
    x, weight = torch.randn(3, 24), random_weight(10, 24, torch.float32)
    assert torch.equal(native_backend("own").linear(weight, None)(x), weight.linear(x, None))


def coded(layer: LayerWeights, **more: object) -> LayerWeights:
    """Return a layer with its matrices as integer codes."""
    names = ("qkv", "o", "gate_up", "down")
    matrices = {name: CodedWeight.of(numbers_of(getattr(layer, name))) for name in names}
    return replace(layer, **matrices, **more)  # type: ignore[arg-type]


def parts_of(lengths: tuple[int, ...], dtype: torch.dtype) -> tuple[list[tuple[torch.Tensor, int, list[int]]], int]:
    """Return sequences of random rows, each in blocks of its own, and how many blocks they have."""
    parts, num_blocks = [], 0
    for length in lengths:
        blocks = list(range(num_blocks, num_blocks + -(-length // BLOCK)))[::-1]
        num_blocks += len(blocks)
        parts.append((torch.randn(length, HIDDEN).to(dtype), 0, blocks))
    return parts, num_blocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("lengths", [(1,), (37, 5), (3, 1), (1000, 100)])
def test_layers_of_codes_are_their_ops_bit_for_bit_on_any_threads(
    threads: int, dtype: torch.dtype, biases: bool, lengths: tuple[int, ...]
) -> None:
    """In one call, too, and a call for each layer."""
    torch.manual_seed(4)
    backend = native_backend("own")
    layers = [coded(layer) for layer in weights(dtype, biases=biases, qk_norm=False)]
    stack, composed = backend.decoder_stack(layers, SHAPE), ComposedStack(backend, layers, SHAPE)
    assert isinstance(stack, CpuStack)
    parts, num_blocks = parts_of(lengths, dtype)
    results = []
    for each, is_heard in ((stack, True), (stack, False), (composed, True)):
        copies = [(x.clone(), start, blocks) for x, start, blocks in parts]
        results.append(torch.cat(run(each, empty_pool(num_blocks, dtype), copies, is_heard=is_heard)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    if max(lengths) < 100:
        defined = TorchBackend().decoder_stack(layers, SHAPE)
        by_definition = torch.cat(run(defined, empty_pool(num_blocks, dtype), parts))
        # Where one of both rounds to the next code, that is a 127th of the largest input of a group.
        torch.testing.assert_close(results[0], by_definition, rtol=0.05, atol=0.15)


def test_over_spilled_blocks_layers_of_codes_go_in_parts(threads: int) -> None:
    torch.manual_seed(6)
    layers = [coded(layer) for layer in weights(torch.float32, biases=True, qk_norm=False)]
    stack, whole = native_backend("own").decoder_stack(layers, SHAPE), empty_pool(3, torch.float32)
    assert isinstance(stack, CpuStack)
    run(stack, whole, [(torch.randn(2 * BLOCK, HIDDEN), 0, [0, 1])])
    x = torch.randn(7, HIDDEN)
    (expected,) = run(stack, whole.clone(), [(x.clone(), 2 * BLOCK, [0, 1, 2])])
    spilled = Spilled(memory=whole[:2].clone(), slots=(0, 1))
    pool = empty_pool(3, torch.float32)
    (found,) = run(stack, pool, [(x.clone(), 2 * BLOCK, [0, 0, 2])], spilled)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [(9,), (3, 1), (700, 30)])
def test_adapters_add_to_products_of_codes(threads: int, dtype: torch.dtype, lengths: tuple[int, ...]) -> None:
    torch.manual_seed(5)
    plain = weights(dtype, biases=False, qk_norm=False)
    own = [(adapter(dtype, 8),) for _ in plain]
    parts, num_blocks = parts_of(lengths, dtype)

    def rows(layers: list[LayerWeights], num_threads: int) -> torch.Tensor:
        torch.set_num_threads(num_threads)
        numbers = [1 if layers[0].adapters else 0] * len(parts)
        copies = [(x.clone(), start, blocks) for x, start, blocks in parts]
        stack = native_backend("own").decoder_stack(layers, SHAPE)
        return torch.cat(run(stack, empty_pool(num_blocks, dtype), copies, numbers=numbers))

    both = [coded(layer, adapters=each) for layer, each in zip(plain, own, strict=True)]
    found = rows(both, threads)
    assert torch.equal(found, rows(both, 1))
    uncoded = rows([replace(layer, adapters=each) for layer, each in zip(plain, own, strict=True)], threads)
    assert (found - uncoded).abs().mean() < 0.05 * uncoded.abs().mean()
    without = rows([coded(layer) for layer in plain], threads)
    assert (found - without).abs().mean() > 0.2 * uncoded.abs().mean()
