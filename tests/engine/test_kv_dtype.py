"""What a KV dtype does to tokens is what rounding its keys and values does, and nothing else changes them.

The measure is an engine with a plain pool whose backend rounds each key and value as the dtype says and writes the
number that would be read: block, chunk, prefix hit, preemption and eviction know nothing of codes or scales there.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import Heard, assert_at_rest, engine, greedy, run_all, spec

from pagewire.core.block_hash import root_hash
from pagewire.core.messages import Role
from pagewire.engine.config import EngineConfig
from pagewire.engine.kv_cache import TORCH_DTYPES
from pagewire.kernels import kv_elements
from pagewire.kernels.cpu_backend import CpuBackend
from pagewire.kernels.decoder_stack import ComposedStack, DecoderStack, LayerWeights, StackShape

TinyModel = Callable[[str], Path]
Tokens = Callable[[str, str, str], list[list[int]]]

NUM_TOKENS = 12


def prompts() -> list[list[int]]:
    chance = random.Random(0)
    shared = [chance.randrange(256) for _ in range(37)]
    plain = [[chance.randrange(256) for _ in range(length)] for length in (1, 2, 15, 16, 17, 33, 64, 100)]
    return plain + [shared + [chance.randrange(256) for _ in range(length)] for length in (1, 11, 40)] + [shared]


def specs() -> list[Any]:
    return [spec(str(i), prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(prompts())]


class Rounding(CpuBackend):
    """Keeps what would be read of another pool in a plain one."""

    kept = torch.int8

    def decoder_stack(self, layers: Any, shape: StackShape, reduce: Any = None) -> DecoderStack:
        """Op by op, so that all that is written is seen."""
        assert isinstance(layers[0], LayerWeights)
        return ComposedStack(self, layers, shape, reduce)

    def append_kv(self, *arguments: Any) -> torch.Tensor:
        """Append, and round what was written."""
        rotated = super().append_kv(*arguments)
        self._round(*arguments[5:8])
        return rotated

    def write_kv(self, k: torch.Tensor, v: torch.Tensor, pool: torch.Tensor, layer: int, slots: torch.Tensor) -> None:
        """Write, and round what was written."""
        super().write_kv(k, v, pool, layer, slots)
        self._round(pool, layer, slots)

    def _round(self, pool: torch.Tensor, layer: int, slots: torch.Tensor) -> None:
        blocks, offsets = slots // pool.shape[4], slots % pool.shape[4]
        written = pool[blocks, layer, :, :, offsets]
        pool[blocks, layer, :, :, offsets] = kv_elements.decode(kv_elements.encode(written, self.kept), pool.dtype)


@pytest.fixture(scope="module")
def rounded(tiny: TinyModel) -> Tokens:
    known: dict[tuple[str, str, str], list[list[int]]] = {}

    def tokens(name: str, dtype: str, kv_dtype: str) -> list[list[int]]:
        if (name, dtype, kv_dtype) not in known:
            backend = Rounding.load()
            assert isinstance(backend, Rounding)
            backend.kept = TORCH_DTYPES[kv_dtype]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(CpuBackend, "load", lambda: backend)
                built = engine(tiny(name), dtype=dtype)
            known[name, dtype, kv_dtype] = answers(run_all(built.loop, specs()))
        return known[name, dtype, kv_dtype]

    return tokens


def answers(heard: Heard) -> list[list[int]]:
    return [heard.tokens[str(i)] for i in range(len(prompts()))]


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma2", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 16, "chunk_size": 512, "max_num_batched_tokens": 1024},
        {"block_size": 16, "chunk_size": 7, "max_num_batched_tokens": 40, "kv_order": "head_outer"},
        {"block_size": 64, "chunk_size": 33, "max_num_batched_tokens": 64, "max_num_seqs": 3},
    ],
    ids=["whole", "small-chunks-head-outer", "few-at-once"],
)
def test_tokens_are_those_of_rounded_kv(
    tiny: TinyModel, rounded: Tokens, name: str, kv_dtype: str, settings: dict[str, Any]
) -> None:
    built = engine(tiny(name), kv_dtype=kv_dtype, **settings)
    assert built.cache.pool.dtype == TORCH_DTYPES[kv_dtype]
    built.cache.pool.view(torch.uint8).fill_(255)  # NaN, codes and scales alike: free blocks may hold anything
    expected = rounded(name, "float32", kv_dtype)
    assert answers(run_all(built.loop, specs())) == expected
    again = [spec(f"again {i}", prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(prompts())]
    heard = run_all(built.loop, again)
    assert [heard.tokens[f"again {i}"] for i in range(len(again))] == expected
    size = settings["block_size"]
    assert all(heard.ends[f"again {i}"].cached_tokens == (len(p) - 1) // size * size for i, p in enumerate(prompts()))
    assert_at_rest(built.loop)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "float32"])
def test_bfloat16_is_computed_over_what_is_kept(tiny: TinyModel, rounded: Tokens, kv_dtype: str) -> None:
    built = engine(tiny("qwen3"), dtype="bfloat16", kv_dtype=kv_dtype, chunk_size=20, max_num_batched_tokens=64)
    # The plain pool of the measure is bfloat16: what is kept wider than it is computed changes nothing.
    assert answers(run_all(built.loop, specs())) == rounded("qwen3", "bfloat16", kv_dtype)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_quantised_kv_says_something_else_somewhere(tiny: TinyModel, rounded: Tokens, kv_dtype: str) -> None:
    plain = answers(run_all(engine(tiny("llama")).loop, specs()))
    assert rounded("llama", "float32", kv_dtype) != plain, "a measure that rounds nothing proves nothing"


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
@pytest.mark.parametrize("order", ["layer_outer", "head_outer"])
def test_preemption_and_host_memory_change_no_token(
    tiny: TinyModel, rounded: Tokens, kv_dtype: str, order: str
) -> None:
    block_bytes = 3 * 2 * 2 * 16 * (16 + 2)  # 3 layers, K and V, 2 heads, 16 slots of 16 numbers and a scale
    built = engine(
        tiny("llama"), kv_dtype=kv_dtype, kv_order=order, kv_memory_bytes=12 * block_bytes,
        host_kv_memory_bytes=64 * block_bytes, max_model_len=128,
    )  # fmt: skip
    assert (built.cache.layout.block_bytes, built.ready.num_blocks) == (block_bytes, 12)
    expected = rounded("llama", "float32", kv_dtype)
    for turn in range(2):
        asked = [spec(f"{turn} {i}", prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(prompts())]
        heard = run_all(built.loop, asked)
        assert [heard.tokens[one.request_id] for one in asked] == expected
    load = built.loop.load()
    assert load.blocks_host > 0
    assert sum(end.cached_tokens for end in heard.ends.values()) > load.blocks_total * 16
    assert_at_rest(built.loop)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_handed_over_block_holds_nothing_of_others(tiny: TinyModel, kv_dtype: str) -> None:
    built = engine(tiny("llama"), Role.PREFILL, kv_dtype=kv_dtype)
    built.cache.pool.view(torch.uint8).fill_(255)
    heard = run_all(built.loop, [spec("a", prompts()[5], greedy(NUM_TOKENS))])
    (last,) = [chunk.block_ids[-1] for chunk in heard.chunks if chunk.block_ids][-1:]
    used = len(prompts()[5]) % 16
    assert used
    assert int(built.cache.pool.view(torch.uint8)[last, :, :, :, used:].count_nonzero()) == 0


def test_pods_of_different_kv_dtypes_differ_by_name_and_share_no_hash(tiny: TinyModel) -> None:
    prints = {
        kv_dtype: engine(tiny("llama"), kv_dtype=kv_dtype).ready.fingerprint
        for kv_dtype in ("auto", "bfloat16", "int8", "fp8")
    }
    assert prints["auto"] == engine(tiny("llama"), kv_dtype="float32").ready.fingerprint
    said = prints["int8"].diff(prints["fp8"])
    assert "kv_layout: int8 layer_outer L3 Hk2 D16 / fp8 layer_outer L3 Hk2 D16" in said
    roots = {root_hash(model_digest="tiny", kv_fingerprint=one.kv_fingerprint) for one in prints.values()}
    assert len(roots) == len(prints)


def test_equal_bits_are_promised_over_quantised_kv_for_one_computing_dtype_alone(tiny: TinyModel) -> None:
    wide, narrow = (
        engine(tiny("llama"), dtype=dtype, kv_dtype="int8", deterministic=True).ready.fingerprint
        for dtype in ("float32", "bfloat16")
    )
    assert wide.kv_fingerprint == narrow.kv_fingerprint
    assert "arithmetic: " in wide.diff(narrow)


def test_settings_cross_a_process_border_and_unknown_ones_are_refused() -> None:
    config = EngineConfig(model="m", role=Role.DECODE, kv_dtype="fp8")
    assert EngineConfig.from_json(config.to_json()) == config
    with pytest.raises(ValueError, match="kv_dtype 'int4' is not one of auto, bfloat16, float32, float16, fp8, int8"):
        EngineConfig(model="m", role=Role.DECODE, kv_dtype="int4")
    with pytest.raises(ValueError, match="float16 needs a CUDA device"):
        EngineConfig(model="m", role=Role.DECODE, kv_dtype="float16")


def test_the_bench_says_what_each_holds_and_does(tiny: TinyModel, tmp_path: Path) -> None:
    bench, found = Path(__file__).parents[2] / "bench" / "dtypes.py", tmp_path / "found.json"
    shape = [
        "--prompts",
        "2",
        "--context",
        "40",
        "--tokens",
        "3",
        "--dtype",
        "float32",
        "--kinds",
        "kv=int8,weight=int8",
    ]
    command = [sys.executable, "-P", str(bench), "--model", str(tiny("llama")), *shape, "--json", str(found)]
    subprocess.run(command, check=True, capture_output=True)
    figures = json.loads(found.read_text())["dtypes"]
    assert {name: (each["capacity"], each["positions"]) for name, each in figures.items()} == {
        "plain": (1.0, 6), "kv=int8": (16 * 4 / 18, 6), "weight=int8": (1.0, 6),
    }  # fmt: skip
    assert figures["plain"]["agreement"] == 1.0
    assert len({each["perplexity"] for each in figures.values()}) == 3
