"""What a stream tells of its prompt, of usage and in pieces of which size: out of the HTTP door, before fake pods."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import byte_tokenizer
import openai
import pytest
from fake_pod import FakePod, logprobs
from router_rig import RunningRouter, StartRouter, events

TOKENIZER = byte_tokenizer.build()
TEXT = "hello é world"
PROMPT = list(TOKENIZER.encode(TEXT).ids)
CHAT = list(TOKENIZER.encode(f"<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n").ids)
MESSAGES: Any = [{"role": "user", "content": TEXT}]
RUNNING = {"include_usage": True, "continuous_usage_stats": True}


@contextlib.asynccontextmanager
async def openai_client(router: RunningRouter) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=f"{router.addresses['http']}/v1", api_key="none", http_client=http, max_retries=0
    ) as client:
        yield client


def counts(usage: Any) -> tuple[int, int]:
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return usage.prompt_tokens, usage.completion_tokens


async def test_usage_runs_with_the_parts_of_a_stream(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router, openai_client(router) as client:
        told: Any = {"model": "fake", "stream": True, "stream_options": RUNNING, "max_tokens": 8}
        chat = await client.chat.completions.create(messages=MESSAGES, **told, extra_body={"ignore_eos": True})
        parts = [part async for part in chat]
        assert counts(parts[0].usage) == (len(CHAT), 0)
        said, found = 0, []
        for part in parts[1:-2]:
            assert part.choices[0].delta.content
            found.append(counts(part.usage))
        assert found == sorted(found)
        assert {prompt for prompt, _ in found} == {len(CHAT)}
        assert all(completion >= place for place, (_, completion) in enumerate(found, start=1))
        assert counts(parts[-2].usage) == counts(parts[-1].usage) == (len(CHAT), 8)
        assert parts[-1].choices == []
        # With token ids every token is in some part, so that each part's count is known.
        body = {"prompt": TEXT, **told, "n": 2, "return_token_ids": True}
        answer = await router.http.post("/v1/completions", json=body)
        for part in events(answer.text)[:-1]:
            said += len(part["choices"][0]["token_ids"])
            assert part["usage"] == {
                "prompt_tokens": len(PROMPT), "completion_tokens": said, "total_tokens": len(PROMPT) + said,
            }  # fmt: skip
        assert said == 16
        # As in vLLM it takes include_usage.
        for options in ({"continuous_usage_stats": True}, {"include_usage": True}):
            answer = await router.complete(stream=True, stream_options=options)
            assert all(part.get("usage") is None for part in events(answer.text)[:-1])


@pytest.mark.parametrize("n", [1, 3])
async def test_the_first_part_has_the_prompts_tokens(start: StartRouter, n: int) -> None:
    async with start(FakePod("c0")) as router, openai_client(router) as client:
        extra = {"return_token_ids": True}
        chat = await client.chat.completions.create(
            model="fake", messages=MESSAGES, stream=True, n=n, max_tokens=3, extra_body=extra
        )
        first, *others = [part.model_dump() async for part in chat]
        assert first["prompt_token_ids"] == CHAT
        assert not any("prompt_token_ids" in part for part in others)
        whole = await client.chat.completions.create(
            model="fake", messages=MESSAGES, n=n, max_tokens=3, extra_body=extra
        )
        assert whole.model_dump()["prompt_token_ids"] == CHAT
        parts = events((await router.complete(TEXT, stream=True, n=n, return_token_ids=True)).text)
        for index in range(n):
            choices = [part["choices"][0] for part in parts if part["choices"][0]["index"] == index]
            assert [choice.get("prompt_token_ids") for choice in choices] == [PROMPT, *[None] * (len(choices) - 1)]
            assert sum(len(choice["token_ids"]) for choice in choices) == 8


def added(parts: list[Any], index: int) -> dict[str, Any]:
    """Return the choice that a client makes of a completion's stream."""
    choice: dict[str, Any] = {"index": index, "text": "", "logprobs": None}
    for part in (part["choices"][0] for part in parts if part["choices"][0]["index"] == index):
        choice["text"] += part["text"]
        for name, values in (part["logprobs"] or {}).items():
            choice["logprobs"] = choice["logprobs"] or {}
            choice["logprobs"][name] = choice["logprobs"].get(name, []) + values
        rest = {name: value for name, value in part.items() if name not in choice and value is not None}
        choice |= rest
    return choice


@pytest.mark.parametrize("form", [TEXT, PROMPT], ids=["text", "tokens"])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_a_streamed_echo_is_the_whole_one(
    start: StartRouter, form: Any, logprobs: int | None, max_tokens: int
) -> None:
    async with start(FakePod("c0")) as router:
        fields: dict[str, Any] = {"echo": True, "logprobs": logprobs, "max_tokens": max_tokens, "n": 2, "seed": 1}
        whole = (await router.complete(form, **fields)).json()
        answer = await router.complete(form, **fields, stream=True, stream_options=RUNNING)
        *parts, usage = events(answer.text)
        for choice in whole["choices"]:
            choice = {name: value for name, value in choice.items() if name != "stop_reason"}
            assert choice["text"].startswith(TEXT)
            assert added(parts, choice["index"]) == choice
        assert usage["usage"] == whole["usage"]
        del usage["usage"]["prompt_tokens_details"]  # known at the end alone
        assert parts[-1]["usage"] == usage["usage"]


async def test_a_streamed_prompt_is_scored_in_the_first_part(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        fields: dict[str, Any] = {"prompt_logprobs": 1, "max_tokens": 3}
        want = (await router.complete(PROMPT, **fields)).json()["choices"][0]["prompt_logprobs"]
        assert want[1][str(PROMPT[1])]["logprob"] == logprobs(PROMPT[1], 0).logprob
        first, *others = events((await router.complete(PROMPT, **fields, stream=True)).text)
        assert first["choices"][0]["prompt_logprobs"] == want
        assert not any("prompt_logprobs" in part["choices"][0] for part in others)
        first, *_ = events((await router.complete(PROMPT, **fields, echo=True, stream=True)).text)
        assert (first["choices"][0]["prompt_logprobs"], first["choices"][0]["text"]) == (want, TEXT)
        body = {"messages": MESSAGES, **fields}
        want = (await router.http.post("/v1/chat/completions", json=body)).json()["prompt_logprobs"]
        assert len(want) == len(CHAT)
        answer = await router.http.post("/v1/chat/completions", json={**body, "stream": True})
        first, *others = events(answer.text)
        assert first["prompt_logprobs"] == want
        assert not any("prompt_logprobs" in part for part in others)


@pytest.mark.parametrize("interval", [1, 3, 8, 100])
async def test_parts_hold_as_many_tokens_as_asked(start: StartRouter, interval: int) -> None:
    async with start(FakePod("c0")) as router, openai_client(router) as client:
        plain = (await router.complete(TEXT, max_tokens=20, logprobs=0)).json()["choices"][0]
        answer = await router.complete(
            TEXT, max_tokens=20, logprobs=0, stream=True, return_token_ids=True, stream_interval=interval
        )
        _, *parts, _ = events(answer.text)  # the first names the prompt, the last the end
        sizes = [len(part["choices"][0]["token_ids"]) for part in parts]
        assert sum(sizes) == 20
        assert all(size >= interval for size in sizes[1:-1])  # more where several came at once
        assert added(parts, 0)["logprobs"] == plain["logprobs"]
        assert added(parts, 0)["text"] == plain["text"]
        stream = await client.completions.create(
            model="fake", prompt=TEXT, max_tokens=20, stream=True, extra_body={"stream_interval": interval}
        )
        texts = [part.choices[0].text async for part in stream]
        assert "".join(texts) == plain["text"]
        refused = await router.complete(TEXT, stream=True, stream_interval=1025)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_interval")
