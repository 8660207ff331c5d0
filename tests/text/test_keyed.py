"""Arguments by name: what each text becomes by the types that its schema allows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagewire.text.tools.formats import QWEN3_CODER
from pagewire.text.tools.reader import ToolReader

NUMBER_OR_TEXT = {"type": ["number", "string"]}


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
