"""Several answers to one request from clusters of real processes: index by index what `LLM` says without one.

Seeded and greedy, colocated and disaggregated, streamed and not, by HTTP and by the SDK; a decode pod is killed, and
another drained, in the middle. Several answers by each transport are in `tests/faults/test_random_faults.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny_model
from in_moments import in_moments, standing_still, until_gone
from live_cluster import LiveCluster

from pagewire.client import Client
from pagewire.core.errors import InvalidRequest
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.engine import LLM
from pagewire.engine.in_place import Completion

pytestmark = pytest.mark.cluster

N = 3
MAX_TOKENS = 40
LONG = 350  # tokens of an answer that is cut off in the middle
FLAGS = ("--dtype", "float32", "--kv-memory", "16MiB", "--chunk-size", "40", "--block-size", "16")
FIELDS: dict[str, Any] = {"temperature": 0.9, "seed": 5, "ignore_eos": True}
KINDS = {
    "colocated": ("--colocated", "1", "--drain-s", "0.1"),
    "disaggregated": ("--decode", "2", "--drain-s", "0.1", "--prefill-mode", "remote"),
}


def prompts() -> list[list[int]]:
    draw = random.Random(9)
    return [[draw.randrange(tiny_model.VOCAB_SIZE) for _ in range(length)] for length in (1, 16, 33, 100, 150)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def offline(model: Path) -> Iterator[Callable[..., Completion]]:
    """Return what answers a prompt without a cluster."""
    with LLM(model, dtype="float32", kv_memory_bytes=16 << 20, block_size=16) as llm:

        def answer(prompt: list[int], max_tokens: int = MAX_TOKENS, **fields: Any) -> Completion:
            params = SamplingParams(**{"n": N, "max_tokens": max_tokens, **FIELDS, **fields})
            return llm.generate([prompt], params, progress=False)[0]

        yield answer


@pytest.fixture(scope="module", params=KINDS)
def cluster(model: Path, request: pytest.FixtureRequest) -> Iterator[LiveCluster]:
    cluster = LiveCluster(model, *FLAGS, *KINDS[request.param])
    yield cluster
    try:
        cluster.assert_at_rest()
    finally:
        assert cluster.stop() == 0


class Choices:
    """A streamed answer by index, as it comes."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {index: [] for index in range(N)}
        self.texts = dict.fromkeys(range(N), "")
        self.reasons: dict[int, str] = {}
        self.usage: dict[str, Any] = {}
        self.own: dict[str, Any] = {}

    def take(self, said: dict[str, Any]) -> None:
        assert "error" not in said, said
        self.usage = said.get("usage") or self.usage
        self.own = said.get("pagewire") or self.own
        for choice in said["choices"]:
            index = choice["index"]
            assert index not in self.reasons, "a part behind the end"
            self.tokens[index] += choice["token_ids"]
            self.texts[index] += choice["text"]
            if choice["finish_reason"]:
                self.reasons[index] = choice["finish_reason"]

    def assert_is(self, right: Completion) -> None:
        assert self.tokens == {index: list(output.token_ids) for index, output in enumerate(right.outputs)}
        assert self.texts == {index: output.text for index, output in enumerate(right.outputs)}
        assert self.reasons == {index: output.finish_reason for index, output in enumerate(right.outputs)}
        assert self.usage["completion_tokens"] == sum(map(len, self.tokens.values()))
        assert self.usage["prompt_tokens"] == len(right.prompt_token_ids)


async def stream(
    cluster: LiveCluster,
    prompt: list[int],
    max_tokens: int,
    on_part: Callable[[Choices], None] = lambda choices: None,
    **fields: Any,
) -> Choices:
    body = {
        "prompt": prompt, "max_tokens": max_tokens, "n": N, "stream": True, "return_token_ids": True,
        "stream_options": {"include_usage": True}, "pagewire": {"timeline": True}, **FIELDS, **fields,
    }  # fmt: skip
    choices = Choices()
    async with (
        httpx.AsyncClient(base_url=cluster.http, timeout=120, trust_env=False) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                choices.take(json.loads(line.removeprefix("data: ")))
                on_part(choices)
    return choices


def counted(cluster: LiveCluster, name: str) -> float:
    return sum(cluster.metrics(pod)[name] for pod in cluster.alive())


def test_each_says_what_it_says_without_a_cluster(cluster: LiveCluster, offline: Callable[..., Completion]) -> None:
    for prompt in prompts():
        right, before = offline(prompt), counted(cluster, "prompt_tokens_computed_total")
        choices = asyncio.run(stream(cluster, prompt, MAX_TOKENS))
        choices.assert_is(right)
        assert len({tuple(tokens) for tokens in choices.tokens.values()}) == N
        report = choices.own["report"]
        # The prompt was computed once, by whoever prefills, and shipped once.
        assert counted(cluster, "prompt_tokens_computed_total") - before == len(prompt)
        if cluster.said["prefill"]:
            assert (report["placement"], report["decode_computed_tokens"]) == ("remote", 0)
            assert report["prefill_computed_tokens"] == len(prompt)
            assert report["blocks_shipped"] == report["manifest_blocks"] == -(-len(prompt) // 16)
        again = asyncio.run(stream(cluster, prompt, MAX_TOKENS))
        assert again.tokens == choices.tokens


def test_greedy_answers_are_all_that_of_one(cluster: LiveCluster) -> None:
    for prompt in prompts():
        one = cluster.complete(prompt, MAX_TOKENS, ignore_eos=True)
        choices = asyncio.run(stream(cluster, prompt, MAX_TOKENS, temperature=0))
        assert choices.tokens == {index: list(one.tokens) for index in range(N)}


def test_a_stop_string_ends_one_answer_and_a_stop_token_another(
    cluster: LiveCluster, offline: Callable[..., Completion]
) -> None:
    prompt = prompts()[3]
    whole = offline(prompt).outputs
    stops: dict[str, Any] = {"stop": whole[1].text[9:12], "stop_token_ids": [whole[2].token_ids[0]]}
    right = offline(prompt, **{**stops, "stop": (stops["stop"],), "stop_token_ids": tuple(stops["stop_token_ids"])})
    assert right.outputs[1].stop_reason == stops["stop"]
    assert len(right.outputs[2].token_ids) == 1
    asyncio.run(stream(cluster, prompt, MAX_TOKENS, **stops)).assert_is(right)
    asked = {**FIELDS, **stops, "n": N, "prompt": prompt, "max_tokens": MAX_TOKENS}
    body = httpx.post(f"{cluster.http}/v1/completions", json=asked, timeout=60, trust_env=False).json()
    assert [choice["text"] for choice in body["choices"]] == [output.text for output in right.outputs]
    assert [choice["stop_reason"] for choice in body["choices"]] == [output.stop_reason for output in right.outputs]
    assert body["usage"]["completion_tokens"] == sum(len(output.token_ids) for output in right.outputs)


def test_the_sdk_says_the_same_and_what_is_too_much(cluster: LiveCluster, offline: Callable[..., Completion]) -> None:
    prompt = prompts()[2]
    right = offline(prompt)
    with Client(cluster.grpc) as client:
        result = client.generate(prompt, n=N, max_tokens=MAX_TOKENS, **FIELDS)
        assert [output.token_ids for output in result.outputs] == [output.token_ids for output in right.outputs]
        assert [output.text for output in result.outputs] == [output.text for output in right.outputs]
        assert result.usage.completion_tokens == N * MAX_TOKENS
        ends = []
        with client.stream(prompt, n=N, max_tokens=MAX_TOKENS, **FIELDS) as chunks:
            ends = [(chunk.index, chunk.finish_reason) for chunk in chunks if chunk.finish_reason is not None]
        assert sorted(ends) == [(index, FinishReason.LENGTH) for index in range(N)]
        assert chunks.result.outputs == result.outputs
        for number in (0, 129):
            with pytest.raises(InvalidRequest, match="between 1 and 128") as refused:
                client.generate(prompt, n=number)
            assert refused.value.field == "n"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_decode_pod_that_goes_away_loses_and_repeats_nothing(
    cluster: LiveCluster, offline: Callable[..., Completion], end: signal.Signals
) -> None:
    """One answer has been stopped by then, the others are at different places."""
    if not cluster.said["prefill"]:
        cluster.join("colocated")  # so that there is somebody to go on
    prompt = prompts()[4]
    stop = offline(prompt, LONG).outputs[1].text[6:9]
    right = offline(prompt, LONG, stop=(stop,))
    most = max(len(output.token_ids) for output in right.outputs)
    assert right.outputs[1].stop_reason == stop
    assert most > 300, "all answers are too short to be cut off"
    role = "decode" if cluster.said["prefill"] else "colocated"
    engines = [cluster.engine_of(pod) for pod in cluster.alive() if pod["role"] == role]
    struck: list[dict[str, Any]] = []

    def strike(choices: Choices) -> None:
        if struck or 1 not in choices.reasons:
            return
        with standing_still(engines):
            (pod,) = [
                pod for pod in cluster.alive() if pod["role"] == role and cluster.metrics(pod)["num_requests_running"]
            ]
            struck.append(pod)
            os.kill(pod["pid"], end)

    async def strike_within() -> Choices:
        async with in_moments(engines, until_gone(cluster, struck)):
            return await stream(cluster, prompt, LONG, strike, stop=[stop])

    choices = asyncio.run(strike_within())
    choices.assert_is(right)
    assert choices.own["attempts"] == 2, "it was over before"
    assert cluster.exit_code(struck[0]) == (0 if end is signal.SIGTERM else -signal.SIGKILL)
    cluster.assert_at_rest()
    for _ in range(2 - sum(pod["role"] == role for pod in cluster.alive())):
        cluster.join(role)
