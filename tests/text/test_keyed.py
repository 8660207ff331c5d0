"""Arguments by name: which types a schema allows, and what each text then becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagewire.text.tools.formats import QWEN3_CODER
from pagewire.text.tools.keyed import ANY, MAX_DEPTH, TEXT, types
from pagewire.text.tools.reader import ToolReader

NUMBER_OR_TEXT = {"type": ["number", "string"]}


def nested(depth: int) -> dict[str, Any]:
    """Return choices within choices, so many of them around a text."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema]}
    return schema


@pytest.mark.parametrize(
    ("schema", "allowed"),
    [
        *((None, TEXT), (True, TEXT), ([], TEXT), ({}, TEXT), ({"description": "a"}, TEXT)),
        *(({"type": "integer"}, {"integer"}), ({"type": ["null", "array", 3]}, {"null", "array"})),
        ({"type": "boolean", "const": "a", "enum": [1]}, {"boolean"}),
        *(({"const": 1}, {"integer"}), ({"const": None}, {"null"}), ({"const": True}, {"boolean"})),
        ({"const": "a", "enum": [1]}, TEXT),
        ({"enum": ["a", 1, 1.5, None, [], {}, True]}, ANY),
        ({"enum": [1, 2], "anyOf": [{"type": "null"}]}, {"integer"}),
        *(({"anyOf": [{"type": "null"}, {"enum": [1]}]}, {"null", "integer"}), ({"oneOf": [{}, True]}, TEXT)),
        ({"anyOf": [{"type": "null"}], "oneOf": [{"type": "array"}]}, {"null"}),
        ({"anyOf": {"type": "null"}, "oneOf": [{"type": "array"}]}, {"array"}),
        *(({name: {}}, ANY) for name in ("$ref", "allOf", "properties", "items", "additionalProperties")),
        *(({"anyOf": {}}, TEXT), ({"anyOf": []}, frozenset[str]())),
        *((nested(1), TEXT), (nested(MAX_DEPTH), TEXT), (nested(MAX_DEPTH + 1), ANY), (nested(5000), ANY)),
    ],
)
def test_a_schema_allows_types(schema: object, allowed: set[str]) -> None:
    assert types(schema) == allowed


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        *(({"type": "number"}, "5", 5), ({"type": "number"}, "5.5", 5.5), ({"type": "number"}, " 5\n", 5)),
        *(({"type": "integer"}, "5", 5), ({"type": "integer"}, "5.5", "5.5"), ({"type": "integer"}, "true", "true")),
        *(({"type": "number"}, "true", "true"), ({"type": "boolean"}, "5", "5"), ({"type": "null"}, "5", "5")),
        *(({"type": "array"}, "[1]", [1]), ({"type": "array"}, "{}", "{}"), ({"type": "object"}, "{}", {})),
        *(({"type": "boolean"}, "True", True), ({"type": "boolean"}, "false", False), ({"type": "null"}, "None", None)),
        *((NUMBER_OR_TEXT, '"x"', '"x"'), (NUMBER_OR_TEXT, "x", "x"), (NUMBER_OR_TEXT, " 7 ", 7)),
        *((NUMBER_OR_TEXT, " x ", " x "), (NUMBER_OR_TEXT, "NaN", "NaN"), (NUMBER_OR_TEXT, "", "")),
        *(({"type": "string"}, "5", "5"), ({"type": "string"}, "None", "None"), ({}, " [1]", " [1]")),
    ],
)
def test_a_text_is_what_its_schema_allows_or_itself(schema: dict[str, Any], text: str, value: Any) -> None:
    reader = ToolReader(QWEN3_CODER, {"add": {"properties": {"a": schema}}})
    said = reader.push(f"<tool_call><function=add><parameter=a>\n{text}\n</parameter></function></tool_call>")
    read = json.loads("".join(part.arguments for part in said.calls))
    assert (read, type(read["a"])) == ({"a": value}, type(value))
