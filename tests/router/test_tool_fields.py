"""What a body says of tools, by both generations of the API's words, without a router around it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.router.tool_fields import is_of_functions, message_calls, numbered, tools
from pagewire.text.tools.grammar import NO_ARGUMENTS

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
F, G = {"name": "f"}, {"name": "g", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": each} for each in (F, G)]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("choice", "called", "is_forced", "is_single"),
    [
        (None, ["f", "g"], False, False),
        ("auto", ["f", "g"], False, False),
        ("required", ["f", "g"], True, False),
        (named("g"), ["g"], True, True),
    ],
)
def test_a_choice_says_which_may_be_called_and_whether_one_has_to(
    choice: object, called: list[str], is_forced: bool, is_single: bool
) -> None:
    told = tools({"tools": TOOLS, "tool_choice": choice})
    assert told is not None
    assert [name for name, _ in told.callable] == called
    assert (told.is_forced, told.is_single) == (is_forced, is_single)
    assert dict(told.callable).items() <= {"f": NO_ARGUMENTS, "g": SCHEMA}.items()
    assert told.schemas == {"f": NO_ARGUMENTS, "g": SCHEMA}
    older = tools({"functions": [F, G], "function_call": choice["function"] if isinstance(choice, dict) else None})
    assert older is not None
    assert older.definitions == told.definitions
    assert (older.is_forced, older.is_single) == (isinstance(choice, dict), True)


def only(mode: object, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


@pytest.mark.parametrize(
    ("names", "called", "barred"),
    [(["g"], ["g"], {"f"}), (["g", "f", "g"], ["f", "g"], set())],
)
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_some_alone_may_be_called_or_have_to_and_all_are_shown(
    mode: str, names: list[str], called: list[str], barred: set[str]
) -> None:
    told = tools({"tools": TOOLS, "tool_choice": only(mode, *names)})
    assert told is not None
    assert list(told.definitions) == TOOLS
    assert [name for name, _ in told.callable] == called
    assert told.barred == barred
    assert (told.is_forced, told.is_single) == (mode == "required", False)
    single = tools({"tools": TOOLS, "tool_choice": only(mode, *names), "parallel_tool_calls": False})
    assert single is not None
    assert single.is_single
    every = tools({"tools": TOOLS})
    assert every is not None
    assert every.barred == set()


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (only("auto", "f", "h"), "tool_choice names 'h', which is not in tools"),
        (only("none", "f"), "tool_choice.allowed_tools.mode is auto or required"),
        (only([], "f"), "tool_choice.allowed_tools.mode is auto or required"),
        (only("auto"), "tool_choice.allowed_tools.tools is a list of tools, one at least"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools.mode is"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": {"f": 1}}},
            "tool_choice.allowed_tools.tools is",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("f"), {"type": "mcp"}]}},
            "tool_choice.allowed_tools.tools.1 is no object that names a function",
        ),
    ],
)
def test_what_allows_no_tools_is_refused_by_its_place(choice: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tools({"tools": TOOLS, "tool_choice": choice})
    assert (str(refused.value)[: len(said)], refused.value.field) == (said, "tool_choice")
    for none in ({"tool_choice": only("auto", "f")}, {"functions": [F], "function_call": only("auto", "f")}):
        with pytest.raises(InvalidRequest):
            tools(none)


def test_none_are_called_where_there_are_none_or_none_is_chosen() -> None:
    assert tools({}) is None
    assert tools({"tools": [], "tool_choice": "auto"}) is None
    assert tools({"tools": TOOLS, "tool_choice": "none"}) is None
    assert tools({"functions": [F], "function_call": "none"}) is None
    single = tools({"tools": TOOLS, "parallel_tool_calls": False})
    assert single is not None
    assert single.is_single


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 5}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "web", "function": F}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": 5}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": "f"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": named("h")}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [F], "function_call": "required"}, "function_call"),
        ({"functions": [F], "tools": TOOLS}, "functions"),
        ({"functions": [F], "tool_choice": "auto"}, "functions"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)
def test_what_names_no_tool_is_refused(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tools(body)
    assert refused.value.field == field


def test_a_choice_that_names_nothing_is_told_what_it_may_be() -> None:
    for function in ({"name": 5}, {}, "f", None):
        with pytest.raises(InvalidRequest, match="none, auto, required, or an object that names a function"):
            tools({"tools": TOOLS, "tool_choice": {"type": "function", "function": function}})
        with pytest.raises(InvalidRequest, match="function_call is none, auto, or an object that names a function"):
            tools({"functions": [F], "function_call": function or "f"})


def test_either_of_the_older_words_is_enough_to_tell_them() -> None:
    assert is_of_functions({"functions": [F]})
    assert is_of_functions({"function_call": "none"})
    assert not is_of_functions({"functions": [], "tools": TOOLS, "tool_choice": "auto"})


NOT_A_NAME = "has a name of 1 to 128 letters, digits and any of _ . -"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (None, NOT_A_NAME),
        ("f", NOT_A_NAME),
        ({}, NOT_A_NAME),
        ({"name": 5}, NOT_A_NAME),
        ({"name": ""}, NOT_A_NAME),
        ({"name": "f" * 129}, NOT_A_NAME),
        ({"name": "f g"}, NOT_A_NAME),
        ({"name": "f", "description": 5}, ".description is a text"),
        ({"name": "f", "parameters": []}, ".parameters is a JSON schema, an object"),
        ({"name": "f", "parameters": {"properties": []}}, ".parameters.properties is an object"),
        ({"name": "f", "parameters": {"required": {}}}, ".parameters.required is a list"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_by_its_place(function: object, message: str) -> None:
    for field, place, wrong in (
        ("tools", "tools.1.function", {"type": "function", "function": function}),
        ("functions", "functions.1", function),
    ):
        right = TOOLS[0] if field == "tools" else F
        with pytest.raises(InvalidRequest) as refused:
            tools({field: [right, wrong]})
        assert str(refused.value) == f"{place}{message if message[0] == '.' else f' {message}'}"
        assert refused.value.field == field


@pytest.mark.parametrize(
    "function",
    [
        {"name": "f" * 64},
        {"name": "Get_it.now-2"},
        {"name": "f", "description": None, "parameters": None},
        {"name": "f", "description": "d", "parameters": {}},
        {"name": "f", "parameters": {"properties": None, "required": None}},
        {"name": "f", "parameters": {"properties": {}, "required": ["a"]}},
    ],
)
def test_a_function_is_taken_as_it_is(function: dict[str, Any]) -> None:
    told = tools({"tools": [{"type": "function", "function": function}]})
    assert told is not None
    assert told.callable == ((function["name"], function.get("parameters") or NO_ARGUMENTS),)
    assert told.definitions == ({"type": "function", "function": function},)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({}, InvalidRequest, "tools is a list"),
        ([*TOOLS, "f"], InvalidRequest, "tools.2 is not an object"),
        ([F], UnsupportedField, "tools.0.type is not 'function', the only one that is supported"),
        ([{"type": "web", "function": F}], UnsupportedField, "tools.0.type is not 'function'"),
        (TOOLS[:1] * 1025, InvalidRequest, "tools takes at most 1024, got 1025"),
    ],
)
def test_what_is_no_list_of_tools_is_refused(value: object, error: type[InvalidRequest], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tools({"tools": value})
    assert (type(refused.value), refused.value.field) == (error, "tools")
    assert message in str(refused.value)
    most = tools({"tools": TOOLS[:1] * 1024})
    assert most is not None
    assert len(most.definitions) == 1024


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        (None, {}), ("", {}), (" \n", {}), ('{"a": 1}', {"a": 1}), ({"a": [1]}, {"a": [1]}), ({}, {}),
        ('{"a": "cut o', {}), ("{a: 1}", {}), ("[]", {}), ("null", {}), ('{"a": "\\ud800"}', {}), ('{"a":' * 9999, {}),
    ],
)  # fmt: skip
def test_arguments_of_a_call_are_an_object_however_they_are_written(written: object, arguments: object) -> None:
    function = {"name": "f", "arguments": written}
    found = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    assert message_calls("it", [{"id": "c", "function": function}, {"id": 5, "function": function}]) == [
        {"id": "c", **found},
        found,
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "it is a list"),
        ([5], "it.0 is an object with a function that has a name"),
        ([{"function": F}, {"function": "f"}], "it.1 is an object with a function that has a name"),
        ([{"function": {"name": 5}}], "it.0 is an object with a function that has a name"),
        ([{"function": {**F, "arguments": 5}}], "it.0.function.arguments is the text of a JSON object"),
    ],
)
def test_calls_that_are_none_are_refused_by_their_place(value: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        message_calls("it", value)
    assert str(refused.value) == message
    assert refused.value.field == "messages"


def test_calls_of_a_chat_are_numbered_and_so_is_what_answers_them() -> None:
    def call(name: str, **fields: str) -> dict[str, Any]:
        return {**fields, "type": "function", "function": {"name": name, "arguments": {}}}

    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call("f", id="x"), call("g"), call("f", id="y")]},
        {"role": "tool", "content": "1", "tool_call_id": "y"},
        {"role": "tool", "content": "2", "tool_call_id": "unheard of"},
        {"role": "assistant", "content": "", "tool_calls": [call("g", id="x")]},
        {"role": "tool", "content": "3", "tool_call_id": "x"},
    ]
    before = json.dumps(chat)
    told = numbered(chat, lambda name, place: f"{name}:{place}")
    assert [[each["id"] for each in message.get("tool_calls", ())] for message in told] == [
        [], ["f:0", "g:1", "f:2"], [], [], ["g:3"], [],
    ]  # fmt: skip
    assert [message.get("tool_call_id") for message in told] == [None, None, "f:2", "unheard of", None, "g:3"]
    assert told[0] is chat[0]
    assert json.dumps(chat) == before
