"""The arguments of a tool: of which types each may be, which values, and its schema with what it refers to."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.text.tools.parameters import ANY, MAX_CHOICES, MAX_PARTS, MAX_POINTER_CHARS, TEXT, Parameters

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}
LONG = "l" * (MAX_POINTER_CHARS - len("#/$defs/"))
NAMED: dict[str, Any] = {
    "$defs": {
        "Point": POINT, "Unit": {"enum": ["C", "F"]}, "a/b~": {"type": "null"},
        LONG: {"type": "null"}, f"l{LONG}": {"type": "null"},
    }
}  # fmt: skip


def nested(depth: int) -> dict[str, Any]:
    """Return choices within choices, so many of them around a text."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema]}
    return schema


def chain(length: int) -> dict[str, Any]:
    """Return schemas each of which refers to the next one; the last is that of a number."""
    links: dict[str, Any] = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(length)}
    return {"$defs": {**links, str(length): {"type": "number"}}}


def one(schema: object, beside: dict[str, Any] = NAMED) -> Parameters:
    """Return the parameters of a tool that has one argument, `a`."""
    return Parameters({"properties": {"a": schema}, **beside})


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
        *((nested(1), TEXT), (nested(MAX_CHOICES - 1), TEXT), (nested(MAX_CHOICES), ANY), (nested(5000), ANY)),
        *(({"anyOf": [{}] * (MAX_CHOICES - 1)}, TEXT), ({"anyOf": [{}] * MAX_CHOICES}, ANY)),
        *(({"$ref": "#/$defs/Point"}, {"object"}), ({"$ref": "#/$defs/Unit", "description": "u"}, TEXT)),
        *(({"$ref": "#/$defs/a~1b~0"}, {"null"}), ({"$ref": "#/%24defs/Point"}, {"object"})),
        *(({"$ref": "#/$defs/None"}, ANY), ({"$ref": "other.json#/$defs/Point"}, ANY), ({"$ref": 1}, ANY)),
        *(({"$ref": "#/$defs/Unit/enum/0"}, ANY), ({"$ref": "#/$defs/Unit/enum/2"}, ANY)),
        *(({"$ref": "#/$defs/" + LONG}, {"null"}), ({"$ref": "#/$defs/l" + LONG}, ANY)),
        *(({"allOf": [{}] * MAX_PARTS}, TEXT), ({"allOf": [{}] * (MAX_PARTS + 1)}, ANY)),
        *(({"$ref": "#/$defs/Unit/enum/0/C"}, ANY), ({"$ref": "#/$defs/Unit/enum/0/0"}, ANY), ({"$ref": "#a"}, ANY)),
        ({"description": "#/$defs/Point"}, TEXT),
        *(({"$ref": "#/$defs/Unit/enum/x"}, ANY), ({"$ref": "#/$defs/Point/type/x"}, ANY)),
        ({"$ref": "#/$defs/Unit", "type": "integer"}, {"integer"}),  # its own word comes first
        ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, {"object", "null"}),
        ({"allOf": [{"description": "a"}, {"$ref": "#/$defs/Point"}]}, {"object"}),
        *(({"allOf": []}, TEXT), ({"$ref": "#/properties/a"}, TEXT)),
        *(({"$ref": "#"}, ANY), ({"anyOf": [{"$ref": "#/properties/a"}, {"type": "null"}]}, {"null"})),
    ],
)
def test_a_schema_allows_types(schema: object, allowed: set[str]) -> None:
    assert one(schema).types("a") == allowed


def test_an_argument_that_nobody_named_is_a_text() -> None:
    assert one({"type": "integer"}).types("b") == TEXT
    assert Parameters({}).types("a") == Parameters({"properties": None}).types("a") == TEXT


@pytest.mark.parametrize(("links", "allowed"), [(MAX_PARTS - 2, {"number"}), (MAX_PARTS - 1, ANY)])
def test_only_so_many_parts_are_looked_at(links: int, allowed: set[str]) -> None:
    # What is not looked at may say anything.
    assert one({"$ref": "#/$defs/0"}, chain(links)).types("a") == allowed


def test_values_that_come_and_go_are_told_apart() -> None:
    schema = {"anyOf": [*({"const": 1} for _ in range(20)), {"const": "a"}, {"const": None}]}
    assert one(schema).types("a") == {"integer", "string", "null"}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        *(({"const": 1, "enum": [2]}, [1]), ({"enum": [1, "a"]}, [1, "a"]), ({"enum": "ab"}, None)),
        *((True, None), ({}, None), ({"type": "string"}, None), ({"enum": []}, []), ({"type": "null"}, [None])),
        *(({"$ref": "#/$defs/Unit"}, ["C", "F"]), ({"allOf": [{"$ref": "#/$defs/Unit"}]}, ["C", "F"])),
        ({"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}, {"const": 3}]}, ["C", "F", None, 3]),
        ({"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "integer"}]}, None),
        *(
            ({"enum": [1], "allOf": [{"enum": [2]}]}, [1]),
            ({"const": {"a": 1}, "allOf": [{"const": {"b": 2}}]}, [{"a": 1}]),
        ),
        ({"type": "string", "anyOf": [{"const": "a"}]}, None),
        ({"anyOf": [{"enum": ["a"]}, {"$ref": "#/properties/a"}]}, ["a"]),
        *(({"anyOf": [{"const": i} for i in range(n)]}, v) for n, v in ((63, [*range(63)]), (64, None))),
    ],
)
def test_a_schema_may_allow_some_values_alone(schema: object, values: list[Any] | None) -> None:
    assert one(schema).values("a") == values


MEMBERS = {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "names", "required"),
    [
        (MEMBERS, ("a", "b"), {"a"}),
        *(({}, (), set()), ({"properties": None, "required": None}, (), set())),
        ({"properties": {}, "required": ["a", 1]}, (), {"a"}),
        ({"$ref": "#/$defs/A", "$defs": {"A": MEMBERS}}, ("a", "b"), {"a"}),
        ({"allOf": [MEMBERS, {"properties": {"c": {}}, "required": ["c"]}]}, ("a", "b", "c"), {"a", "c"}),
        ({"properties": {"c": {}}, "required": ["c"], "allOf": [MEMBERS]}, ("a", "b", "c"), {"a", "c"}),
        ({"$ref": "#", **MEMBERS}, ("a", "b"), {"a"}),
    ],
)
def test_arguments_are_those_of_all_that_the_schema_is_put_together_of(
    schema: dict[str, Any], names: tuple[str, ...], required: set[str]
) -> None:
    parameters = Parameters(schema)
    assert (set(parameters.names), parameters.required) == (set(names), required)
    if "a" in names:
        assert parameters.types("a") == {"integer"}


def test_the_order_is_that_of_the_schema() -> None:
    assert Parameters({"properties": {"b": {}, "a": {}, "c": {}}}).names == ("b", "a", "c")


def test_what_it_says_itself_of_an_argument_comes_first() -> None:
    own = {"properties": {"a": {"type": "null"}}}
    assert Parameters({**own, "allOf": [MEMBERS]}).types("a") == {"null"}
    assert Parameters({"allOf": [MEMBERS], **own}).types("a") == {"null"}


@pytest.mark.parametrize(
    ("schema", "alone"),
    [
        (True, True),
        ({"type": "integer"}, {"type": "integer"}),
        ({"$ref": "#/$defs/Point"}, {"$ref": "#/$defs/0", "$defs": {"0": POINT}}),
        (
            {"anyOf": [{"$ref": "#/$defs/Unit"}, {"$ref": "#/$defs/Point"}, {"$ref": "#/$defs/Unit"}]},
            {
                "anyOf": [{"$ref": "#/$defs/0"}, {"$ref": "#/$defs/1"}, {"$ref": "#/$defs/0"}],
                "$defs": {"0": {"enum": ["C", "F"]}, "1": POINT},
            },
        ),
        (
            {"items": {"$ref": "#/properties/a"}},
            {"items": {"$ref": "#/$defs/0"}, "$defs": {"0": {"items": {"$ref": "#/$defs/0"}}}},
        ),
        ([{"$ref": "#/$defs/Unit"}], [{"$ref": "#/$defs/0"}]),  # which is no schema
        # Whoever compiles these refuses them.
        *(({"$ref": ref}, {"$ref": ref}) for ref in ("#/$defs/None", "a.json#/$defs/Unit", "#/$defs/Unit/enum/0/0")),
        ({"properties": {"$ref": {"$ref": "#/$defs/Unit"}}},
         {"properties": {"$ref": {"$ref": "#/$defs/0"}}, "$defs": {"0": {"enum": ["C", "F"]}}}),
    ],
)  # fmt: skip
def test_a_schema_alone_has_what_it_refers_to(schema: object, alone: object) -> None:
    parameters = one(schema)
    assert parameters.alone("a") == alone
    assert parameters.alone("a") == alone, "nothing of the schema itself was changed"


def test_what_is_referred_to_is_looked_up_to_its_own_references() -> None:
    tree = {"$defs": {"Tree": {"items": {"$ref": "#/$defs/Leaf"}}, "Leaf": {"anyOf": [{"$ref": "#/$defs/Tree"}]}}}
    assert one({"$ref": "#/$defs/Tree"}, tree).alone("a") == {
        "$ref": "#/$defs/0",
        "$defs": {"0": {"items": {"$ref": "#/$defs/1"}}, "1": {"anyOf": [{"$ref": "#/$defs/0"}]}},
    }


@pytest.mark.parametrize(
    "beside",
    [
        {"$defs": {"0": {"anyOf": [{"$ref": "#/$defs/0"}] * 2000}}},
        {"$defs": {"0": {"allOf": [{"$ref": "#/$defs/0"}, {"$ref": "#"}] * 2000}}},
        chain(2000),
        {"$defs": {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 30} for i in range(60)} | {"60": {}}},
    ],
)
def test_schemas_that_refer_to_one_another_are_read_once(beside: dict[str, Any]) -> None:
    parameters = one({"anyOf": [{"$ref": "#/$defs/0"}] * 100}, beside)
    assert parameters.types("a") <= ANY
    assert parameters.values("a") in (None, [])
    assert parameters.alone("a")  # and not once for each way through them, which would not end
