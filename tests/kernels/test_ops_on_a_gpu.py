"""What the interpreter cannot show: the ops in bf16, and every op as a GPU computes it, against torch on the CPU.

Unused slots and what is allocated hold NaN. Under compute-sanitizer: `compute-sanitizer pytest -m gpu tests/kernels`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import kernel_definition as definition
import pytest
import torch

from pagewire.engine.capture import CudaCapture
from pagewire.kernels.backend import Backend
from pagewire.kernels.backend_choice import backend_for
from pagewire.kernels.decoder_stack import LayerWeights, StackBatch, StackShape
from pagewire.kernels.gpu import scaled_linear
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.logit_edits import Allowed, Banned, Bias, Counted, LogitEdits, Masked, Repetition
from pagewire.kernels.ragged import DeviceLengths, Ragged
from pagewire.kernels.sampling_rows import SamplingRows
from pagewire.kernels.scaled_weight import ScaledWeight, Weight
from pagewire.kernels.torch_backend import TorchBackend
from pagewire.kernels.triton_backend import TritonBackend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation"),  # torch's sums, for typical-p
]

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
DTYPES = (BF16, torch.float16, torch.float32)
REFERENCE = TorchBackend()


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Have torch fill with NaN what is allocated and not yet written."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return backend_for(torch.device("cuda"))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = definition.TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance)


def near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Hold each row to its reference as a whole: what is rounded on the way to a sum moves single elements more."""
    error = (actual.cpu().double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(error.max()) < definition.TOLERANCE[actual.dtype], error


def nan_pool(num_blocks: int, num_heads: int, dim: int, dtype: torch.dtype, head_outer: bool) -> torch.Tensor:
    """Return a pool `[N, 2, 2, Hk, 16, W]` of NaN on the CPU, codes and scales alike."""
    width = (dim + 2 if dtype in (FP8, torch.int8) else dim) * dtype.itemsize
    if not head_outer:
        return torch.full((num_blocks, 2, 2, num_heads, 16, width), 255, dtype=torch.uint8).view(dtype)
    memory = torch.full((num_blocks, num_heads, 2, 2, 16, width), 255, dtype=torch.uint8)
    return memory.view(dtype).permute(0, 2, 3, 1, 4, 5)


def content(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.cpu().contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 576, 4096, 16384])
def test_rms_norm(backend: Backend, dtype: torch.dtype, size: int) -> None:
    x, residual = torch.randn(2, 67, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    normed, total = backend.rms_norm(x.cuda(), weight.cuda(), 1e-5, residual.cuda())
    assert torch.equal(total.cpu(), x + residual)
    close(normed, definition.rms_norm(x + residual, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [24, 3072, 14336])
def test_silu_and_mul(backend: Backend, dtype: torch.dtype, size: int) -> None:
    gate_up = torch.randn(33, 2 * size).to(dtype)
    close(backend.silu_and_mul(gate_up.cuda()), definition.silu_and_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("count", "size"), [(34, 100), (1024, 3072), (4096, 1024), (1536, 8960), (6144, 4096)])
def test_products(backend: Backend, dtype: torch.dtype, num_rows: int, count: int, size: int) -> None:
    """Of few rows and of more, alone, behind a norm and before a gate."""
    x, residual = torch.randn(2, num_rows, size).to(dtype)
    weight, bias = torch.randn(count, size).div(size**0.5).to(dtype), torch.randn(count).to(dtype)
    norm = (1 + torch.randn(size) / 4).to(dtype)
    on_device = [each.cuda() for each in (x, residual, norm, weight, bias)]
    near(backend.linear(*on_device[3:])(on_device[0]), x.double() @ weight.double().T + bias.double())
    for is_gated in (False, True):
        out, total = backend.normed_linear(on_device[2], 1e-5, *on_device[3:], is_gated=is_gated)(
            on_device[0], on_device[1]
        )
        assert torch.equal(total.cpu(), x + residual)
        expected = definition.rms_norm(x + residual, norm, 1e-5) @ weight.double().T + bias.double()
        near(out, definition.silu_and_mul(expected) if is_gated else expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 4, 5, 16, 33, 64, 100, 256, 257])
@pytest.mark.parametrize(("count", "size"), [(34, 100), (1024, 3072), (1536, 8960), (6144, 4096)])
def test_products_of_codes(backend: Backend, dtype: torch.dtype, num_rows: int, count: int, size: int) -> None:
    """Of any number of rows they are those with what the codes stand for; and codes are the same on either device."""
    x, residual = torch.randn(2, num_rows, size).to(dtype)
    weight = ScaledWeight.of((torch.randn(count, size) / size**0.5 * torch.logspace(-1, 1, count)[:, None]).to(dtype))
    norm, bias = (1 + torch.randn(size) / 4).to(dtype), torch.randn(count).to(dtype)
    there = ScaledWeight.of(weight.decoded().cuda())
    again = ScaledWeight.of(weight.decoded())
    assert torch.equal(content(there.codes), content(again.codes))
    assert torch.equal(there.scales.cpu(), again.scales)
    assert torch.equal(scaled_linear.decode(there, overlaps=False).cpu(), again.decoded())
    exact = again.codes.double() * again.scales.double()[:, None]
    on_device = [each.cuda() for each in (x, residual, norm, bias)]
    near(backend.linear(there, on_device[3])(on_device[0]), x.double() @ exact.T + bias.double())
    for is_gated in (False, True):
        ours = backend.normed_linear(on_device[2], 1e-5, there, on_device[3], is_gated=is_gated)
        out, total = ours(on_device[0], on_device[1])
        assert torch.equal(total.cpu(), x + residual)
        expected = definition.rms_norm(x + residual, norm, 1e-5) @ exact.T + bias.double()
        near(out, definition.silu_and_mul(expected) if is_gated else expected)


@pytest.mark.parametrize("num_rows", [1, 4, 7])
@pytest.mark.parametrize("coded", [False, True])
def test_kernels_that_start_early_read_what_the_others_wrote(num_rows: int, coded: bool) -> None:
    """Bit for bit what they compute one after another; in a graph, over memory that each layer uses again."""
    torch.use_deterministic_algorithms(False)  # which fills memory between the kernels, and so keeps them apart
    own, hidden, inner, dim, num_layers = Processor.of(torch.device("cuda")), 512, 1024, 64, 12
    if not own.overlaps:
        pytest.skip("kernels start one after another here")
    shape = StackShape(
        num_q_heads=8, num_kv_heads=2, head_dim=dim, norm_eps=1e-6, scale=0.125, windows=(0, 100) * (num_layers // 2)
    )

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda").div(shape[-1] ** 0.5).to(BF16)

    def matrix(count: int, size: int) -> Weight:
        return ScaledWeight.of(random(count, size)) if coded else random(count, size)

    layers = [
        LayerWeights(
            input_norm=1 + random(hidden), qkv=matrix(12 * dim, hidden), qkv_bias=random(12 * dim), q_norm=None,
            k_norm=None, o=matrix(hidden, 8 * dim), o_bias=None, post_norm=1 + random(hidden),
            gate_up=matrix(2 * inner, hidden), gate_up_bias=None, down=matrix(hidden, inner), down_bias=None,
        )
        for _ in range(num_layers)
    ]  # fmt: skip
    kv_lens = tuple(200 + 700 * row for row in range(num_rows))
    width = -(-kv_lens[-1] // 16)
    table = torch.randperm(width * num_rows, device="cuda").view(num_rows, width)
    ends = torch.tensor(kv_lens, device="cuda") - 1
    slots = table[torch.arange(num_rows, device="cuda"), ends // 16] * 16 + ends % 16
    angles = torch.rand(2, num_rows, dim // 2, device="cuda")
    filled = torch.randn(width * num_rows, num_layers, 2, 2, 16, dim, device="cuda").to(BF16)
    lengths = DeviceLengths(
        query_starts=torch.arange(num_rows + 1, dtype=torch.int32, device="cuda"), kv_lens=(ends + 1).int()
    )
    ragged = Ragged(query_lens=(1,) * num_rows, kv_lens=kv_lens, block_table=table, block_size=16, on_device=lengths)
    batch = StackBatch(ragged=ragged, slots=slots, cos=angles[0], sin=angles[1])
    x = random(num_rows, hidden)

    def replayed(overlaps: bool) -> list[torch.Tensor]:
        backend = TritonBackend(torch.device("cuda"), replace(own, overlaps=overlaps))
        stack, pool, out = backend.decoder_stack(layers, shape), filled.clone(), torch.empty_like(x)

        def work() -> None:
            hidden, residual = stack(x.clone(), batch, pool, None)
            torch.add(hidden, residual, out=out)

        replay, found = CudaCapture(torch.device("cuda"))(work), []
        for _ in range(50):
            out.fill_(torch.nan)
            replay()
            found.append(out.clone())
        return [*found, pool]

    expected = replayed(overlaps=False)
    assert bool(expected[0].isfinite().all())
    for one, other in zip(replayed(overlaps=True), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [*DTYPES, FP8, torch.int8])
@pytest.mark.parametrize("head_outer", [False, True])
@pytest.mark.parametrize(("num_q", "num_kv", "dim"), [(32, 8, 128), (9, 3, 64), (4, 2, 80)])
def test_append_kv_keeps_the_bytes_that_torch_keeps(
    backend: Backend, dtype: torch.dtype, kept: torch.dtype, head_outer: bool, num_q: int, num_kv: int, dim: int
) -> None:
    """Unturned, as products are fused where a GPU turns; turned, as near as the dtype allows."""
    fused = torch.randn(50, num_q + 2 * num_kv, dim).to(dtype)
    slots = torch.randperm(5 * 16)[:50]
    angles = torch.rand(50, dim // 2) * 6
    for cos, sin in ((torch.ones_like(angles), torch.zeros_like(angles)), (angles.cos(), angles.sin())):
        pools = [nan_pool(5, num_kv, dim, kept, head_outer) for _ in range(2)]
        pools[0] = pools[0].cuda()
        q, k, v = torch.split(fused.cuda(), [num_q, num_kv, num_kv], dim=1)
        rotated = backend.append_kv(q, k, v, cos.cuda(), sin.cuda(), pools[0], 1, slots.cuda())
        q, k, v = torch.split(fused, [num_q, num_kv, num_kv], dim=1)
        close(rotated, REFERENCE.append_kv(q, k, v, cos, sin, pools[1], 1, slots))
        if bool(sin.any()):
            assert torch.equal(content(pools[0][:, 1, 1]), content(pools[1][:, 1, 1]))
        else:
            assert torch.equal(content(pools[0]), content(pools[1]))


@pytest.mark.parametrize("kept", [BF16, FP8])
@pytest.mark.parametrize("head_outer", [False, True])
def test_blocks(backend: Backend, kept: torch.dtype, head_outer: bool) -> None:
    pool = nan_pool(9, 8, 128, kept, head_outer).cuda()
    for layer in range(2):
        k, v = torch.randn(2, 9 * 16, 8, 128, device="cuda").to(BF16)
        backend.write_kv(k, v, pool, layer, torch.arange(9 * 16, device="cuda"))
    expected = content(pool)
    backend.copy_blocks(pool, torch.tensor([0, 1], device="cuda"), torch.tensor([8, 7], device="cuda"))
    expected[[8, 7]] = expected[[0, 1]]
    gathered = backend.gather_blocks(pool, torch.tensor([3, 5], device="cuda"))
    assert torch.equal(content(gathered), expected[[3, 5]])
    backend.scatter_blocks(pool, torch.tensor([6, 2], device="cuda"), gathered)
    expected[[6, 2]] = expected[[3, 5]]
    backend.zero_slots(pool, 4, 7)
    expected[4, :, :, :, 7:] = 0
    assert torch.equal(content(pool), expected)
    host = pool.cpu()
    assert torch.equal(content(backend.gather_blocks(host, torch.tensor([1]))), expected[[1]]), "host memory, by torch"


@pytest.mark.parametrize("vocab_size", [49152, 151936])
@pytest.mark.parametrize("kind", ["fp32", "bf16", "peaked"])
def test_tokens_are_those_of_the_cpu(backend: Backend, vocab_size: int, kind: str) -> None:
    chance = random.Random(0)
    logits = torch.randn(64, vocab_size) * (12.0 if kind == "peaked" else 3.0)
    if kind == "bf16":
        logits = logits.bfloat16().float()
    rows = SamplingRows(
        temperature=tuple(chance.choice([0.0, 0.6, 1.0, 1.5]) for _ in range(64)),
        top_k=tuple(chance.choice([0, 1, 20, 1000]) for _ in range(64)),
        top_p=tuple(chance.choice([1.0, 0.5, 0.95]) for _ in range(64)),
        min_p=tuple(chance.choice([0.0, 0.0, 0.1]) for _ in range(64)),
        typical_p=tuple(chance.choice([1.0] * 7 + [0.5]) for _ in range(64)),
        seed=tuple(chance.randrange(-(2**63), 2**63) for _ in range(64)),
        index=tuple(range(64)),
        position=tuple(chance.randrange(10**5) for _ in range(64)),
    )
    assert backend.sample(logits.cuda(), rows) == REFERENCE.sample(logits, rows)
    logits[9, 77] = torch.nan
    with pytest.raises(ValueError, match="row 9"):
        backend.sample(logits.cuda(), rows)


def test_edits_are_those_of_the_cpu(backend: Backend) -> None:
    vocab_size = 151936
    logits, chosen = torch.randn(16, vocab_size), torch.randperm(16 * vocab_size)[:3000]
    rows, ids = chosen // vocab_size, chosen % vocab_size
    tokens = torch.randint(0, 3000, (5, 4000))
    tokens[3, 100:] = vocab_size
    bits = torch.randint(-(2**31), 2**31, (3, vocab_size // 32), dtype=torch.int32)
    amounts = torch.tensor([1.3, 0.7, 1.01, 2.0, 1.1])

    def edits(device: str) -> LogitEdits:
        def to(x: torch.Tensor) -> torch.Tensor:
            return x.to(device)

        five = to(torch.tensor([2, 3, 5, 7, 11]))
        return LogitEdits(
            bias=Bias(rows=to(rows), ids=to(ids), values=to(ids / 1e4)),
            repetition=Repetition(rows=five, penalty=to(amounts), tokens=to(tokens)),
            counted=Counted(rows=five, presence=to(amounts), frequency=to(amounts / 7), tokens=to(tokens)),
            banned=(Banned(rows=to(rows[:99]), ids=to(ids[:99])),),
            allowed=Allowed(rows=five[:2], places=to(rows % 2), ids=to(ids)),
            masked=Masked(rows=five[2:], bits=to(bits)),
        )

    found = backend.edit_logits(logits.cuda(), edits("cuda")).cpu()
    assert torch.equal(found, REFERENCE.edit_logits(logits, edits("cpu")))
