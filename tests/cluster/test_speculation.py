"""A cluster of real processes that drafts says what one says that does not; a decode pod is killed, one drained."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from in_moments import in_moments, until_gone
from live_cluster import LiveCluster
from live_stream import Stream

from pagewire.core.sampling import SamplingParams
from pagewire.engine import LLM
from pagewire.engine.in_place import Completion

pytestmark = pytest.mark.cluster

LONG = 420  # what is left of it when a pod is told to go takes far longer than it may drain
PROMPT = [1, 2, 3, 4, 5, 6, 7] * 12
FLAGS = ("--dtype", "float32", "--kv-memory", "16MiB", "--chunk-size", "40", "--drain-s", "0.1")
FEW: dict[str, Any] = {"allowed_token_ids": [5, 9, 11, 30]}  # so that it says again what it said before
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 3},
    {**FEW, "logprobs": 2},
    {**FEW, "temperature": 0.7, "seed": 4, "repetition_penalty": 1.1},
]


def test_answers_are_those_without_drafts_whatever_happens_to_pods(tmp_path: Path) -> None:
    model = tiny_model.build(tmp_path / "tiny")
    with LLM(model, dtype="float32", kv_memory_bytes=16 << 20, block_size=16) as llm:

        def answer(way: dict[str, Any]) -> Completion:
            sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": LONG, "ignore_eos": True, **way})
            return llm.generate([PROMPT], sampling, progress=False)[0]

        ways = [*WAYS, {**WAYS[3], "stop": answer(WAYS[3]).text[100:103]}]
        right = [answer(way).token_ids for way in ways]
        assert 0 < len(right[4]) < LONG
    cluster = LiveCluster(model, *FLAGS, "--decode", "2", "--prefill-mode", "remote", "--speculative-tokens", "5")

    async def ask_all() -> list[tuple[int, ...]]:
        asked = [cluster.complete_all([PROMPT], LONG, concurrency=1, ignore_eos=True, **way) for way in ways]
        return [answer.tokens for answers in await asyncio.gather(*asked) for answer in answers]

    async def struck(way: dict[str, Any], end: signal.Signals) -> Stream:
        """Ask, and end the pod that answers once some tokens are here."""
        decode = [pod for pod in cluster.alive() if pod["role"] == "decode"]
        busy: list[dict[str, Any]] = []
        async with in_moments([cluster.engine_of(pod) for pod in decode], until_gone(cluster, busy)):
            stream = Stream(cluster, PROMPT, LONG, "struck", **way)
            await stream.heard(20)
            (found,) = [pod for pod in decode if cluster.metrics(pod)["num_requests_running"]]
            busy.append(found)
            os.kill(found["pid"], end)
            await stream.end()
        return stream

    assert asyncio.run(ask_all()) == right
    states = [cluster.metrics(pod) for pod in cluster.said["decode"]]
    drafted, accepted = (sum(state[f"draft_tokens{kind}_total"] for state in states) for kind in ("", "_accepted"))
    assert 0 < accepted < drafted
    assert all(cluster.metrics(pod)["draft_tokens_total"] == 0 for pod in cluster.said["prefill"])
    for number, end in ((2, signal.SIGKILL), (3, signal.SIGTERM)):
        stream = asyncio.run(struck(WAYS[number], end))
        assert (stream.error, tuple(stream.tokens)) == ({}, right[number])
        assert stream.said["attempts"] == 2, "it was over before"
        cluster.join("decode")
    cluster.assert_at_rest()
    assert cluster.stop() == 0
