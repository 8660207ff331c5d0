"""The arguments of a tool, one by one: of which types each may be, and its schema apart from the others.

Pure; knows JSON schemas. One may be put together of others: by `$ref`, which points to a part of the tool's own, and by
`allOf`. Invariant: whatever a schema refers to, its own parts included, it is read in time that grows with its size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any
from urllib.parse import unquote

Schema = Mapping[str, Any]

ANY = frozenset(("string", "integer", "number", "boolean", "array", "object", "null"))
TEXT = frozenset(("string",))
NULL = frozenset(("null",))
MAX_PARTS = 16  # that one schema is put together of, and are looked at
_OPEN = ("$ref", "allOf", "properties", "items", "additionalProperties")  # these may be of any type
_NOWHERE = object()


class Parameters:
    """What `schema`, that of an object, says of its members: `names` in its order, and which of them are `required`."""

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        whole = self._whole(schema)
        properties, required = whole.get("properties"), whole.get("required")
        self._members: Schema = properties if isinstance(properties, dict) else {}
        self.names = tuple(self._members)
        self.required: Set[str] = frozenset(
            each for each in (required if isinstance(required, list) else ()) if isinstance(each, str)
        )

    def types(self, name: str) -> Set[str]:
        """Return the JSON types that an argument may be of; one of which nothing is said is a text."""
        found: set[str] = set()
        ahead, seen = [self._members.get(name)], set[int]()
        while ahead:
            schema = ahead.pop()
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            whole = self._whole(schema)
            if (said := _said(whole)) is not None:
                found |= said
            elif (values := _values(whole)) is not None:
                found.update(map(type_of, values))
            elif (choices := _choices(whole)) is not None:
                ahead += choices
            else:
                found |= ANY if any(key in whole for key in _OPEN) else TEXT
        return found

    def values(self, name: str) -> list[Any] | None:
        """Return the only values that an argument may have, None where it may have others."""
        found: list[Any] = []
        ahead, seen = [self._members.get(name)], set[int]()
        for schema in ahead:  # which grow
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            whole = self._whole(schema)
            if (values := _values(whole)) is not None:
                found += values
            elif _said(whole) == NULL:
                found.append(None)
            elif (choices := _choices(whole)) is not None and "type" not in whole:
                ahead += choices
            else:
                return None
        return found

    def alone(self, name: str) -> object:
        """Return the schema of an argument with all that it refers to in it."""
        numbers: dict[str, int] = {}

        def renamed(node: dict[str, Any]) -> dict[str, Any]:
            target = node.get("$ref")
            if isinstance(target, str) and self._at(target) is not _NOWHERE:
                node["$ref"] = f"#/$defs/{numbers.setdefault(target, len(numbers))}"
            return node

        def copied(schema: object) -> Any:
            return json.loads(json.dumps(schema), object_hook=renamed)

        schema = copied(self._members[name])
        definitions: dict[str, Any] = {}
        while len(definitions) < len(numbers):  # which grow by what these refer to
            target = tuple(numbers)[len(definitions)]
            definitions[str(len(definitions))] = copied(self._at(target))
        return {**schema, "$defs": definitions} if definitions else schema

    def _whole(self, schema: object) -> Schema:
        """Return a schema as one object with all that it is put together of; what it says itself comes first."""
        whole: dict[str, Any] = {}
        parts, seen = [schema], set[int]()
        for part in parts:  # which grow
            if not isinstance(part, Mapping) or id(part) in seen:
                continue
            seen.add(id(part))
            for key, value in part.items():
                if key == "$ref" and isinstance(value, str) and self._at(value) is not _NOWHERE:
                    parts.append(self._at(value))
                elif key == "allOf" and isinstance(value, list):
                    parts += value
                elif key == "properties" and isinstance(value, dict):
                    whole[key] = {**value, **whole.get(key, {})}
                elif key == "required" and isinstance(value, list):
                    whole[key] = [*whole.get(key, ()), *value]
                else:
                    whole.setdefault(key, value)
            if len(seen) == MAX_PARTS:
                break
        return whole

    def _at(self, target: str) -> object:
        """Return the part of the schema that a `$ref` names, `_NOWHERE` where there is none."""
        head, *tokens = unquote(target).split("/")
        if head != "#":
            return _NOWHERE
        part: object = self._root
        for token in tokens:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(part, Mapping) and key in part:
                part = part[key]
            elif isinstance(part, list) and key.isdecimal() and int(key) < len(part):
                part = part[int(key)]
            else:
                return _NOWHERE
        return part


def type_of(value: object) -> str:
    """Return the JSON type of a value that was read from JSON."""
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _said(schema: Schema) -> Set[str] | None:
    said = schema.get("type")
    if isinstance(said, str):
        return frozenset((said,))
    return frozenset(each for each in said if isinstance(each, str)) if isinstance(said, list) else None


def _choices(schema: Schema) -> list[Any] | None:
    return next((schema[name] for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list)), None)
