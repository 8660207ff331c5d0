"""What a cluster says and what `LLM` says without one are the same tokens and texts, seed by seed.

The cluster is disaggregated, of real processes, and pins a prefix: its requests hit it on the prefill pod.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import tiny_model
from live_cluster import LiveCluster

from pagewire.core.sampling import SamplingParams
from pagewire.engine import LLM

pytestmark = pytest.mark.cluster

SYSTEM = "You answer in one short sentence, and you never speak of the weather. " * 2
QUESTIONS = tuple(f"{SYSTEM}Question {number}: why?" for number in range(8))
MAX_TOKENS = 24


def test_a_cluster_and_an_llm_say_the_same(tmp_path: Path) -> None:
    folder = tiny_model.build(tmp_path / "tiny")
    prefixes = tmp_path / "prefixes.toml"
    prefixes.write_text(f'[system]\ntext = "{SYSTEM}"\n')
    cluster = LiveCluster(
        folder, "--dtype", "float32", "--kv-memory", "8MiB", "--pin-prefix", str(prefixes), "--chunk-size", "64"
    )
    fields = {"temperature": 0.8, "top_p": 0.95, "stop": ["e", "zq"]}
    answers = [
        asyncio.run(cluster.complete_all([question], MAX_TOKENS, concurrency=1, seed=seed, **fields))[0]
        for seed, question in enumerate(QUESTIONS)
    ]
    params = [
        SamplingParams(max_tokens=MAX_TOKENS, temperature=0.8, top_p=0.95, seed=seed, stop=("e", "zq"))
        for seed in range(len(QUESTIONS))
    ]
    with LLM(folder, dtype="float32", kv_memory_bytes=8 << 20) as llm:
        ours = llm.generate(QUESTIONS, params)
    assert [answer.tokens for answer in answers] == [each.token_ids for each in ours]
    assert [answer.text for answer in answers] == [each.text for each in ours]
    assert [answer.finish_reason for answer in answers] == [each.finish_reason for each in ours]
    assert {answer.finish_reason for answer in answers} >= {"stop"}
    whole = len(SYSTEM) // 16 * 16  # the tokenizer has a token a byte
    (prefill,) = cluster.said["prefill"]
    assert all(answer.report["prefill_cached_tokens"] >= whole for answer in answers if answer.report)
    told = cluster.metrics(prefill)
    assert told["kv_blocks_pinned"] == whole // 16
    assert told["prompt_tokens_pinned_total"] == whole * len(QUESTIONS)
    cluster.assert_at_rest()
    assert cluster.stop() == 0
