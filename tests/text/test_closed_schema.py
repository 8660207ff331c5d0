"""Schemas that are closed: what may be written by them once llguidance compiled them, and which stay as they are."""

from __future__ import annotations

import json
from typing import Any

import byte_tokenizer
import pytest
from llguidance import LLMatcher, LLTokenizer

from pagewire.text.closed_schema import closed

TOKENIZER = byte_tokenizer.build()
THEIRS = LLTokenizer(TOKENIZER.to_str(), eos_token=byte_tokenizer.EOS_ID)
A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B = {"type": "object", "properties": {"b": {"type": "integer"}}}
LIST = {
    "properties": {"child": {"$ref": "#/$defs/node"}},
    "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}}},
}
# A schema, what fits it open and closed, and what fits it open alone.
CLOSED = [
    (A, ['{"a":1}'], ['{"a":1,"x":2}']),
    (B, ["{}", '{"b":1}'], ['{"x":2}']),
    ({"type": "object", "properties": {}}, ["{}"], ['{"x":2}']),
    ({"properties": {"o": A}}, ["{}", '{"o":{"a":1}}', "3"], ['{"o":{"a":1,"x":2}}', '{"x":2}']),
    ({"type": "array", "items": A}, ["[]", '[{"a":1},{"a":2}]'], ['[{"a":1,"x":2}]']),
    ({"type": "array", "prefixItems": [A, B], "items": False}, ['[{"a":1},{"b":1}]'], ['[{"a":1},{"x":1}]']),
    ({"anyOf": [A, B, {"type": "null"}]}, ['{"a":1}', '{"b":1}', "null"], ['{"x":1}', '{"a":1,"x":2}']),
    ({"allOf": [A]}, ['{"a":1}'], ['{"a":1,"x":2}']),
    (LIST, ['{"child":{"next":{"next":{"n":1}}}}'], ['{"child":{"next":{"x":1}}}', '{"x":1}']),
    ({"type": "object", "additionalProperties": A}, ['{"k":{"a":1}}'], ['{"k":{"a":1,"x":2}}']),
    ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}}, ['{"x":1}', "{}"], ['{"y":1}']),
    ({**A, "minProperties": 1}, ['{"a":1}'], ['{"a":1,"x":1}']),
    ({"type": "object", "properties": {"enum": A}}, ['{"enum":{"a":1}}'], ['{"enum":{"a":1,"x":2}}']),
]  # fmt: skip
OPEN = [
    True,
    {},
    {"type": "object"},
    {**A, "additionalProperties": True},
    {**A, "additionalProperties": {"type": "integer"}},
    {**A, "unevaluatedProperties": True},
    {**A, "required": ["a", "x"]},
    {**A, "minProperties": 2},
    {"allOf": [A, B]},
    {"properties": {"o": {"allOf": [{"$ref": "#/$defs/a"}, B]}}, "$defs": {"a": A}},
    {**A, "$ref": "#/$defs/b", "$defs": {"b": B}},
    {**A, "anyOf": [B, {"required": ["x"]}]},
    {"required": ["a"], "anyOf": [A, B]},
    {"$ref": "#/$defs/a", "anyOf": [A, B], "$defs": {"a": A}},
    {"not": A},
    {**A, "if": B, "then": A},
    {"enum": [{"properties": {"a": 1}}], "default": {"properties": {}}},
    {"type": "object", "properties": None},
    {**A, "required": 3},
    {**A, "required": [["a"]]},
    {**A, "minProperties": "1"},
]
NO_JSON = ["", "{", '{"properties": {}', "[" * 100_000, '{"properties":' * 100_000]


def accepts(schema: str, text: str) -> bool:
    matcher = LLMatcher(THEIRS, LLMatcher.grammar_from_json_schema(schema), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = TOKENIZER.encode(text).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(("schema", "both", "open_alone"), CLOSED)
def test_objects_have_the_members_that_they_name_and_no_others(
    schema: dict[str, Any], both: list[str], open_alone: list[str]
) -> None:
    told = json.dumps(schema)
    made = closed(told)
    assert [accepts(told, text) for text in both + open_alone] == [True] * len(both + open_alone)
    assert [accepts(made, text) for text in both] == [True] * len(both)
    assert [accepts(made, text) for text in open_alone] == [False] * len(open_alone)
    assert closed(made) == made


@pytest.mark.parametrize("schema", OPEN)
def test_what_says_more_of_its_members_or_puts_objects_together_stays_as_it_is(schema: object) -> None:
    assert json.loads(closed(json.dumps(schema))) == schema


@pytest.mark.parametrize("text", NO_JSON, ids=lambda text: text[:20])
def test_what_is_no_json_is_left_for_others_to_refuse(text: str) -> None:
    assert closed(text) == text


@pytest.mark.parametrize("name", ["password", "path", "binary", "base64", "uri-reference", "regex", "", "int64"])
@pytest.mark.parametrize("others", [{}, {"allOf": [A, B]}])
def test_a_format_that_is_not_known_says_nothing(name: str, others: dict[str, Any]) -> None:
    members = {"format": {"type": "string", "format": name}, "d": {"type": "string", "format": "date"}}
    told = {"type": "object", "properties": members, "$defs": {"o": others}}
    said = closed(json.dumps(told))
    assert accepts(said, '{"format":"a b","d":"2025-01-31"}')
    assert not accepts(said, '{"d":"a b"}')
    assert not accepts(said, '{"format":5}')


@pytest.mark.parametrize("names", [True, {}, {"type": "string"}, {"type": "string", "format": "path"}])
@pytest.mark.parametrize("others", [{}, {"allOf": [A, B]}])
def test_names_of_members_of_which_nothing_is_asked_are_not_spoken_of(names: Any, others: dict[str, Any]) -> None:
    record = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}
    told = {"type": "object", "properties": {"propertyNames": record}, "$defs": {"o": others}}
    said = closed(json.dumps(told))
    assert accepts(said, '{"propertyNames":{"any name":1}}')
    assert not accepts(said, '{"propertyNames":{"a":"b"}}')
    assert not accepts(said, '{"propertyNames":1}')
    assert accepts(said, '{"x":1}') == bool(others), "put together of several, it is left open"


def test_a_schema_whose_names_of_members_say_nothing_is_closed_as_one_without_them() -> None:
    names = {"propertyNames": {"type": "string"}}
    for one in (A, {"anyOf": [A, B]}, {"type": "object"}, {"not": A}):
        assert closed(json.dumps({**one, **names})) == closed(json.dumps(one)).replace(", ", ",").replace(": ", ":")


@pytest.mark.parametrize(
    "names", [False, 1, None, [], {"type": "integer"}, {"type": "string", "minLength": 1}, {"enum": ["a"]}]
)
def test_names_of_members_of_which_something_is_asked_stay_for_who_refuses_them(names: Any) -> None:
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}
    assert json.loads(closed(json.dumps(schema))) == schema
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(closed(json.dumps(schema))))


def test_a_format_that_is_no_text_stays_for_who_refuses_it() -> None:
    assert json.loads(closed('{"type": "string", "format": 5}')) == {"type": "string", "format": 5}


@pytest.mark.parametrize(
    ("schema", "option", "text"),
    [
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "coerce_one_of", "1.5"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "lenient", "[1,2]"),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, "lenient", '{"a":1}'),
        ({"not": {"type": "string"}}, "lenient", "1"),
    ],
    ids=["oneOf", "uniqueItems", "propertyNames", "not"],
)
def test_what_is_not_supported_is_taken_by_an_option_alone(schema: dict[str, Any], option: str, text: str) -> None:
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(closed(json.dumps(schema))))
    assert accepts(closed(json.dumps({**schema, "x-guidance": {option: True}})), text)
