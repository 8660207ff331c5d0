"""A body of /v1/messages, or of its count of tokens, as that of a chat.

Pure; knows JSON values. What both name alike is passed on as it is; what is wrong with the rest is told by the name
that the caller gave it. How a model is to think is a wish: chat templates differ in what they know of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.router import guided, tool_fields
from pagewire.router.anthropic.input import is_begun, messages
from pagewire.router.bodies import Common, MessagesBody

# What a chat calls what has another name here: fields, and places in them.
NAMES = (
    ("stop", "stop_sequences"),
    ("response_format.json_schema", "output_config.format"),
    ("response_format", "output_config.format"),
)
_PASSED = (*Common.model_fields, *guided.FIELDS, "chat_template_kwargs", "documents")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_THINKS = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}

Json = dict[str, Any]


def as_chat(body: MessagesBody, raw: Mapping[str, Any]) -> Json:
    """Return the members of the chat that a message is; raises InvalidRequest or UnsupportedField."""
    found = messages(body.system, body.messages)
    choice, is_parallel = _choice(body.tool_choice)
    return {name: raw[name] for name in _PASSED if name in raw} | {
        "messages": found,
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "tools": _tools(body.tools),
        "tool_choice": choice,
        "parallel_tool_calls": is_parallel,
        "response_format": _format(body.output_config),
        "include_reasoning": _thinks(body.thinking) is True and body.thinking.get("display") != "omitted",
        "continue_final_message": is_begun(found),
    }


def wishes(body: MessagesBody) -> Json:
    """Return what of a body that was read as a chat is for the chat template, if that knows it."""
    wished = {"enable_thinking": _thinks(body.thinking), "reasoning_effort": (body.output_config or {}).get("effort")}
    return {name: each for name, each in wished.items() if each is not None}


def _thinks(thinking: Any) -> bool | None:
    """Return whether the model is to think, None where nobody says so: who does not ask for blocks expects none."""
    if thinking is None:
        return None
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if not isinstance(kind, str) or kind not in _THINKS:
        raise InvalidRequest(f"thinking is an object whose type is one of {', '.join(_THINKS)}", field="thinking")
    return _THINKS[kind]


def _format(config: Any) -> Any:
    """Return what the output has to be, as a `response_format`."""
    effort = config.get("effort") if isinstance(config, dict) else config
    told = config.get("format") if isinstance(config, dict) else config
    if not isinstance(effort, (str, type(None))) or not isinstance(told, (dict, type(None))):
        raise InvalidRequest("output_config has an effort, a text, and a format, an object", field="output_config")
    if told is None:
        return None
    if told.get("type") != "json_schema":
        raise UnsupportedField("output_config.format.type is not 'json_schema'", field="output_config")
    return {"type": "json_schema", "json_schema": {name: each for name, each in told.items() if name != "type"}}


def _tools(tools: Any) -> Any:
    """Return tools as a chat has them."""
    if not isinstance(tools, list):
        return tools
    return [_tool(f"tools.{place}", tool) for place, tool in enumerate(tools)]


def _tool(where: str, tool: Any) -> Json:
    if not isinstance(tool, dict):
        raise InvalidRequest(f"{where} is not an object", field="tools")
    if tool.get("type") not in ("custom", None):
        raise UnsupportedField(f"{where}: tools of type {str(tool['type'])[:50]!r} are not supported", field="tools")
    if not isinstance(tool.get("name"), str) or not tool_fields.NAME.fullmatch(tool["name"]):
        raise InvalidRequest(f"{where} has {tool_fields.NAMES}", field="tools")
    if not isinstance(tool.get("input_schema"), dict):
        raise InvalidRequest(f"{where}.input_schema is a JSON schema, an object", field="tools")
    passed = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    return {"type": "function", "function": {**passed, "parameters": tool["input_schema"]}}


def _choice(choice: Any) -> tuple[Any, bool | None]:
    """Return a `tool_choice` as a chat has it, and whether there may be several calls."""
    if choice is None:
        return None, None
    kind = choice.get("type") if isinstance(choice, dict) else None
    is_lone = choice.get("disable_parallel_tool_use") if isinstance(choice, dict) else None
    if not isinstance(is_lone, (bool, type(None))):
        raise InvalidRequest("tool_choice.disable_parallel_tool_use is true or false", field="tool_choice")
    is_parallel = None if is_lone is None else not is_lone
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}, is_parallel
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise InvalidRequest("tool_choice is an object whose type is auto, any, tool or none", field="tool_choice")
    return _CHOICES[kind], is_parallel
