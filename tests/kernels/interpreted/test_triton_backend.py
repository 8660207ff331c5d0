"""The backend as a whole: a decoder's layers, what the engine asks of it besides, and whom it leaves to torch."""

from __future__ import annotations

import math

import kernel_definition as definition
import pytest
import torch

from pagewire.kernels import rope
from pagewire.kernels.backend import Backend
from pagewire.kernels.decoder_stack import LayerWeights, StackBatch, StackShape
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.rope import Rope
from pagewire.kernels.sampling_rows import SamplingRows
from pagewire.kernels.torch_backend import TorchBackend
from pagewire.kernels.triton_backend import TritonBackend

SHAPE = StackShape(num_q_heads=4, num_kv_heads=2, head_dim=16, norm_eps=1e-5, scale=0.25, windows=(0, 20))
HIDDEN, INNER, BLOCK = 48, 40, 16
FEW = Processor((9, 0), 2)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def backend() -> TritonBackend:
    return TritonBackend(torch.device("cpu"), FEW)


def layer(dtype: torch.dtype) -> LayerWeights:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape).div(shape[-1] ** 0.5).to(dtype)

    q, kv = SHAPE.num_q_heads * SHAPE.head_dim, SHAPE.num_kv_heads * SHAPE.head_dim
    return LayerWeights(
        input_norm=1 + random(HIDDEN), qkv=random(q + 2 * kv, HIDDEN), qkv_bias=random(q + 2 * kv),
        q_norm=1 + random(SHAPE.head_dim), k_norm=1 + random(SHAPE.head_dim), o=random(HIDDEN, q), o_bias=None,
        post_norm=1 + random(HIDDEN), gate_up=random(2 * INNER, HIDDEN), gate_up_bias=None,
        down=random(HIDDEN, INNER), down_bias=None,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_layers_are_those_of_torch(backend: TritonBackend, dtype: torch.dtype) -> None:
    """A chunk and a decode over two layers, one of them windowed; slots without a token hold NaN."""
    layers, x = [layer(dtype), layer(dtype)], torch.randn(38, HIDDEN).to(dtype)
    table = torch.tensor([[5, 1, 3], [2, 5, 5]])

    def compute(backend: Backend) -> tuple[torch.Tensor, torch.Tensor]:
        pool = torch.full((6, 2, 2, SHAPE.num_kv_heads, BLOCK, SHAPE.head_dim), torch.nan, dtype=dtype)
        stack = backend.decoder_stack(layers, SHAPE)
        outputs = []
        # The prompts, then a batch of what follows: a chunk of the one, a token of the other.
        for lengths, kv_lens in (((23, 15), (23, 15)), ((9, 1), (32, 16))):
            places = [range(kv - n, kv) for n, kv in zip(lengths, kv_lens, strict=True)]
            positions = torch.tensor([at for each in places for at in each])
            slots = [int(table[row, at // BLOCK]) * BLOCK + at % BLOCK for row in range(2) for at in places[row]]
            cos, sin = rope.cos_sin(rope.inverse_frequencies(Rope(theta=100.0), SHAPE.head_dim), positions)
            ragged = Ragged(query_lens=lengths, kv_lens=kv_lens, block_table=table, block_size=BLOCK)
            batch = StackBatch(ragged=ragged, slots=torch.tensor(slots), cos=cos, sin=sin)
            rows = x[: sum(lengths)].clone()
            hidden, residual = stack(rows, batch, pool, None)
            outputs.append(hidden + residual)
        return torch.cat(outputs), pool

    (found, pool), (expected, other) = compute(backend), compute(TorchBackend())
    tolerance = 10 * definition.TOLERANCE[dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(pool, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_a_row_without_a_distribution_is_an_error(backend: TritonBackend) -> None:
    logits = torch.zeros(3, 8)
    logits[2, 3] = math.nan
    rows = SamplingRows(
        temperature=(0.0, 1.0, 1.0), top_k=(0,) * 3, top_p=(1.0,) * 3, min_p=(0.0,) * 3, typical_p=(1.0,) * 3,
        seed=(7,) * 3, index=(0,) * 3, position=(0,) * 3,
    )  # fmt: skip
    with pytest.raises(ValueError, match="row 2"):
        backend.sample(logits, rows)
    logits[2, 3] = 0.0
    assert backend.sample(logits, rows) == TorchBackend().sample(logits, rows)


def test_what_lies_elsewhere_is_moved_by_torch() -> None:
    """Host memory behind a device's pool: no kernel is launched for it, here for want of the device."""
    backend = TritonBackend(torch.device("cuda"), FEW)
    host = torch.randn(4, 1, 2, 2, 16, 8)
    gathered = backend.gather_blocks(host, torch.tensor([2, 0]))
    assert torch.equal(gathered, host[[2, 0]])
    backend.scatter_blocks(host, torch.tensor([1, 3]), gathered)
    assert torch.equal(host[[1, 3]], gathered)
