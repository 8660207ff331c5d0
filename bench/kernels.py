"""What each kernel reaches on a GPU, beside what its memory and its matrix units give in the same run.

    copy     bytes read and written by one copy within the device
    matmul   FLOP of large products of random matrices
    decode   one token each of a batch over paged keys and values: the bytes of those, over the copy rate
    chunk    causal attention of whole prompts: FLOP, over PyTorch's flash and cuDNN, and FlexAttention with `--flex`
    rows     norm with residual, SwiGLU, rope with append, copies of blocks: bytes over the copy rate
    product  a few rows times each weight of a layer and of the head, and rows times a layer's as codes (fp8): bytes of
             the weight, over the copy rate and cuBLAS on a plain one
    sample   a token for each row of logits: bytes of logits, over the copy rate; uncut is temperature by the kernels
             of a captured step, which may be asked for cuts

Kernels are replayed in CUDA graphs, so that launching costs nothing. Layers of a pool take turns, so that no cache
holds what attention reads. Rows and logits are the same ones each time, and in a cache where they fit, as they are in a
step that has just written them: they may be faster than a copy. Random numbers, never zeros, which are faster. Bytes of
keys and values count once a KV head. `over-PEER` is how many times as long as ours it takes.

`--quick` measures what the target table asks for, in a minute. `--device cpu` under TRITON_INTERPRET=1 runs all of it
on tiny shapes: it shows that this works, and its figures are nothing. `--json PATH` writes figures, machine, command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent / "support"))

from attention_peers import flashinfer_decode, leave_out, torch_peers
from device_limits import limits
from gpu_clock import seconds
from origin import origin, parser_of

from pagewire.kernels.gpu.paged_attention import AttentionPlan, paged_attention
from pagewire.kernels.gpu.sampling import draw
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.gpu.work_list import Sequences
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.sampling_columns import SamplingColumns
from pagewire.kernels.sampling_rows import SamplingRows
from pagewire.kernels.scaled_weight import ScaledWeight, Weight
from pagewire.kernels.triton_backend import TritonBackend

GB, TERA = 1e9, 1e12
COLD_BYTES = 256 << 20  # of keys and values, or rows, that take turns: four times an H200's second cache
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Model:
    """What of a model its kernels see."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    inner: int
    vocab: int


MODELS = {
    "Llama-3-8B": Model(32, 8, 128, 4096, 14336, 128256),
    "Qwen2.5-1.5B": Model(12, 2, 128, 1536, 8960, 151936),
    "Qwen3-0.6B": Model(16, 8, 128, 1024, 3072, 151936),
}
TINY_MODEL = Model(4, 2, 16, 64, 96, 320)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is measured: a model each, and how much of it."""

    decodes: Sequence[tuple[str, int, int]]  # sequences, tokens of each
    prompts: Sequence[tuple[str, int]]  # tokens of each
    rows: Sequence[tuple[str, int]]  # rows of what is done row by row
    products: Sequence[tuple[str, int]]  # rows of a product
    coded: Sequence[tuple[str, int]]  # the same, of products with codes
    samples: Sequence[tuple[str, int]]  # rows of logits


_DECODES = ((1, 8192), (8, 2048), (64, 512), (64, 2048), (64, 8192), (256, 1024))
FULL = Scope(
    decodes=[(name, *each) for name in MODELS for each in _DECODES],
    prompts=[(name, length) for name in MODELS for length in (2048, 8192)],
    rows=[(name, num_rows) for name in MODELS for num_rows in (1, 64, 8192)],
    products=[(name, num_rows) for name in MODELS for num_rows in (1, 4)],
    coded=[(name, num_rows) for name in ("Llama-3-8B", "Qwen3-0.6B") for num_rows in (1, 4, 16, 64, 256, 512)],
    samples=[(name, num_rows) for name in MODELS for num_rows in (1, 64, 256)],
)
QUICK = Scope(
    decodes=[("Llama-3-8B", *each) for each in ((64, 2048), (64, 512), (8, 2048), (1, 8192))]
    + [("Qwen3-0.6B", 64, 2048)],
    prompts=[("Llama-3-8B", 8192), ("Llama-3-8B", 2048)],
    rows=[("Qwen3-0.6B", 1), ("Qwen3-0.6B", 64)],
    products=[(name, 1) for name in MODELS],
    coded=[("Llama-3-8B", num_rows) for num_rows in (1, 4, 64, 256)],
    samples=[("Qwen3-0.6B", 1), ("Qwen3-0.6B", 64)],
)
TINY = Scope(
    decodes=[("tiny", 2, 40)],
    prompts=[("tiny", 48)],
    rows=[("tiny", 3)],
    products=[("tiny", 2)],
    coded=[("tiny", 2), ("tiny", 6), ("tiny", 300)],
    samples=[("tiny", 2)],
)


@dataclass(frozen=True, slots=True)
class Lab:
    """Where kernels are measured, and on how much."""

    device: torch.device
    dtype: torch.dtype
    processor: Processor
    backend: TritonBackend
    models: dict[str, Model]
    scope: Scope
    cold_bytes: int
    prompt_tokens: int  # of all prompts of a batch together, or of one that is longer
    matrix: int  # the side of a large one
    flex: bool  # whether FlexAttention is among the peers

    @classmethod
    def on(cls, device: torch.device, scope: Scope, *, flex: bool = False, overlaps: bool = True) -> Lab:
        """Return that of a CUDA device, or, whatever the scope, a tiny one."""
        if device.type == "cuda":
            own = Processor.of(device)
            own = replace(own, overlaps=own.overlaps and overlaps)
            backend = TritonBackend(device, own)
            return cls(device, torch.bfloat16, own, backend, MODELS, scope, COLD_BYTES, 16384, 8192, flex)
        few = Processor((9, 0), 2)
        backend = TritonBackend(device, few)
        return cls(device, torch.float32, few, backend, {"tiny": TINY_MODEL}, TINY, 1 << 16, 48, 64, flex)

    def plan(self, sequences: Sequences) -> AttentionPlan:
        """Return what attention needs of a batch whose lengths are there already, as a graph's are."""
        return AttentionPlan(sequences=sequences, processor=self.processor, window=0)

    def random(self, *shape: int) -> torch.Tensor:
        """Return random numbers there."""
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def seconds(self, works: Sequence[Callable[[], object]]) -> float:
        """See `gpu_clock.seconds`."""
        return seconds(self.device, works, rounds=7 if self.device.type == "cuda" else 1)

    def over(self, peers: Sequence[Mapping[str, Callable[[], object]]], ours_s: float) -> dict[str, float]:
        """Return how many times as long as ours each peer takes, given each layer's; not one that no graph holds."""
        found: dict[str, float] = {}
        for name in (name for name in peers[0] if all(name in each for each in peers)):
            try:
                found[f"over-{name}"] = self.seconds([each[name] for each in peers]) / ours_s
            except RuntimeError as error:
                leave_out(name, error)
        return found

    def turns(self, num_bytes: int) -> int:
        """Return how many of that many bytes take turns, so that none is in a cache when it has its own."""
        return max(2, -(-self.cold_bytes // num_bytes))


def decodes(lab: Lab, copy_rate: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each model, batch and size of blocks."""
    for name, num_sequences, kv_len in lab.scope.decodes:
        for block_size in (BLOCK, 4 * BLOCK):
            yield _decode(lab, name, lab.models[name], num_sequences, kv_len, block_size, copy_rate)


def _decode(
    lab: Lab, name: str, model: Model, num_sequences: int, kv_len: int, block_size: int, copy_rate: float
) -> dict[str, Any]:
    of_each = -(-kv_len // block_size)
    num_blocks = num_sequences * of_each
    num_bytes = num_sequences * kv_len * 2 * model.num_kv_heads * model.head_dim * lab.dtype.itemsize
    num_layers = lab.turns(num_bytes)
    pool = lab.random(num_blocks, num_layers, 2, model.num_kv_heads, block_size, model.head_dim)
    table = torch.randperm(num_blocks).view(num_sequences, of_each).to(lab.device)
    q = lab.random(num_sequences, model.num_q_heads, model.head_dim)
    ragged = Ragged(
        query_lens=(1,) * num_sequences, kv_lens=(kv_len,) * num_sequences, block_table=table, block_size=block_size
    )
    sequences, scale = Sequences.of(ragged), model.head_dim**-0.5
    plan = lab.plan(sequences)

    def attend(layer: int, plan: AttentionPlan | None) -> Callable[[], object]:
        """A layer's; without a plan a step's first, which has the list of work made."""
        return lambda: paged_attention(q, pool, layer, plan or lab.plan(sequences), scale)

    layers = range(num_layers)
    ours_s = lab.seconds([attend(layer, plan) for layer in layers])
    planned_s = lab.seconds([attend(layer, None) for layer in layers]) - ours_s
    row: dict[str, Any] = {
        "what": "decode", "model": name, "sequences": num_sequences, "tokens": kv_len, "block": block_size,
        "kv-bytes": num_bytes, "us": ours_s * 1e6, "work-list-us": planned_s * 1e6,
        "gb-per-s": num_bytes / ours_s / GB, "over-copy": num_bytes / ours_s / copy_rate,
    }  # fmt: skip
    kv = [lab.random(2, num_sequences, model.num_kv_heads, kv_len, model.head_dim) for _ in layers]
    peers = [torch_peers(q[:, :, None], each[0], each[1], is_causal=False) for each in kv]
    pages = [flashinfer_decode(q, pool, layer, table, kv_len) for layer in layers]
    return row | lab.over(peers, ours_s) | lab.over(pages, ours_s)


def prompts(lab: Lab) -> Iterator[dict[str, Any]]:
    """Yield a row for each model and length: 16k tokens of prompts, causal, none of it cached."""
    for name, length in lab.scope.prompts:
        yield _chunk(lab, name, lab.models[name], length)


def _chunk(lab: Lab, name: str, model: Model, length: int) -> dict[str, Any]:
    num_sequences = max(1, lab.prompt_tokens // length)
    flop = 2 * num_sequences * model.num_q_heads * length * (length + 1) * model.head_dim  # half of all pairs
    of_each = -(-length // BLOCK)
    pool = lab.random(num_sequences * of_each, 1, 2, model.num_kv_heads, BLOCK, model.head_dim)
    table = torch.randperm(len(pool)).view(num_sequences, of_each).to(lab.device)
    lengths = (length,) * num_sequences
    ragged = Ragged(query_lens=lengths, kv_lens=lengths, block_table=table, block_size=BLOCK)
    plan = lab.plan(Sequences.of(ragged))
    q, scale = lab.random(ragged.num_rows, model.num_q_heads, model.head_dim), model.head_dim**-0.5
    ours_s = lab.seconds([lambda: paged_attention(q, pool, 0, plan, scale)])
    row: dict[str, Any] = {
        "what": "chunk", "model": name, "sequences": num_sequences, "tokens": length,
        "us": ours_s * 1e6, "tflop-per-s": flop / ours_s / TERA,
    }  # fmt: skip
    dense = q.view(num_sequences, length, model.num_q_heads, model.head_dim).transpose(1, 2)
    kv = lab.random(2, num_sequences, model.num_kv_heads, length, model.head_dim)
    return row | lab.over([torch_peers(dense, kv[0], kv[1], is_causal=True, flex=lab.flex)], ours_s)


def rows(lab: Lab, copy_rate: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each kernel that goes row by row, and for each that moves blocks."""
    for name, num_rows in lab.scope.rows:
        for what, num_bytes, work in _row_works(lab, lab.models[name], num_rows):
            took_s = lab.seconds([work] * 4)
            yield {
                "what": what, "model": name, "rows": num_rows, "bytes": num_bytes, "us": took_s * 1e6,
                "over-copy": num_bytes / took_s / copy_rate,
            }  # fmt: skip


def _row_works(lab: Lab, model: Model, num_rows: int) -> Iterator[tuple[str, int, Callable[[], object]]]:
    x, residual, weight = (
        lab.random(num_rows, model.hidden),
        lab.random(num_rows, model.hidden),
        lab.random(model.hidden),
    )
    yield "norm", 4 * x.nbytes, lambda: lab.backend.rms_norm(x, weight, 1e-6, residual)
    gate_up = lab.random(num_rows, 2 * model.inner)
    yield "swiglu", gate_up.nbytes * 3 // 2, lambda: lab.backend.silu_and_mul(gate_up)
    q, k = (
        lab.random(num_rows, model.num_q_heads, model.head_dim),
        lab.random(num_rows, model.num_kv_heads, model.head_dim),
    )
    v, num_blocks = torch.randn_like(k), -(-num_rows // BLOCK)
    angles = torch.rand(2, num_rows, model.head_dim // 2, device=lab.device)
    pool = lab.random(2 * num_blocks, 1, 2, model.num_kv_heads, BLOCK, model.head_dim)
    slots = torch.randperm(len(pool) * BLOCK)[:num_rows].to(lab.device)
    moved = 2 * (q.nbytes + k.nbytes + v.nbytes)
    yield "append", moved, lambda: lab.backend.append_kv(q, k, v, angles[0], angles[1], pool, 0, slots)
    ids = torch.randperm(len(pool)).to(lab.device)
    sources, targets = ids[:num_blocks], ids[num_blocks:]
    yield "copy-blocks", pool.nbytes, lambda: lab.backend.copy_blocks(pool, sources, targets)
    gathered = lab.backend.gather_blocks(pool, sources)
    yield "gather-blocks", pool.nbytes, lambda: lab.backend.gather_blocks(pool, sources)
    yield "scatter-blocks", pool.nbytes, lambda: lab.backend.scatter_blocks(pool, targets, gathered)


def products(lab: Lab, copy_rate: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each product as the layers launch it, beside the product alone by torch, with plain weights."""
    asked = [(*each, False) for each in lab.scope.products] + [(*each, True) for each in lab.scope.coded]
    for name, num_rows, is_coded in asked:
        model = lab.models[name]
        q_size, kv_size = (heads * model.head_dim for heads in (model.num_q_heads, model.num_kv_heads))
        for what, count, size in (
            ("qkv", q_size + 2 * kv_size, model.hidden), ("o", model.hidden, q_size),
            ("gate-up", 2 * model.inner, model.hidden), ("down", model.hidden, model.inner),
            ("head", model.vocab, model.hidden),
        ):  # fmt: skip
            if is_coded and what == "head":
                continue
            num_bytes = count * (size + 4) if is_coded else count * size * lab.dtype.itemsize
            weights = [lab.random(count, size) for _ in range(lab.turns(num_bytes))]
            norm = lab.random(size) if what in ("qkv", "gate-up") else None
            x, residual = lab.random(2, num_rows, size)
            kept: Sequence[Weight] = [ScaledWeight.of(weight) for weight in weights] if is_coded else weights
            ours = [_product(lab, x, residual, norm, weight, is_gated=what == "gate-up") for weight in kept]
            theirs = [partial(torch.nn.functional.linear, x, weight) for weight in weights]
            took_s = lab.seconds(ours)
            yield {
                "what": "product", "model": name, "rows": num_rows, "weight": what,
                "kept": "fp8" if is_coded else "plain", "bytes": num_bytes, "us": took_s * 1e6,
                "over-copy": num_bytes / took_s / copy_rate, "over-cublas": lab.seconds(theirs) / took_s,
            }  # fmt: skip


def _product(
    lab: Lab, x: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, weight: Weight, *,
    is_gated: bool,
) -> Callable[[], object]:  # fmt: skip
    if norm is None:
        return partial(lab.backend.linear(weight, None), x)
    return partial(lab.backend.normed_linear(norm, 1e-6, weight, None, is_gated=is_gated), x, residual)


def samples(lab: Lab, copy_rate: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each way of sampling; nothing goes to the host."""
    ways = {
        "greedy": (0.0, 0, 1.0), "temperature": (1.0, 0, 1.0), "uncut": (1.0, 0, 1.0), "top-k": (1.0, 50, 1.0),
        "top-p": (1.0, 0, 0.9), "top-k and top-p": (1.0, 50, 0.9),
    }  # fmt: skip
    for name, num_rows in lab.scope.samples:
        logits = torch.randn(num_rows, lab.models[name].vocab, device=lab.device) * 4
        for way, (temperature, top_k, top_p) in ways.items():
            asked = SamplingRows(
                temperature=(temperature,) * num_rows, top_k=(top_k,) * num_rows, top_p=(top_p,) * num_rows,
                min_p=(0.0,) * num_rows, typical_p=(1.0,) * num_rows, seed=tuple(range(num_rows)),
                index=(0,) * num_rows, position=(7,) * num_rows,
            )  # fmt: skip
            columns = SamplingColumns.of(asked, lab.device)
            took_s = _drawn(lab, logits, columns, cuts=way.startswith(("uncut", "top")))
            yield {
                "what": "sample", "model": name, "rows": num_rows, "way": way, "us": took_s * 1e6,
                "over-copy": logits.nbytes / took_s / copy_rate,
            }  # fmt: skip


def _drawn(lab: Lab, logits: torch.Tensor, columns: SamplingColumns, *, cuts: bool) -> float:
    return lab.seconds([lambda: draw(logits, columns, cuts, overlaps=lab.processor.overlaps)])


def main() -> None:
    """Parse, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to see that this works")
    parser.add_argument("--parts", default="", help="what is measured, by commas: decode, chunk and so on; all")
    parser.add_argument("--quick", action="store_true", help="the rows of the target table alone")
    parser.add_argument("--flex", action="store_true", help="FlexAttention too, which compiles for each shape")
    parser.add_argument("--no-overlap", action="store_true", help="each kernel starts when the one before it is over")
    options = parser.parse_args()
    torch.manual_seed(0)
    scope = QUICK if options.quick else FULL
    lab = Lab.on(torch.device(options.device), scope, flex=options.flex, overlaps=not options.no_overlap)
    found = limits(lab.device, lab.dtype, max(lab.cold_bytes, 1 << 20) * 4, lab.matrix)
    copy_rate = found["copy-bytes-per-s"]
    flop_rate = found["matmul-flop-per-s"]
    print(
        f"copy {copy_rate / GB:.0f} GB/s by {found['copied-by']}, products {flop_rate / TERA:.0f} TFLOP/s", flush=True
    )
    gpu = torch.cuda.get_device_name(lab.device) if lab.device.type == "cuda" else "none: interpreted"
    found |= {"kernels": [], **origin("torch", "triton", gpu=gpu)}
    parts = {
        "decode": lambda: decodes(lab, copy_rate),
        "chunk": lambda: prompts(lab),
        "rows": lambda: rows(lab, copy_rate),
        "product": lambda: products(lab, copy_rate),
        "sample": lambda: samples(lab, copy_rate),
    }
    for part in options.parts.split(",") if options.parts else parts:
        for row in parts[part]():
            found["kernels"].append(row)
            print(
                ", ".join(
                    f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
                ),
                flush=True,
            )
            if options.json:  # what is known stays, whatever comes
                options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
