"""What the compiler makes of every op but attention, as it is launched for the models that are served: none spills.

And what a GPU reads and writes in bulk, it reads and writes 16 bytes at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import sm90
import torch

from pagewire.kernels.decoder_stack import LayerWeights, StackBatch, StackShape
from pagewire.kernels.gpu import (
    append_kv,
    blocks,
    logit_edits,
    rms_norm,
    sampling,
    scaled_linear,
    silu_and_mul,
    small_linear,
)
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.head_norms import HeadNorms
from pagewire.kernels.logit_edits import Allowed, Banned, Bias, Counted, LogitEdits, Repetition
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.sampling_columns import SamplingColumns
from pagewire.kernels.scaled_weight import ScaledWeight, Weight
from pagewire.kernels.triton_backend import TritonBackend

WEIGHTS, CODES = (re.compile(rf"ld\.global\.L1::evict_first\.L2::cache_hint\.v{n}\.b32") for n in (4, 2))
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
# Llama-3-8B, Qwen2.5-1.5B, Qwen3-0.6B, SmolLM2-135M: hidden and intermediate sizes, query heads, KV heads, head dim.
MODELS = {
    "llama-8b": (4096, 14336, 32, 8, 128), "qwen2.5-1.5b": (1536, 8960, 12, 2, 128),
    "qwen3-0.6b": (1024, 3072, 16, 8, 128), "smollm2-135m": (576, 1536, 9, 3, 64),
}  # fmt: skip

CPU = torch.device("cpu")
H200 = Processor((9, 0), 132, overlaps=True)

models = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def compiled(launch: Callable[[], object]) -> list[sm90.Kernel]:
    """Return what is launched, none of which may touch local memory."""
    with sm90.compiled() as kernels:
        launch()
    assert kernels
    for kernel in kernels:
        assert kernel.stack == 0, kernel
        assert kernel.spills == 0, kernel
        assert kernel.shared <= sm90.SHARED_BYTES, kernel
        assert kernel.blocks_per_sm >= 1, kernel
    return kernels


def stores(kernel: sm90.Kernel) -> tuple[int, int]:
    """Return how many stores there are of 16 bytes, and of less."""
    wide = kernel.count(r"STG\..*\b128\b")
    return wide, kernel.count("STG") - wide


def pool_of(num_heads: int, head_dim: int, dtype: torch.dtype, head_outer: bool = False) -> torch.Tensor:
    width = head_dim * 2 if dtype is BF16 else head_dim + 2
    if head_outer:
        memory = torch.empty((4, num_heads, 2, 2, 16, width), dtype=torch.uint8)
        return memory.view(dtype).permute(0, 2, 3, 1, 4, 5)
    return torch.empty((4, 2, 2, num_heads, 16, width), dtype=torch.uint8).view(dtype)


@models
def test_rms_norm(model: tuple[int, ...]) -> None:
    hidden, _, num_q, num_kv, dim = model
    x, weight = torch.empty(64, hidden, dtype=BF16), torch.empty(hidden, dtype=BF16)
    (kernel,) = compiled(lambda: rms_norm.rms_norm(x, weight, 1e-5, x))
    wide, narrow = stores(kernel)
    assert wide >= 2
    assert narrow == 0
    assert kernel.wide_loads >= 3  # x, residual, weight
    assert kernel.wide_loads == kernel.count("LDG")
    fused, weight = torch.empty(64, num_q + 2 * num_kv, dim, dtype=BF16), torch.empty(dim, dtype=BF16)
    (kernel,) = compiled(lambda: rms_norm.rms_norm(fused[:, :num_q], weight, 1e-5))
    assert stores(kernel)[1] == 0
    assert kernel.wide_loads >= 1


@models
def test_silu_and_mul(model: tuple[int, ...]) -> None:
    (kernel,) = compiled(lambda: silu_and_mul.silu_and_mul(torch.empty(64, 2 * model[1], dtype=BF16)))
    assert stores(kernel) == (kernel.wide_loads / 2, 0)
    assert kernel.wide_loads == kernel.count("LDG")


@models
@pytest.mark.parametrize("kept", [BF16, FP8])
def test_append_kv(model: tuple[int, ...], kept: torch.dtype) -> None:
    """Codes are written narrowly: with its scale behind it, a head begins anywhere."""
    _, _, num_q, num_kv, dim = model
    fused = torch.empty(64, num_q + 2 * num_kv, dim, dtype=BF16)
    q, k, v = torch.split(fused, [num_q, num_kv, num_kv], dim=1)
    angles, slots = torch.empty(64, dim // 2), torch.zeros(64, dtype=torch.int64)
    pool = pool_of(num_kv, dim, kept)
    (kernel,) = compiled(lambda: append_kv.append_kv(q, k, v, angles, angles, pool, 1, slots))
    assert kernel.wide_loads >= 6  # halves of q, k and v
    wide, narrow = stores(kernel)
    assert wide >= (6 if kept is BF16 else 2)
    assert (narrow == 0) == (kept is BF16)
    norms = HeadNorms(q=torch.empty(dim, dtype=BF16), k=torch.empty(dim, dtype=BF16), eps=1e-6)
    (kernel,) = compiled(lambda: append_kv.append_kv(q, k, v, angles, angles, pool, 1, slots, norms))
    assert kernel.wide_loads >= 6
    (kernel,) = compiled(lambda: append_kv.write_kv(k, v, pool, 1, slots))
    assert kernel.wide_loads >= 4
    assert (stores(kernel)[1] == 0) == (kept is BF16)


def test_append_kv_as_int8() -> None:
    k, v = torch.empty(2, 64, 8, 128, dtype=BF16)
    pool, slots = pool_of(8, 128, torch.int8), torch.zeros(64, dtype=torch.int64)
    compiled(lambda: append_kv.write_kv(k, v, pool, 1, slots))


@pytest.mark.parametrize("kept", [BF16, FP8])
@pytest.mark.parametrize("head_outer", [False, True])
def test_blocks(kept: torch.dtype, head_outer: bool) -> None:
    pool, ids = pool_of(8, 128, kept, head_outer), torch.zeros(2, dtype=torch.int64)
    sent = torch.empty((2, *pool.shape[1:-1], pool.shape[-1] * kept.itemsize), dtype=torch.uint8).view(kept)
    for launch in (
        lambda: blocks.copy_blocks(pool, ids, ids),
        lambda: blocks.gather_blocks(pool, ids),
        lambda: blocks.scatter_blocks(pool, ids, sent),
    ):
        (kernel,) = compiled(launch)
        assert stores(kernel) == (kernel.wide_loads, 0)
        assert kernel.wide_loads >= 1
    (kernel,) = compiled(lambda: blocks.zero_slots(pool, 1, 5))
    assert kept is FP8 or stores(kernel)[1] == 0


@pytest.mark.parametrize(("num_rows", "vocab_size", "overlaps"), [(1, 49152, False), (64, 151936, True)])
def test_sampling(num_rows: int, vocab_size: int, overlaps: bool) -> None:
    """Logits come by copies of 16 bytes, some tiles ahead of what is computed; all programs share all of them."""
    columns = SamplingColumns(
        floats=torch.empty(3, num_rows, dtype=torch.float64), integers=torch.empty(4, num_rows, dtype=torch.int64)
    )
    logits = torch.empty(num_rows, vocab_size)
    for cuts in (False, True):
        launched = compiled(lambda: sampling.draw(logits, columns, cuts, overlaps=overlaps))  # noqa: B023
        kernels = {kernel.name: kernel for kernel in launched}
        shared = (["_survey", "_count", "_weigh", "_gather"] if cuts else []) + ["_draw"]
        assert list(kernels) == [*shared[:-1], *(["_settle"] if cuts else []), "_draw", "_elect"]
        for name in shared:
            assert kernels[name].narrow_copies == 0
            assert kernels[name].wide_loads >= (1 if name == "_gather" else sampling.STAGES)
            assert kernels[name].blocks_per_sm >= 4
            assert kernels[name].grid == kernels["_draw"].grid
        assert kernels["_draw"].grid[0] == num_rows
        assert kernels["_draw"].grid[1] > 1
        if cuts:
            assert kernels["_settle"].narrow_copies == 0
        for kernel in launched:
            ahead = kernel.ptx.split("griddepcontrol.wait")[:-1]
            assert len(ahead) == overlaps, kernel
            assert not re.search(r"^\s*(@\S+ )?(bra|ret)\b", "".join(ahead), re.MULTILINE), kernel


def test_logit_edits() -> None:
    rows, ids = torch.zeros(2, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)
    numbers, tokens = torch.empty(2), torch.zeros(2, 50, dtype=torch.int64)
    edits = LogitEdits(
        bias=Bias(rows=ids, ids=ids, values=torch.empty(9)),
        repetition=Repetition(rows=rows, penalty=numbers, tokens=tokens),
        counted=Counted(rows=rows, presence=numbers, frequency=numbers, tokens=tokens),
        banned=(Banned(rows=ids, ids=ids),),
        allowed=Allowed(rows=rows, places=ids, ids=ids),
    )
    kernels = compiled(lambda: logit_edits.edit(torch.empty(4, 128256), edits))
    names = ["_add", "_tally", "_repeat", "_tally", "_count", "_ban", "_set_bits", "_mask"]
    assert [kernel.name for kernel in kernels] == names
    (count,) = (kernel for kernel in kernels if kernel.name == "_count")
    assert count.count("FFMA") == 0, "a fused product would round otherwise than the reference"


def weight_of(count: int, size: int, *, coded: bool) -> Weight:
    return ScaledWeight.empty((count, size), BF16, CPU) if coded else torch.empty(count, size, dtype=BF16)


def products(model: tuple[int, ...], num_rows: int, *, coded: bool = False) -> list[sm90.Kernel]:
    """Compile a layer's products of a few rows: qkv, o, gate and up, down; and the head's, whose weight is plain."""
    hidden, inner, num_q, num_kv, dim = model
    x, gain, attended, between = (
        torch.empty(*shape, dtype=BF16)
        for shape in ((num_rows, hidden), (hidden,), (num_rows, num_q * dim), (num_rows, inner))
    )

    def launch() -> None:
        qkv_rows = (num_q + 2 * num_kv) * dim
        qkv, bias = weight_of(qkv_rows, hidden, coded=coded), torch.empty(qkv_rows, dtype=BF16)
        small_linear.normed_linear(x, x, gain, 1e-6, qkv, bias, H200)
        small_linear.small_linear(attended, weight_of(hidden, num_q * dim, coded=coded), None, H200)
        gate_up = weight_of(2 * inner, hidden, coded=coded)
        small_linear.normed_linear(x, x, gain, 1e-6, gate_up, None, H200, is_gated=True)
        small_linear.small_linear(between, weight_of(hidden, inner, coded=coded), None, H200)
        if not coded:
            small_linear.small_linear(x, torch.empty(49152, hidden, dtype=BF16), None, H200)

    return compiled(launch)


@models
@pytest.mark.parametrize(("num_rows", "coded"), [(1, False), (2, False), (4, False), (1, True), (4, True)])
def test_products_of_few_rows(model: tuple[int, ...], num_rows: int, coded: bool) -> None:
    """Weights come 16 bytes at a time, codes 8, to the threads that use them, and are asked for ahead of the wait."""
    form = CODES if coded else WEIGHTS
    for kernel in products(model, num_rows, coded=coded):
        size, rows, lanes, depth = (kernel.constants[name] for name in ("K", "ROWS", "LANES", "DEPTH"))
        if coded:
            assert kernel.count("LDG") - kernel.wide_loads - kernel.count(r"LDG\..*\b64\b") <= 2 * (rows + 1)
        else:
            assert kernel.wide_loads >= kernel.count("LDG") - (rows + 1), "all but biases"
        assert kernel.num_warps * 32 == lanes
        assert kernel.blocks_per_sm * kernel.num_warps >= 8, kernel
        ahead, behind = kernel.ptx.split("griddepcontrol.wait", 1)
        assert "griddepcontrol.launch_dependents" in ahead
        assert len(form.findall(ahead)) == rows * depth
        if lanes * depth * 8 >= size:
            assert not form.search(behind)
        assert kernel.shared <= rows * kernel.num_warps * 4, "sums of warps, never weights"


@models
@pytest.mark.parametrize("num_rows", [5, 64, 256])
def test_products_of_codes(model: tuple[int, ...], num_rows: int) -> None:
    """By wgmma whose first operand is in registers; of x 16 bytes at a time, of codes 8 at least; several at once."""
    hidden, inner, num_q, num_kv, dim = model
    shapes = [
        ((num_q + 2 * num_kv) * dim, hidden), (hidden, num_q * dim), (2 * inner, hidden), (hidden, inner)
    ]  # fmt: skip

    def launch() -> None:
        for count, size in shapes:
            x, bias = torch.empty(num_rows, size, dtype=BF16), torch.empty(count, dtype=BF16)
            scaled_linear.scaled_linear(x, weight_of(count, size, coded=True), bias, H200)  # type: ignore[arg-type]

    for kernel in compiled(launch):
        assert kernel.ptx.count("griddepcontrol.wait") == 1
        if kernel.name == "_sum_parts":
            assert kernel.wide_loads >= kernel.constants["SPLITS"]
            continue
        assert kernel.hgmma >= kernel.constants["DEPTH"] // 16
        assert kernel.hmma == 0
        assert not re.search(r"wgmma\.mma_async\S+\s+\{[^}]*\},\s*%rd", kernel.ptx), "codes go from registers"
        assert kernel.narrow_copies == kernel.count(r"LDGSTS\..*\b64\b")
        assert kernel.blocks_per_sm >= 2
        assert stores(kernel)[1] == 0


def test_decoded_codes() -> None:
    weight = ScaledWeight.empty((4096, 14336), BF16, CPU)
    (kernel,) = compiled(lambda: scaled_linear.decode(weight, overlaps=True))
    assert stores(kernel)[1] == 0
    assert kernel.wide_loads == kernel.count("LDG") - 1, "all but the scale"


def test_weights_stay_ahead_of_the_wait() -> None:
    """In machine code as well, which the assembler may order otherwise."""
    for kernel in products(MODELS["qwen3-0.6b"], 1):
        order = list(kernel.sequence)
        wait = order.index("ACQBULK")
        ahead = [opcode for opcode in order[:wait] if opcode.startswith("LDG.E.EF")]
        assert len(ahead) == kernel.constants["ROWS"] * kernel.constants["DEPTH"], kernel
        assert order.index("PREEXIT") < wait


@pytest.mark.parametrize("coded", [False, True])
def test_kernels_of_a_decode_step(coded: bool) -> None:
    """Seven a layer of few rows; at most ten of many, of which six are here and four are products; few for all layers.

    Every one may start before the one before it ends, and waits for that.
    """
    hidden, inner, num_q, num_kv, dim = 256, 512, 4, 2, 64
    backend = TritonBackend(torch.device("cpu"), H200)
    layer = LayerWeights(
        input_norm=torch.zeros(hidden, dtype=BF16), qkv=weight_of((num_q + 2 * num_kv) * dim, hidden, coded=coded),
        qkv_bias=None, q_norm=torch.zeros(dim, dtype=BF16), k_norm=torch.zeros(dim, dtype=BF16),
        o=weight_of(hidden, num_q * dim, coded=coded), o_bias=None, post_norm=torch.zeros(hidden, dtype=BF16),
        gate_up=weight_of(2 * inner, hidden, coded=coded), gate_up_bias=None,
        down=weight_of(hidden, inner, coded=coded), down_bias=None,
    )  # fmt: skip
    shape = StackShape(
        num_q_heads=num_q, num_kv_heads=num_kv, head_dim=dim, norm_eps=1e-6, scale=0.1, windows=(0, 0, 0)
    )
    stack = backend.decoder_stack([layer] * 3, shape)
    pool = torch.zeros(1, 3, 2, num_kv, 16, dim, dtype=BF16)

    def kernels_of(num_rows: int) -> list[str]:
        table = torch.zeros(num_rows, 1, dtype=torch.int64)
        ragged = Ragged(query_lens=(1,) * num_rows, kv_lens=(9,) * num_rows, block_table=table, block_size=16)
        angles = torch.zeros(num_rows, dim // 2)
        batch = StackBatch(ragged=ragged, slots=torch.zeros(num_rows, dtype=torch.int64), cos=angles, sin=angles)
        kernels = compiled(lambda: stack(torch.zeros(num_rows, hidden, dtype=BF16), batch, pool, None))
        for kernel in kernels:
            # Attention waits ahead of its list of work where that may be only just made, and in any case behind it.
            is_attention = kernel.name == "_attend"
            *ahead, _behind = kernel.ptx.split("griddepcontrol.wait")
            assert len(ahead) == 1 + is_attention, kernel
            # None returns ahead of it, nor branches, but for that choice: all that is there is a straight line.
            leaves = "ret" if is_attention else "bra|ret"
            assert not re.search(rf"^\s*(@\S+ )?({leaves})\b", "".join(ahead), re.MULTILINE), kernel
        return [kernel.name for kernel in kernels]

    few = ["_small_linear", "_append_kv", "_attend", "_merge", "_small_linear", "_small_linear", "_small_linear"]
    assert kernels_of(4) == [*few[:2], "_build", *few[2:], *few * 2]

    def of_many(product: str) -> list[str]:
        products = [product] if coded else []  # others are cuBLAS's
        before, attention = ["_rms_norm", *products, "_append_kv"], ["_attend"]
        behind = [*products, "_rms_norm", *products, "_silu_and_mul", *products]
        return [*before, "_build", *attention, *behind, *[*before, *attention, *behind] * 2]

    assert kernels_of(5) == of_many("_scaled_linear")
    if coded:
        assert kernels_of(scaled_linear.MOST_ROWS + 1) == of_many("_decode")
