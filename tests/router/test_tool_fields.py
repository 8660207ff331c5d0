"""What a body says of tools, by both generations of the API's words, without a router around it."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.core.errors import InvalidRequest
from pagewire.router.tool_fields import is_of_functions, tools
from pagewire.text.tools.grammar import ANY_OBJECT

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
    assert told.schemas == {"f": ANY_OBJECT, "g": SCHEMA}
    older = tools({"functions": [F, G], "function_call": choice["function"] if isinstance(choice, dict) else None})
    assert older is not None
    assert older.definitions == told.definitions
    assert (older.is_forced, older.is_single) == (isinstance(choice, dict), True)


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


def test_either_of_the_older_words_is_enough_to_tell_them() -> None:
    assert is_of_functions({"functions": [F]})
    assert is_of_functions({"function_call": "none"})
    assert not is_of_functions({"functions": [], "tools": TOOLS, "tool_choice": "auto"})
