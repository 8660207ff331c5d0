"""Prompts, messages and tools to `protos/inference.proto`: the SDK's own values, or objects as in OpenAI's API.

Knows forms alone: what is within bounds is for the server to say. Invariant: what has no place in the contract is
refused, never dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pagewire.client.options import Options, Prompt
from pagewire.client.results import Message, Tool, ToolCall
from pagewire.core.errors import InvalidRequest
from pagewire.protos import inference_pb2

T = TypeVar("T")
_MESSAGE = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"}
_FUNCTION = {"name", "description", "parameters", "strict"}
# What goes with messages alone, and the values that ask for nothing.
_CHAT_OPTIONS: Mapping[str, tuple[object, ...]] = {
    "tools": ((), []),
    "tool_choice": (),
    "parallel_tool_calls": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": ((), []),
    "chat_template_kwargs": ({},),
}


def fill_prompt(request: inference_pb2.GenerateRequest, prompt: Prompt, options: Options) -> None:
    """Write a prompt, and what a chat has besides, to a request; raises InvalidRequest on what is of no known form."""
    if isinstance(prompt, str):
        request.text = _formed("prompt", _text, prompt)
    else:
        _fill_parts(request, _formed("prompt", _parts, prompt))
    asked = [name for name, nothing in _CHAT_OPTIONS.items() if options.get(name) not in (None, *nothing)]
    if not asked:
        return
    if request.WhichOneof("prompt") != "chat":
        raise InvalidRequest(f"{asked[0]} goes with messages", field=asked[0])
    request.chat.tools.extend(
        _formed("tools", _tool, tool) for tool in _formed("tools", list, options.get("tools") or ())
    )
    choice = options.get("tool_choice")
    if choice is not None:
        request.chat.tool_choice.CopyFrom(_formed("tool_choice", _choice, choice))
    for name in ("parallel_tool_calls", "add_generation_prompt", "continue_final_message"):
        if options.get(name) is not None:
            setattr(request.chat, name, _formed(name, _flag, options.get(name)))
    documents = _formed("documents", list, options.get("documents") or ())
    request.chat.documents.extend(_formed("documents", _object, each) for each in documents)
    variables = options.get("chat_template_kwargs")
    if variables is not None:
        request.chat.chat_template_kwargs = _formed("chat_template_kwargs", _object, variables)


def _fill_parts(request: inference_pb2.GenerateRequest, parts: list[Any]) -> None:
    if not parts:
        raise InvalidRequest("the prompt is empty", field="prompt")
    tokens = [part for part in parts if isinstance(part, int) and not isinstance(part, bool)]
    if len(tokens) < len(parts):
        request.chat.messages.extend(_formed("prompt", _message, part) for part in parts)
    elif all(0 <= token < 2**32 for token in tokens):
        request.tokens.token_ids.extend(tokens)
    else:
        raise InvalidRequest("a token id is between 0 and 2**32 - 1", field="prompt")


def _formed(field: str, form: Callable[[Any], T], value: object) -> T:
    """Return what `form` makes of a value; raises InvalidRequest where that is of another form."""
    try:
        return form(value)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        wanted = {
            "prompt": "a prompt is a text, a list of token ids, or a list of messages with role and content",
            "tools": "a tool is a Tool, or an object with type 'function' and a function",
            "tool_choice": "tool_choice is none, auto, required, a Tool, or an object that names a function",
            "documents": "a document is an object that JSON can hold",
            "chat_template_kwargs": "chat_template_kwargs is an object that JSON can hold",
        }.get(field, f"{field} is True or False")
        raise InvalidRequest(f"{wanted}, not {value!r:.500}", field=field) from error


def _text(prompt: str) -> str:
    prompt.encode()  # half of a surrogate pair has no place in a message
    return prompt


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("a text would be true, whatever it says")
    return value


def _parts(prompt: Iterable[Any]) -> list[Any]:
    if isinstance(prompt, (bytes, bytearray)):
        raise TypeError("bytes are no token ids")  # though they are integers
    return list(prompt)


def _message(part: Message | Mapping[str, Any]) -> inference_pb2.ChatMessage:
    if isinstance(part, Message):
        calls = [_call(call) for call in part.tool_calls]
        return inference_pb2.ChatMessage(
            role=part.role, content=part.content, name=part.name, tool_calls=calls, tool_call_id=part.tool_call_id,
            reasoning=part.reasoning,
        )  # fmt: skip
    given = _only(part, _MESSAGE)
    calls = [_call(call) for call in given.get("tool_calls", ())]
    if "content" not in given and not calls:
        raise KeyError("content")
    return inference_pb2.ChatMessage(
        role=given["role"],
        content=given.get("content", ""),
        name=given.get("name", ""),
        tool_calls=calls,
        tool_call_id=given.get("tool_call_id", ""),
        reasoning=given.get("reasoning", given.get("reasoning_content", "")),
    )


def _call(call: ToolCall | Mapping[str, Any]) -> inference_pb2.ToolCall:
    if isinstance(call, ToolCall):
        return inference_pb2.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
    function = call["function"]
    return inference_pb2.ToolCall(id=call.get("id"), name=function["name"], arguments=function.get("arguments"))


def _tool(tool: Tool | Mapping[str, Any]) -> inference_pb2.Tool:
    if not isinstance(tool, Tool):
        if tool["type"] != "function":
            raise ValueError(tool["type"])
        tool = Tool(**_only(tool["function"], _FUNCTION))
    schema = tool.parameters
    return inference_pb2.Tool(
        name=tool.name,
        description=tool.description,
        parameters=None if schema is None else json.dumps(dict(schema), ensure_ascii=False),
        strict=tool.strict,
    )


def _choice(choice: str | Tool | Mapping[str, Any]) -> inference_pb2.ToolChoice:
    if isinstance(choice, str):
        return inference_pb2.ToolChoice(mode=choice)
    name = choice.name if isinstance(choice, Tool) else choice["function"]["name"]
    return inference_pb2.ToolChoice(function=name)


def _object(value: Mapping[str, Any]) -> str:
    text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    text.encode()  # as of a prompt
    return text


def _only(given: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Return the members that are set; raises ValueError where one is not known."""
    members = {name: value for name, value in given.items() if value is not None}
    if unknown := members.keys() - known:
        raise ValueError(f"unknown: {sorted(unknown)}")
    return members
