"""What a body says its output has to be: every field that says it, and what says nothing or two things."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.core.sampling import MAX_GRAMMAR_CHARS, GrammarKind
from pagewire.router.guided import ANY_OBJECT, MAX_CHOICES, grammar

SCHEMA, WRITTEN = {"type": "object", "title": "ä"}, '{"type":"object","title":"ä"}'
JSON, REGEX, LARK = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK


def nested(depth: int) -> list[Any]:
    """Return a list in a list, and so on."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("field", "value", "kind", "text"),
    [
        ("response_format", {"type": "json_object"}, JSON, ANY_OBJECT),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, JSON, WRITTEN),
        ("structured_outputs", {"json": SCHEMA, "regex": None, "json_object": False}, JSON, WRITTEN),
        ("structured_outputs", {"json_object": True}, JSON, ANY_OBJECT),
        ("structured_outputs", {"regex": "a+"}, REGEX, "a+"),
        ("structured_outputs", {"grammar": "start: A"}, LARK, "start: A"),
        ("structured_outputs", {"choice": ["ä", 'b"']}, LARK, 'start: "ä" | "b\\""'),
        ("guided_json", "{}", JSON, "{}"),
        ("guided_json", True, JSON, "true"),
        ("guided_regex", "a+", REGEX, "a+"),
        ("guided_choice", ["a"], LARK, 'start: "a"'),
        ("guided_grammar", "start: A", LARK, "start: A"),
        ("guided_grammar", 'root ::= "ä"', LARK, 'start: ROOT\nROOT: "ä"'),
        (
            "structured_outputs",
            {"grammar": 'root ::= a "b"\na ::= [0-9]'},
            LARK,
            'start: ROOT\nROOT: A  "b"\nA: /[0-9]/',
        ),
    ],
)
def test_every_field_asks_for_its_grammar_and_is_named_by_it(
    field: str, value: object, kind: GrammarKind, text: str
) -> None:
    # What says that anything will do stands beside it.
    told = grammar({"guided_regex": None, "response_format": {"type": "text"}, field: value})
    assert told is not None
    assert (told.kind, told.text, told.field) == (kind, text, field)


def test_without_such_a_field_anything_will_do() -> None:
    assert grammar({}) is None
    assert grammar({"response_format": {"type": "text"}, "guided_json": None}) is None


@pytest.mark.parametrize(
    ("body", "error", "field", "message"),
    [
        ({"guided_regex": "a", "guided_json": {}}, InvalidRequest, "guided_regex", "guided_json and guided_regex both"),
        ({"response_format": {"type": 5}}, InvalidRequest, "response_format", "an object with a type"),
        ({"response_format": {"type": "xml"}}, UnsupportedField, "response_format", "'xml'"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, InvalidRequest, "response_format", "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": 5}}, InvalidRequest, "response_format", "missing"),
        ({"structured_outputs": 5}, InvalidRequest, "structured_outputs", "structured_outputs is an object"),
        ({"structured_outputs": {"xml": 1}}, UnsupportedField, "structured_outputs", "xml is not supported"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, InvalidRequest, "structured_outputs", "got 2"),
        ({"guided_choice": []}, InvalidRequest, "guided_choice", "texts that are not empty"),
        ({"guided_choice": ["a", ""]}, InvalidRequest, "guided_choice", "texts that are not empty"),
        ({"guided_choice": ["a", 5]}, InvalidRequest, "guided_choice", "texts that are not empty"),
        ({"guided_choice": "a"}, InvalidRequest, "guided_choice", "a list of texts"),
        ({"guided_choice": ["a"] * (MAX_CHOICES + 1)}, InvalidRequest, "guided_choice", "at most 1024"),
        ({"guided_json": 5}, InvalidRequest, "guided_json", "json is a text or an object"),
        ({"guided_json": "{"}, InvalidRequest, "guided_json", "guided_json is no JSON: .*char 1"),
        ({"guided_json": "[" * 100_000}, InvalidRequest, "guided_json", "guided_json is no JSON"),
        ({"guided_json": {"a": nested(100_000)}}, InvalidRequest, "guided_json", "guided_json is nested too deeply"),
        ({"guided_grammar": "root ::= a"}, InvalidRequest, "guided_grammar", "no grammar in GBNF: rule root leads to"),
        ({"structured_outputs": {"grammar": "root ::= ["}}, InvalidRequest, "structured_outputs", "line 1, column 10"),
        ({"guided_grammar": "root ::= a" + " " * MAX_GRAMMAR_CHARS}, InvalidRequest, "guided_grammar", "1 to 65536"),
        ({"guided_regex": {}}, InvalidRequest, "guided_regex", "regex is a text"),
    ],
)
def test_what_is_none_is_refused(body: dict[str, Any], error: type[InvalidRequest], field: str, message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        grammar(body)
    assert refused.value.field == field
    assert grammar({"guided_choice": ["a"] * MAX_CHOICES}) is not None
