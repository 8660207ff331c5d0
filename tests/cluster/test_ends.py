"""However a request ends, the client hears the right thing and no block stays held: real processes, real weights.

Pods that are killed while they ship or decode, and lose no token, are in `tests/faults`, with smaller models.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from live_cluster import LiveCluster

from pagewire.client import Client, Message
from pagewire.core.errors import InvalidRequest, PagewireError

pytestmark = [pytest.mark.cluster, pytest.mark.smollm2]

FLAGS = ("--dtype", "float32", "--kv-memory", "512MiB", "--chunk-size", "64")
QUESTION = "The capital of France is"
LONG = list(range(1000, 3000))  # 2,000 token ids, 32 chunks: seconds of prefill


@pytest.fixture(scope="module")
def cluster(smollm2: Path) -> Iterator[LiveCluster]:
    cluster = LiveCluster(smollm2, *FLAGS)
    yield cluster
    assert cluster.stop() == 0


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def received_blocks(cluster: LiveCluster) -> float:
    return cluster.metrics(cluster.said["decode"][0])["kv_blocks_received_total"]


async def _read_some_and_leave(cluster: LiveCluster, prompt: Any, num_events: int) -> None:
    body = {"prompt": prompt, "max_tokens": 400, "stream": True, "ignore_eos": True, "temperature": 0}
    async with (
        httpx.AsyncClient(base_url=cluster.http, timeout=60, trust_env=False) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        assert response.status_code == 200
        seen = 0
        async for line in response.aiter_lines():
            seen += line.startswith("data:")
            if seen >= num_events:
                return


@pytest.mark.parametrize("num_events", [1, 5])
def test_a_closed_stream_frees_everything(cluster: LiveCluster, num_events: int) -> None:
    asyncio.run(_read_some_and_leave(cluster, QUESTION, num_events))
    cluster.assert_at_rest()
    # Nobody went on computing for it: 400 tokens would take several times as long.
    assert cluster.metrics(cluster.said["decode"][0])["num_requests_running"] == 0


def test_a_client_that_leaves_while_its_prompt_ships_frees_both_pods(cluster: LiveCluster) -> None:
    before = received_blocks(cluster)

    async def ask_and_leave() -> None:
        async with httpx.AsyncClient(base_url=cluster.http, timeout=60, trust_env=False) as client:
            asked = asyncio.create_task(client.post("/v1/completions", json={"prompt": LONG, "max_tokens": 50}))
            while received_blocks(cluster) == before:
                await asyncio.sleep(0.01)
                assert not asked.done()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    computed = cluster.metrics(cluster.said["prefill"][0])["prompt_tokens_computed_total"]
    asyncio.run(ask_and_leave())
    cluster.assert_at_rest()
    computed = cluster.metrics(cluster.said["prefill"][0])["prompt_tokens_computed_total"] - computed
    assert 0 < computed < len(LONG)


def test_a_killed_client_frees_everything(cluster: LiveCluster) -> None:
    program = (
        "import sys, httpx\n"
        "body = {'prompt': 'Once', 'max_tokens': 400, 'stream': True, 'ignore_eos': True}\n"
        "with httpx.stream('POST', sys.argv[1] + '/v1/completions', json=body, timeout=60) as response:\n"
        "    for line in response.iter_lines():\n"
        "        print(line, flush=True)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", program, cluster.http], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline().startswith("data:")
    client.kill()
    client.communicate()
    cluster.assert_at_rest()


def test_a_stop_string_ends_it_and_is_left_out(cluster: LiveCluster) -> None:
    whole = cluster.complete(QUESTION, 24, ignore_eos=True)
    stop = whole.text[len(whole.text) // 2 :][:5]
    answer = cluster.complete(QUESTION, 24, ignore_eos=True, stop=[stop])
    assert answer.finish_reason == "stop"
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert answer.usage["completion_tokens"] < 24
    cluster.assert_at_rest()


def test_one_token_ships_nothing(cluster: LiveCluster) -> None:
    before = received_blocks(cluster)
    answer = cluster.complete("An answer of one token", 1)
    assert (len(answer.tokens), answer.finish_reason) == (1, "length")
    assert answer.report["manifest_blocks"] == 0
    assert answer.report["decode_computed_tokens"] == 0
    assert received_blocks(cluster) == before
    cluster.assert_at_rest()


def test_a_first_token_that_ends_it_is_the_whole_answer(cluster: LiveCluster) -> None:
    first = cluster.complete(QUESTION, 1).tokens[0]
    answer = cluster.complete(QUESTION, 20, stop_token_ids=[first])
    assert (answer.finish_reason, answer.usage["completion_tokens"]) == ("stop", 1)
    assert answer.report["manifest_blocks"] == 0
    cluster.assert_at_rest()


def test_seeded_sampling_is_the_same_every_time(cluster: LiveCluster) -> None:
    fields = {"temperature": 0.9, "top_p": 0.95, "ignore_eos": True}
    first, again, other = (
        cluster.complete("Tell me a story.", 24, **fields, seed=seed).tokens for seed in (11, 11, 12)
    )
    assert first == again
    assert first != other


def test_the_second_question_behind_a_prefix_finds_it_cached(cluster: LiveCluster) -> None:
    system = "This long system prompt stands before every question, word for word. " * 12
    cluster.complete(system + "One?", 4)
    answer = cluster.complete(system + "Two?", 4)
    assert answer.usage["prompt_tokens_details"]["cached_tokens"] >= 128
    assert answer.report["decode_cached_tokens"] >= 128
    assert answer.report["prefill_computed_tokens"] < 32
    total = -(-answer.usage["prompt_tokens"] // 16)
    assert answer.report["blocks_shipped"] == total - answer.report["decode_cached_tokens"] // 16
    salted = cluster.complete(system + "Two?", 4, cache_salt="somebody else")
    assert salted.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert salted.tokens == answer.tokens


BAD = [
    ({"model": "gpt-9"}, 404, "model", "gpt-9"),
    ({"max_tokens": -1}, 400, "max_tokens", "1"),
    ({"prompt": [1] * 9000}, 400, "prompt", "8192"),
    ({"prompt": [49152]}, 400, "prompt", "49151"),
    ({"prompt": []}, 400, "prompt", ""),
    ({"temperature": -0.5}, 400, "temperature", "0"),
    ({"top_p": 0}, 400, "top_p", "1"),
    ({"n": 129}, 400, "n", "128"),
    ({"messages": [{"role": "user", "content": "hi"}]}, 400, "messages", ""),
]


@pytest.mark.parametrize(("fields", "status", "field", "bound"), BAD)
def test_bad_input_is_refused_with_field_and_bound(
    cluster: LiveCluster, fields: dict[str, Any], status: int, field: str, bound: str
) -> None:
    before = [cluster.metrics(pod)["prompt_tokens_computed_total"] for pod in cluster.pods()]
    body = {"model": cluster.model_name, "prompt": "hi", "max_tokens": 4, **fields}
    response = httpx.post(f"{cluster.http}/v1/completions", json=body, trust_env=False, timeout=60)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, field), response.text
    assert bound in error["message"]
    assert [cluster.metrics(pod)["prompt_tokens_computed_total"] for pod in cluster.pods()] == before


@pytest.mark.parametrize(
    ("body", "bound"),
    [
        (json.dumps({"prompt": "x" * (10 << 20), "max_tokens": 4}).encode(), "bytes"),
        (b'{"prompt": "caf\xe9", "max_tokens": 4}', "UTF-8"),
        (b'{"prompt": ', "JSON"),
        (b"[]", "object"),
    ],
    ids=["10-MB", "invalid-utf-8", "half-a-body", "not-an-object"],
)
def test_bodies_that_are_none_are_refused(cluster: LiveCluster, body: bytes, bound: str) -> None:
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{cluster.http}/v1/completions", content=body, headers=headers, trust_env=False, timeout=60)
    assert 400 <= response.status_code < 500
    assert bound.lower() in response.json()["error"]["message"].lower()


def test_the_openai_package_completes_and_streams(cluster: LiveCluster) -> None:
    client = openai.OpenAI(base_url=f"{cluster.http}/v1", api_key="-", max_retries=0, timeout=60)
    messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
    with client:
        model = client.models.list().data[0].id
        whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=24)
        assert "Paris" in (whole.choices[0].message.content or "")
        assert whole.usage is not None
        parts = list(
            client.chat.completions.create(
                model=model, messages=messages, temperature=0, max_tokens=24, stream=True,
                stream_options={"include_usage": True},
            )
        )  # fmt: skip
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert text == whole.choices[0].message.content
        assert parts[-1].usage is not None
        assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            client.completions.create(model=model, prompt="hi", max_tokens=-1)


def test_the_sdk_streams_cancels_and_names_errors(cluster: LiveCluster) -> None:
    with Client(cluster.grpc) as client:
        asked = [Message(role="user", content="What is the capital of France?")]
        with client.stream(asked, max_tokens=24, temperature=0.0) as stream:
            text = "".join(chunk.text for chunk in stream)
        assert "Paris" in text
        transfer = stream.result.transfer
        assert transfer is not None
        assert transfer.decode_computed_tokens == 0
        with client.stream("Count to a thousand:", max_tokens=400, ignore_eos=True) as stream:
            next(iter(stream))
        with pytest.raises(InvalidRequest) as refused:
            client.generate("hi", max_tokens=-4)
        assert refused.value.field == "max_tokens"
    cluster.assert_at_rest()


def test_a_prefill_engine_that_stands_still_costs_time_only(smollm2: Path) -> None:
    cluster = LiveCluster(smollm2, *FLAGS, PAGEWIRE_ENGINE_STALL_S="10")
    calm = cluster.complete(QUESTION, 8, ignore_eos=True, cache_salt="calm")
    (prefill,) = cluster.said["prefill"]
    cluster.engine_of(prefill).suspend()
    answer = cluster.complete(QUESTION, 8, ignore_eos=True)
    assert answer.tokens == calm.tokens
    assert answer.report["decode_computed_tokens"] == answer.usage["prompt_tokens"]
    eventually(lambda: not psutil.pid_exists(prefill["pid"]), "a pod outlived its engine")
    cluster.assert_at_rest()
    # Nobody is left to prefill but the decode pod itself.
    assert cluster.complete(QUESTION, 4).report["placement"] in ("local", "resumed")
    assert cluster.stop() == 0


def test_with_no_pod_left_the_error_is_named_in_time(smollm2: Path) -> None:
    cluster = LiveCluster(smollm2, *FLAGS)
    before = received_blocks(cluster)

    async def ask_and_kill() -> httpx.Response:
        async with httpx.AsyncClient(base_url=cluster.http, timeout=60, trust_env=False) as client:
            asked = asyncio.create_task(client.post("/v1/completions", json={"prompt": LONG, "max_tokens": 8}))
            while received_blocks(cluster) < before + 8:
                await asyncio.sleep(0.01)
                assert not asked.done()
            for pod in cluster.pods():
                cluster.kill(pod)
            return await asked

    response = asyncio.run(ask_and_kill())
    assert response.status_code == 503
    assert response.json()["error"]["code"] in ("pod_lost", "unavailable")
    with Client(cluster.grpc) as client, pytest.raises(PagewireError):
        client.generate("hi", max_tokens=2)
    cluster.stop()


def test_sigterm_finishes_what_was_admitted(smollm2: Path) -> None:
    cluster = LiveCluster(smollm2, *FLAGS)

    async def ask_and_stop() -> tuple[int, str]:
        async with httpx.AsyncClient(base_url=cluster.http, timeout=60, trust_env=False) as client:
            body = {"prompt": QUESTION, "max_tokens": 60, "ignore_eos": True, "stream": True, "temperature": 0}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                lines = response.aiter_lines()
                await anext(lines)
                stopping = asyncio.create_task(asyncio.to_thread(cluster.stop))
                rest = [line async for line in lines if line]
            return await stopping, rest[-1]

    code, last = asyncio.run(ask_and_stop())
    assert (code, last) == (0, "data: [DONE]")
