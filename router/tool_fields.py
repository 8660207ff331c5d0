"""The fields of a chat that are about tools: which there are, which the model may or must call, and calls in messages.

Pure; knows JSON values. How a model writes calls is in `text/tools`. Invariant: what templates see of a call is the
object of its arguments, whatever text the caller wrote it as.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.router.json_text import object_or_empty
from pagewire.text.tools.grammar import NO_ARGUMENTS
from pagewire.text.tools.parameters import Schema

MAX_TOOLS = 1024  # OpenAI takes 128; agents of many servers bring more
NAME = re.compile(r"[a-zA-Z0-9_.\-]{1,128}")  # OpenAI takes 64, Anthropic as many
NAMES = "a name of 1 to 128 letters, digits and any of _ . -"


@dataclass(frozen=True, slots=True)
class ToolWords:
    """What the fields of one generation of the API are called, and the words that say of a choice."""

    tools: str
    choice: str
    choices: tuple[str, ...]


_NOW = ToolWords("tools", "tool_choice", ("none", "auto", "required"))
_BEFORE = ToolWords("functions", "function_call", ("none", "auto"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools of a request, as templates take them. The model has to call one if `is_forced`, at most one if
    `is_single`, and `callable` ones alone. The caller asked for them in `words`.
    """

    definitions: tuple[Mapping[str, Any], ...]
    callable: tuple[tuple[str, Schema], ...]
    is_forced: bool
    is_single: bool
    words: ToolWords

    @property
    def schemas(self) -> Mapping[str, Schema]:
        """What the tools are called, and of what form their arguments are."""
        functions = (each["function"] for each in self.definitions)
        return {each["name"]: each.get("parameters") or NO_ARGUMENTS for each in functions}

    @property
    def barred(self) -> frozenset[str]:
        """What those are called that may not be called."""
        return frozenset(self.schemas) - {name for name, _ in self.callable}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What a choice says: by its `word`, if there is one, whether a tool may or has to be called, by `names` which ones
    alone, None for all, and whether one at most.
    """

    word: str | None
    names: tuple[str, ...] | None = None
    is_single: bool = False


def tools(body: Mapping[str, Any]) -> Tools | None:
    """Return what a body says of tools, None where the model is to call none; raises InvalidRequest.

    `functions` and `function_call` are OpenAI's older words for tools of which one is called at most.
    """
    is_parallel = body.get("parallel_tool_calls")
    if is_parallel is not None and not isinstance(is_parallel, bool):
        raise InvalidRequest("parallel_tool_calls is true or false", field="parallel_tool_calls")
    words = _NOW
    if is_of_functions(body):
        words, is_parallel = _BEFORE, False
        if body.get(_NOW.tools) or body.get(_NOW.choice) is not None:
            raise InvalidRequest("functions and tools do not go together", field="functions")
    functions = _functions(words, body.get(words.tools))
    choice = _choice(words, body.get(words.choice))
    if not functions:
        if choice.word == "required" or choice.names is not None:
            raise InvalidRequest(f"{words.choice} asks for a call, and there are no {words.tools}", field=words.choice)
        return None
    if choice.word == "none":
        return None
    known = {each["name"] for each in functions}
    unknown = next((name for name in choice.names or () if name not in known), None)
    if unknown is not None:
        raise InvalidRequest(
            f"{words.choice} names {unknown[:64]!r}, which is not in {words.tools}", field=words.choice
        )
    allowed = known if choice.names is None else frozenset(choice.names)
    given = body[words.tools]
    return Tools(
        definitions=tuple(given if words is _NOW else ({"type": "function", "function": each} for each in given)),
        callable=tuple(
            (each["name"], each.get("parameters") or NO_ARGUMENTS) for each in functions if each["name"] in allowed
        ),
        is_forced=choice.word == "required",
        is_single=choice.is_single or is_parallel is False,
        words=words,
    )


def is_of_functions(body: Mapping[str, Any]) -> bool:
    """True where a body uses OpenAI's older words."""
    return bool(body.get(_BEFORE.tools)) or body.get(_BEFORE.choice) is not None


def as_tool_message(message: Mapping[str, Any], call_id: str) -> Mapping[str, Any]:
    """Return a message in today's words; `call_id` is that of the call that it makes, or answers, by older ones."""
    if message.get("role") == "function":
        return {**message, "role": "tool", "tool_call_id": call_id}
    if not message.get(_BEFORE.choice):
        return message
    rest = {name: value for name, value in message.items() if name != _BEFORE.choice}
    return {**rest, "tool_calls": [{"id": call_id, "function": message[_BEFORE.choice]}]}


def message_calls(where: str, value: object) -> list[dict[str, Any]]:
    """Return the `tool_calls` of an assistant's message, arguments as objects; raises InvalidRequest."""
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} is a list", field="messages")
    return [_message_call(f"{where}.{i}", call) for i, call in enumerate(value)]


def numbered(
    messages: Sequence[Mapping[str, Any]], call_id: Callable[[str, int], str]
) -> tuple[Mapping[str, Any], ...]:
    """Return messages whose calls have the ids that `call_id` makes of their names and places, as what answers them."""
    ids: dict[object, str] = {}
    told: list[Mapping[str, Any]] = []
    count = 0
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            new = call_id(call["function"]["name"], count)
            count += 1
            if "id" in call:
                ids[call["id"]] = new
            calls.append({**call, "id": new})
        changed: dict[str, Any] = {"tool_calls": calls} if calls else {}
        if (answered := message.get("tool_call_id")) in ids:
            changed["tool_call_id"] = ids[answered]
        told.append({**message, **changed} if changed else message)
    return tuple(told)


def _message_call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where} is an object with a function that has a name", field="messages")
    arguments = _arguments(f"{where}.function.arguments", function.get("arguments"))
    # In the order in which answers have them: some templates write them as they stand.
    return {
        **({"id": call["id"]} if isinstance(call.get("id"), str) else {}),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _arguments(where: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        # The model's own words, sent back as they came: refused, a chat with one wrong call could never go on.
        return object_or_empty(value)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is the text of a JSON object", field="messages")
    return value


def _functions(words: ToolWords, value: object) -> list[Mapping[str, Any]]:
    """Return the functions that are defined."""
    field = words.tools
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} is a list", field=field)
    if len(value) > MAX_TOOLS:
        raise InvalidRequest(f"{field} takes at most {MAX_TOOLS}, got {len(value)}", field=field)
    if words is _BEFORE:
        return [_function(field, f"{field}.{i}", each) for i, each in enumerate(value)]
    return [_function(field, f"{field}.{i}.function", _of_tool(f"{field}.{i}", each)) for i, each in enumerate(value)]


def _of_tool(where: str, tool: object) -> object:
    if not isinstance(tool, dict):
        raise InvalidRequest(f"{where} is not an object", field="tools")
    if tool.get("type") != "function":
        raise UnsupportedField(f"{where}.type is not 'function', the only one that is supported", field="tools")
    return tool.get("function")


def _function(field: str, where: str, function: object) -> Mapping[str, Any]:
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidRequest(f"{where} has {NAMES}", field=field)
    if not isinstance(function.get("description", ""), (str, type(None))):
        raise InvalidRequest(f"{where}.description is a text", field=field)
    schema = function.get("parameters")
    if schema is not None and not isinstance(schema, dict):
        raise InvalidRequest(f"{where}.parameters is a JSON schema, an object", field=field)
    # Forced calls are written from these.
    if schema and not isinstance(schema.get("properties", {}), (dict, type(None))):
        raise InvalidRequest(f"{where}.parameters.properties is an object", field=field)
    if schema and not isinstance(schema.get("required", []), (list, type(None))):
        raise InvalidRequest(f"{where}.parameters.required is a list", field=field)
    return function


def _choice(words: ToolWords, given: Any) -> _Choice:
    """Return what a choice says: a word, the one tool that has to be called, or those that may be or have to."""
    if given is None or given in words.choices:
        return _Choice(word=given)
    if words is _NOW and isinstance(given, dict) and given.get("type") == "allowed_tools":
        return _allowed(f"{words.choice}.allowed_tools", given.get("allowed_tools"))
    name = _named(given if words is _NOW else {"type": "function", "function": given})
    if name is None:
        raise InvalidRequest(
            f"{words.choice} is {', '.join(words.choices)}, or an object that names a function", field=words.choice
        )
    return _Choice(word="required", names=(name,), is_single=True)


def _allowed(where: str, given: Any) -> _Choice:
    mode, tools = (given.get("mode"), given.get("tools")) if isinstance(given, dict) else (None, None)
    if mode not in ("auto", "required"):
        raise InvalidRequest(f"{where}.mode is auto or required", field=_NOW.choice)
    if not isinstance(tools, list) or not tools:
        raise InvalidRequest(f"{where}.tools is a list of tools, one at least", field=_NOW.choice)
    names: list[str] = []
    for place, tool in enumerate(tools):
        name = _named(tool)
        if name is None:
            raise InvalidRequest(f"{where}.tools.{place} is no object that names a function", field=_NOW.choice)
        names.append(name)
    return _Choice(word=mode, names=tuple(names))


def _named(tool: Any) -> str | None:
    """Return the name of a function that is told by it alone, None where there is none."""
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
