"""Random models through a disaggregated cluster: token for token as transformers says it, the KV of each by a transport
that has to be named or the one that needs no name, and with quantised KV as one engine does."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from engine_runs import engine, greedy, run_all, spec
from live_cluster import LiveCluster
from reference import Reference, is_near_tie
from tiny_model import VOCAB_SIZE, build

pytestmark = pytest.mark.cluster

MAX_TOKENS = 32


def prompts() -> list[list[int]]:
    """Return 24 prompts around block and chunk borders, a third of them behind a shared prefix."""
    draw = random.Random(7)
    lengths = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 64, 65, 100, 128, 150, 200)
    alone = [[draw.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]
    shared = [draw.randrange(VOCAB_SIZE) for _ in range(70)]
    return alone + [shared + [draw.randrange(VOCAB_SIZE) for _ in range(1 + 9 * i)] for i in range(8)]


@pytest.mark.parametrize(
    ("name", "transport", "block_size", "chunk_size"),
    [
        ("llama", "collective", 16, 40),
        ("mistral", "nixl", 32, 64),
        ("qwen2", "tcp", 16, 16),
        ("qwen3", "", 64, 48),
    ],
)
def test_every_architecture_is_exact(
    tmp_path: Path, name: str, transport: str, block_size: int, chunk_size: int
) -> None:
    folder = build(tmp_path / name, name)
    asked = prompts()
    expected = Reference(folder).greedy(asked, MAX_TOKENS)
    flags = ("--dtype", "float32", "--kv-memory", "16MiB", "--block-size", str(block_size))
    named = {"PAGEWIRE_TRANSPORTS": transport} if transport else {}
    cluster = LiveCluster(folder, *flags, "--chunk-size", str(chunk_size), **named)
    answers = asyncio.run(cluster.complete_all(asked, MAX_TOKENS, concurrency=6, ignore_eos=True))
    near_ties = sum(is_near_tie(each, answer.tokens) for each, answer in zip(expected, answers, strict=True))
    print(f"{near_ties} near-ties in {len(asked)} prompts")
    assert near_ties == 0
    for prompt, answer in zip(asked, answers, strict=True):
        report = answer.report
        assert (report["placement"], report["decode_computed_tokens"]) == ("remote", 0)
        assert report["prefill_cached_tokens"] + report["prefill_computed_tokens"] == len(prompt)
        assert report["blocks_shipped"] == report["manifest_blocks"] > 0
    assert sum(answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in answers) > 0
    if transport:
        assert {answer.report["transport"] for answer in answers} == {transport}
    cluster.assert_at_rest()
    assert cluster.stop() == 0


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_quantised_kv_is_shipped_and_says_what_one_engine_does(tmp_path: Path, kv_dtype: str) -> None:
    folder, asked = build(tmp_path / "qwen3", "qwen3"), prompts()
    alone = engine(folder, kv_dtype=kv_dtype, kv_memory_bytes=16 << 20)
    heard = run_all(alone.loop, [spec(str(i), prompt, greedy(MAX_TOKENS)) for i, prompt in enumerate(asked)])
    cluster = LiveCluster(folder, "--dtype", "float32", "--kv-dtype", kv_dtype, "--kv-memory", "16MiB")
    answers = asyncio.run(cluster.complete_all(asked, MAX_TOKENS, concurrency=6, ignore_eos=True))
    assert [list(answer.tokens) for answer in answers] == [heard.tokens[str(i)] for i in range(len(asked))]
    for answer in answers:
        report = answer.report
        assert (report["placement"], report["decode_computed_tokens"]) == ("remote", 0)
        assert report["bytes_shipped"] == report["blocks_shipped"] * alone.cache.layout.block_bytes > 0
    cluster.assert_at_rest()
    assert cluster.stop() == 0
