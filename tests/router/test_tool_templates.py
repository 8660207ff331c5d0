"""A chat with tools, as a body has it, becomes the tokens that transformers makes of it, whatever the model's family.

The templates in tests/support/tool_templates behave as those that come with the models do; what they tell the model is
put in other words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import byte_tokenizer
import pytest
from fake_pod import fingerprint
from transformers import AutoTokenizer

from pagewire.core.errors import InvalidRequest
from pagewire.router.intake import Intake
from pagewire.router.openai import parse
from pagewire.router.tool_desk import ToolDesk
from pagewire.text.tokenizer import Tokenizer
from pagewire.text.tools.formats import format_of
from pagewire.text.tools.reader import ToolReader

TEMPLATES = Path(byte_tokenizer.__file__).parent / "tool_templates"
# The format that each template tells, and its special tokens.
FAMILIES = {
    "qwen3": ("hermes", ()),
    "qwen3_coder": ("qwen3_coder", ()),
    "llama31": ("llama3_json", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")),
    "mistral": ("mistral", ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]")),
    "hermes": ("hermes", ()),
    # As tool_chat_template_deepseekr1.jinja (V3's likewise) and deepseekv31 of vLLM's examples: DeepSeek's own write
    # calls as these do, and show no tools.
    "deepseek_v3": ("deepseek", ()),
    "deepseek_v31": ("deepseek", ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")),
    # As chat_template.jinja of zai-org/GLM-4.6 (that of 4.5 likewise), and of GLM-5.3-Flash.
    "glm46": ("glm", ()),
    "glm53": ("glm", ()),
    # As chat_template.jinja of moonshotai/Kimi-K2-Thinking.
    "kimi_k2": ("kimi_k2", ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>")),
    # As chat_template.jinja of openai/gpt-oss-20b.
    "gpt_oss": ("harmony", ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>")),
    # As the template of ibm-granite/granite-3.3-8b-instruct (that of 3.1 likewise), which shows no calls.
    "granite33": ("granite", ("<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>")),
}
SILENT = ("granite33",)  # templates that show no calls
NUMBERED = ("kimi_k2",)  # templates that take the name and place of a call for its id
ONE_ALONE = ("llama31", "gpt_oss")  # templates that take one call in a turn
IN_JSON = ("deepseek_v31",)  # templates that take the text of arguments
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & later, in a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "such as Zürich or 東京"},
                    "days": {"type": "array", "items": {"type": "integer"}, "description": "which"},
                    "unit": {"type": ["string", "null"], "enum": ["C", "F", None]},
                    "more": {"type": "object", "additionalProperties": {"type": "number"}},
                    "exact": {"type": "boolean"},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
    },
]  # fmt: skip
ARGUMENTS: dict[str, Any] = {"city": 'Zürich "<b>"\n', "days": [1, 2], "unit": None, "more": {"a": 0.5}, "exact": True}


def call(number: int, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def said(number: int, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call{number:05d}"}


SYSTEM = {"role": "system", "content": " Be brief. "}
USER = {"role": "user", "content": "What is the weather in Zürich?"}
ONE = {"role": "assistant", "content": "", "tool_calls": [call(1, "get_weather", ARGUMENTS)]}
TWO = {
    "role": "assistant",
    "content": "I see.",
    "tool_calls": [call(2, "now", {}), call(3, "get_weather", {"city": ""})],
}
ANSWER = {"role": "assistant", "content": "Rain.\n"}
CHATS: dict[str, list[dict[str, Any]]] = {
    "asked": [USER],
    "with a system": [SYSTEM, USER],
    "called": [USER, ONE, said(1, '{"temperature": 18}')],
    "called two": [SYSTEM, USER, TWO, said(2, "12:00"), said(3, "18 degrees")],
    "went on": [USER, ONE, said(1, "18"), ANSWER, {"role": "user", "content": "And tomorrow?"}],
    "thought": [USER, {**ONE, "reasoning_content": "Let me look.\n"}, said(1, "18")],
}


def body_of(chat: list[dict[str, Any]], tools: list[dict[str, Any]], **fields: Any) -> bytes:
    """Return a chat as clients send it: no content where there are only calls."""
    messages = [{**each, "content": each["content"] or None} if each.get("tool_calls") else each for each in chat]
    return json.dumps({"messages": sent_of(messages), "tools": tools, **fields}).encode()


def sent_of(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a chat with its calls' arguments as a text."""
    messages = []
    for message in chat:
        sent = dict(message)
        if calls := message.get("tool_calls"):
            sent["tool_calls"] = [
                {**each, "function": {**each["function"], "arguments": as_json(each["function"]["arguments"])}}
                for each in calls
            ]
        messages.append(sent)
    return messages


def numbered(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a chat with the ids of Kimi's own guide to tool calls: the name, and how many calls were before."""
    text = as_json(chat)
    for place, each in enumerate(each for message in chat for each in message.get("tool_calls", ())):
        text = text.replace(f'"{each["id"]}"', f'"functions.{each["function"]["name"]}:{place}"')
    ided: list[dict[str, Any]] = json.loads(text)
    return ided


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(family: str, tmp_path: Path) -> Path:
    source = (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")
    special = list(FAMILIES[family][1])
    return byte_tokenizer.save(tmp_path, chat_template=source, additional_special_tokens=special)


# The template of the family hermes is one for tools alone.
CASES = [(family, name, tools) for family in FAMILIES for name in CHATS for tools in (True, False)]


@pytest.mark.parametrize(("family", "name", "has_tools"), [each for each in CASES if each[::2] != ("hermes", False)])
async def test_a_chat_with_tools_has_the_tokens_of_transformers(
    folder: Path, family: str, name: str, has_tools: bool
) -> None:
    chat, tools = CHATS[name], TOOLS if has_tools else []
    tokenizer, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    intake = Intake(tokenizer, lambda: fingerprint(max_model_len=100_000), max_timeout_s=60.0)
    ask = parse(body_of(chat, tools), {"request_id": "a"}, is_chat=True).ask
    if family == "llama31" and len(chat) > 2 and chat[2] is TWO:
        with pytest.raises(InvalidRequest, match="one function at a time"):
            await intake.tokenize(ask)
        with pytest.raises(Exception, match="one function at a time"):
            theirs.apply_chat_template(chat, tools=tools or None)
        return
    theirs_chat = sent_of(chat) if family in IN_JSON else numbered(chat) if family in NUMBERED else chat
    want = theirs.apply_chat_template(theirs_chat, tools=tools or None, add_generation_prompt=True, return_dict=False)
    assert (await intake.tokenize(ask))[1] == tuple(want)
    text = theirs.decode(want)
    assert "Zürich" in text
    shows_one = family not in SILENT and any(ONE["tool_calls"] == each.get("tool_calls") for each in chat)
    assert ("exact" in text) == (has_tools or shows_one)
    tokenizer.close()


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen3", {"enable_thinking": False}),
        ("llama31", {"tools_in_user_message": False, "date_string": "1 Jan 2030"}),
    ],
    ids=["qwen3", "llama31"],
)
async def test_a_templates_own_options_do_what_they_do_in_transformers(folder: Path, options: dict[str, Any]) -> None:
    tokenizer, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    intake = Intake(tokenizer, lambda: fingerprint(max_model_len=100_000), max_timeout_s=60.0)
    chat = CHATS["called"]
    want, plain = (
        theirs.apply_chat_template(chat, tools=TOOLS, add_generation_prompt=True, return_dict=False, **each)
        for each in (options, {})
    )
    ask = parse(body_of(chat, TOOLS, chat_template_kwargs=options), {"request_id": "a"}, is_chat=True).ask
    assert (await intake.tokenize(ask))[1] == tuple(want) != tuple(plain)
    tokenizer.close()


def test_the_template_tells_the_format(folder: Path, family: str) -> None:
    template = Tokenizer(folder).tool_template
    assert template is not None
    found = format_of(template.source)
    assert (found.name if found is not None else None) == FAMILIES[family][0]


def test_calls_that_a_template_writes_are_those_that_are_read(folder: Path, family: str) -> None:
    tokenizer = Tokenizer(folder)
    template = tokenizer.tool_template
    tool_format = format_of(template.source) if template is not None else None
    assert tool_format is not None
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}
    turns: list[dict[str, Any]] = [] if family in SILENT else [ONE] if family in ONE_ALONE else [ONE, TWO]
    for turn in turns:
        prompt = tokenizer.render_chat([USER], tools=TOOLS)
        chat = numbered([USER, turn]) if family in NUMBERED else [USER, turn]
        text = tokenizer.render_chat(chat, tools=TOOLS, add_generation_prompt=False)
        assert text.startswith(prompt)
        reader = ToolReader(tool_format, schemas)
        parts = [*reader.push(text.removeprefix(prompt)).calls, *reader.finish().calls]
        assert [(part.name, json.loads(part.arguments)) for part in parts] == [
            (each["function"]["name"], each["function"]["arguments"]) for each in turn["tool_calls"]
        ]
    tokenizer.close()


@pytest.mark.parametrize("format_name", ["auto", "mistral"])
def test_a_format_that_is_named_is_written_as_the_template_writes_it(tmp_path: Path, format_name: str) -> None:
    written = "{{ '[TOOL_CALLS]' + message.tool_calls[0].function.name + '[ARGS]' }}{{ tools }}"
    marks = ["[TOOL_CALLS]", "[ARGS]"]
    tokenizer = Tokenizer(byte_tokenizer.save(tmp_path, chat_template=written, additional_special_tokens=marks))
    desk = ToolDesk(tokenizer, format_name)
    body = body_of([{"role": "user", "content": "a"}], TOOLS, tool_choice="required")
    forced = desk.prepared(parse(body, {"request_id": "a"}, is_chat=True).ask).grammar
    assert forced is not None
    (before,) = [line for line in forced.text.splitlines() if line.startswith("call0: ")]
    assert before.startswith(f'call0: "get_weather" <[{tokenizer.token_id("[ARGS]")}]> ')
    tokenizer.close()
