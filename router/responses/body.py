"""A body of /v1/responses as that of a chat.

Pure; knows JSON values. What both name alike is passed on as it is; what is wrong with the rest is told by the name
that the caller gave it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.router import guided
from pagewire.router.bodies import Common, ResponsesBody
from pagewire.router.responses.input import messages

LOGPROBS = "message.output_text.logprobs"
# What a chat calls what has another name here: fields, and places in them.
NAMES = (
    ("messages", "input"),
    ("prompt", "input"),
    ("max_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("logprobs", "top_logprobs"),
    ("tool_choice.allowed_tools", "tool_choice"),
    ("tool_choice", "tool_choice"),
)
# What may be kept with a response, at OpenAI.
MAX_PAIRS = 16
MAX_KEY_CHARS = 64
MAX_VALUE_CHARS = 512
# How many lists around what is repeated are written where it is: as many as an answer has, and its writer calls.
_AROUND = 50
_PASSED = (
    *Common.model_fields,
    *guided.FIELDS,
    "chat_template_kwargs",
    "documents",
    "parallel_tool_calls",
    "separate_reasoning",
    "include_reasoning",
)

Json = dict[str, Any]


def as_chat(body: ResponsesBody, raw: Mapping[str, Any]) -> Json:
    """Return the members of the chat that a response is; raises InvalidRequest or UnsupportedField."""
    chat: Json = {name: raw[name] for name in _PASSED if name in raw}
    wants_logprobs = body.top_logprobs is not None or LOGPROBS in _include(body.include)
    return chat | {
        "messages": messages(body.instructions, body.input),
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": wants_logprobs,
        "top_logprobs": body.top_logprobs,
        "truncate_prompt_tokens": -1 if body.truncation == "auto" else None,
        "response_format": _format(body.text),
        "reasoning_effort": _effort(body.reasoning),
        "tools": _tools(body.tools),
        "tool_choice": _choice(body.tool_choice),
    }


def echoed(body: ResponsesBody) -> Json:
    """Return what a response repeats of what was asked for; raises InvalidRequest where it could not be written."""
    told = {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": _metadata(body.metadata),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": None, "summary": None, **(body.reasoning or {})},
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, **(body.text or {})},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation or "disabled",
    }
    for name in ("reasoning", "text", "tool_choice", "tools"):
        _check_depth(name, told[name])
    return told


def _metadata(metadata: Any) -> Json:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or len(metadata) > MAX_PAIRS:
        raise InvalidRequest(f"metadata is an object of at most {MAX_PAIRS} texts", field="metadata")
    for name, value in metadata.items():
        if len(name) > MAX_KEY_CHARS or not isinstance(value, str) or len(value) > MAX_VALUE_CHARS:
            bounds = f"a text of at most {MAX_VALUE_CHARS} characters, by a name of at most {MAX_KEY_CHARS}"
            raise InvalidRequest(f"metadata.{name[:MAX_KEY_CHARS]} is not {bounds}", field="metadata")
    return metadata


def _check_depth(name: str, value: Any) -> None:
    """Raise InvalidRequest where a value could be read, and is nested too deeply to be written within an answer."""
    for _ in range(_AROUND):
        value = [value]
    try:
        json.dumps(value)
    except RecursionError as error:
        raise InvalidRequest(f"{name} is nested too deeply", field=name) from error


def _include(include: Any) -> list[Any]:
    if include is not None and not isinstance(include, list):
        raise InvalidRequest("include is a list of texts", field="include")
    return include or []


def _format(text: Any) -> Any:
    """Return a `response_format`, None for a plain text."""
    if text is None:
        return None
    if not isinstance(text, dict) or not isinstance(text.get("format"), (dict, type(None))):
        raise InvalidRequest("text is an object, and so is its format", field="text")
    if text.get("verbosity") not in (None, "medium"):
        raise UnsupportedField("text.verbosity is not supported: leave it out, or set it to medium", field="text")
    told = text.get("format")
    if told is None or told.get("type") != "json_schema":
        return told
    return {"type": "json_schema", "json_schema": {name: each for name, each in told.items() if name != "type"}}


def _effort(reasoning: Any) -> Any:
    if reasoning is not None and not isinstance(reasoning, dict):
        raise InvalidRequest("reasoning is an object", field="reasoning")
    return (reasoning or {}).get("effort")


def _tools(tools: Any) -> Any:
    """Return tools as a chat has them."""
    if not isinstance(tools, list):
        return tools
    return [_tool(f"tools.{place}", tool) for place, tool in enumerate(tools)]


def _tool(where: str, tool: Any) -> Json:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise UnsupportedField(f"{where}: tools of type {str(kind)[:50]!r} are not supported", field="tools")
    if tool.get("name") is None and tool.get("function") is not None:
        raise InvalidRequest(f"{where} has its name and parameters beside its type, not in a function", field="tools")
    return {"type": "function", "function": {name: each for name, each in tool.items() if name != "type"}}


def _choice(choice: Any) -> Any:
    """Return a `tool_choice` as a chat has it."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return _named(choice)
    tools = choice.get("tools")
    named = [_named(tool) for tool in tools] if isinstance(tools, list) else tools
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}


def _named(tool: Any) -> Any:
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {"type": "function", "function": {"name": tool.get("name")}}
    return tool
