"""Beam search by clusters of real processes: token for token and score for score what `LLM` finds without one.

Colocated and disaggregated, by HTTP and by the SDK; a decode pod is killed, another drained, in the middle of a search;
a caller goes away, a deadline passes.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny_model
from in_moments import in_moments, until_gone
from live_cluster import LiveCluster

from pagewire.client import Client
from pagewire.core.errors import DeadlineExceeded, InvalidRequest
from pagewire.core.sampling import SamplingParams
from pagewire.engine import LLM
from pagewire.engine.in_place import Completion

pytestmark = pytest.mark.cluster

LONG = 400  # tokens of a search that is cut off in the middle
FLAGS = ("--dtype", "float32", "--kv-memory", "16MiB", "--chunk-size", "40", "--block-size", "16", "--drain-s", "0.1")
KINDS = {"colocated": ("--colocated", "2"), "disaggregated": ("--decode", "2", "--prefill-mode", "remote")}
ENDS = list(range(0, 256, 9))  # every few tokens an end, so that answers finish at all lengths
ASKED: dict[str, Any] = {"use_beam_search": True, "n": 3, "beam_width": 5, "max_tokens": 24, "ignore_eos": True}
WAYS: list[dict[str, Any]] = [
    {"stop_token_ids": ENDS, "length_penalty": 0.5},
    {"stop_token_ids": ENDS, "early_stopping": True, "repetition_penalty": 1.2},
    {"beam_width": None, "early_stopping": "never"},
    {"n": 1, "max_tokens": 1},
]


def prompts() -> list[list[int]]:
    draw = random.Random(9)
    return [[draw.randrange(tiny_model.VOCAB_SIZE) for _ in range(length)] for length in (1, 16, 33, 100)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def offline(model: Path) -> Iterator[Callable[..., Completion]]:
    """Return what searches without a cluster."""
    with LLM(model, dtype="float32", kv_memory_bytes=16 << 20, block_size=16) as llm:

        def answer(prompt: list[int], **fields: Any) -> Completion:
            given = {name: value for name, value in {**ASKED, **fields}.items() if value is not None}
            stops = tuple(given.pop("stop_token_ids", ()))
            return llm.generate([prompt], SamplingParams(**given, stop_token_ids=stops), progress=False)[0]

        yield answer


@pytest.fixture(scope="module", params=KINDS)
def cluster(model: Path, request: pytest.FixtureRequest) -> Iterator[LiveCluster]:
    cluster = LiveCluster(model, *FLAGS, *KINDS[request.param])
    yield cluster
    cluster.assert_at_rest()
    assert cluster.stop() == 0


async def ask(cluster: LiveCluster, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "return_token_ids": True, "pagewire": {"timeline": True}, **ASKED, **fields}
    async with httpx.AsyncClient(base_url=cluster.http, timeout=120, trust_env=False) as client:
        response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    said: dict[str, Any] = response.json()
    return said


def assert_is(said: dict[str, Any], right: Completion) -> None:
    names = ("text", "finish_reason", "stop_reason", "score", "cumulative_logprob")
    assert [(each["index"], each["token_ids"], *(each[name] for name in names)) for each in said["choices"]] == [
        (index, list(output.token_ids), *(getattr(output, name) for name in names))
        for index, output in enumerate(right.outputs)
    ]
    assert said["usage"]["prompt_tokens"] == len(right.prompt_token_ids)
    assert said["usage"]["completion_tokens"] == sum(len(output.token_ids) for output in right.outputs)


def test_each_answer_is_what_is_found_without_a_cluster(
    cluster: LiveCluster, offline: Callable[..., Completion]
) -> None:
    lengths = set()
    for prompt in prompts():
        for way in WAYS:
            right = offline(prompt, **way)
            said = asyncio.run(ask(cluster, prompt, **way))
            assert_is(said, right)
            assert (said["pagewire"]["report"]["placement"], said["pagewire"]["attempts"]) == ("local", 1)
            lengths |= {len(output.token_ids) for output in right.outputs}
    assert len(lengths) > 3, "the answers hardly differ in length"


def test_searches_beside_ordinary_requests_change_nothing(
    cluster: LiveCluster, offline: Callable[..., Completion]
) -> None:
    """The others' prompts are shipped where there are prefill pods, while beams run."""

    async def all_at_once() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        searched = [ask(cluster, prompt, **WAYS[0]) for prompt in prompts()]
        drawn = [
            ask(cluster, prompt, use_beam_search=False, beam_width=None, temperature=0.9, seed=5)
            for prompt in prompts()
        ]
        return await asyncio.gather(*searched), await asyncio.gather(*drawn)

    searched, drawn = asyncio.run(all_at_once())
    for prompt, found, said in zip(prompts(), searched, drawn, strict=True):
        assert_is(found, offline(prompt, **WAYS[0]))
        right = offline(prompt, use_beam_search=None, beam_width=None, temperature=0.9, seed=5)
        assert [each["token_ids"] for each in said["choices"]] == [list(each.token_ids) for each in right.outputs]


def test_the_sdk_finds_the_same_and_says_what_is_too_much(
    cluster: LiveCluster, offline: Callable[..., Completion]
) -> None:
    prompt = prompts()[3]
    with Client(cluster.grpc) as client:
        for way in WAYS:
            right, result = offline(prompt, **way), client.generate(prompt, **{**ASKED, **way})
            for ours, theirs in zip(result.outputs, right.outputs, strict=True):
                assert (ours.token_ids, ours.text, ours.score) == (theirs.token_ids, theirs.text, theirs.score)
                assert ours.cumulative_logprob == theirs.cumulative_logprob
            assert result.usage.completion_tokens == sum(len(output.token_ids) for output in right.outputs)
        for field, value in (("beam_width", 128), ("max_tokens", 500)):
            with pytest.raises(InvalidRequest) as refused:
                client.generate(prompt, **{**ASKED, "n": 128 if field == "max_tokens" else 3, field: value})
            assert refused.value.field in ("beam_width", "max_tokens")
    cluster.assert_at_rest()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_another_pod_finds_it_when_one_goes_away(
    cluster: LiveCluster, offline: Callable[..., Completion], end: signal.Signals
) -> None:
    prompt = prompts()[3]
    role = "decode" if cluster.said["prefill"] else "colocated"
    right = offline(prompt, max_tokens=LONG, early_stopping="never")
    assert max(len(output.token_ids) for output in right.outputs) == LONG

    async def strike() -> tuple[dict[str, Any], dict[str, Any]]:
        engines = [cluster.engine_of(pod) for pod in cluster.alive() if pod["role"] == role]
        struck: list[dict[str, Any]] = []
        async with in_moments(engines, until_gone(cluster, struck)):
            asked = asyncio.create_task(ask(cluster, prompt, max_tokens=LONG, early_stopping="never"))
            struck.append(await seen(cluster, role, asked))
            os.kill(struck[0]["pid"], end)
            return await asked, struck[0]

    said, struck = asyncio.run(strike())
    assert_is(said, right)
    assert said["pagewire"]["attempts"] == 2, "it was over before"
    assert cluster.exit_code(struck) == (0 if end is signal.SIGTERM else -signal.SIGKILL)
    cluster.assert_at_rest()
    cluster.join(role)


def test_who_gives_up_leaves_nothing_held(cluster: LiveCluster) -> None:
    role = "decode" if cluster.said["prefill"] else "colocated"

    async def go_away() -> None:
        asked = asyncio.create_task(ask(cluster, prompts()[3], max_tokens=LONG))
        await searching(cluster, role, asked)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(go_away())
    cluster.assert_at_rest()
    with Client(cluster.grpc) as client, pytest.raises(DeadlineExceeded):
        client.generate(prompts()[3], timeout_s=0.2, **{**ASKED, "max_tokens": LONG})
    cluster.assert_at_rest()


async def searching(cluster: LiveCluster, role: str, asked: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
    """As `seen`, while engines run for moments only."""
    pods = [pod for pod in cluster.alive() if pod["role"] == role]
    async with in_moments([cluster.engine_of(pod) for pod in pods], lambda: True):
        return await seen(cluster, role, asked)


async def seen(cluster: LiveCluster, role: str, asked: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
    """Wait for a pod to run the beams that were asked for; return it."""
    pods = [pod for pod in cluster.alive() if pod["role"] == role]
    async with asyncio.timeout(60):
        while not asked.done():
            for pod in pods:
                if (await asyncio.to_thread(cluster.metrics, pod))["num_requests_running"]:
                    return pod
            await asyncio.sleep(0.005)
    raise AssertionError(f"it was over before it was seen: {asked.result()}")
