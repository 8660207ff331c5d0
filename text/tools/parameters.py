"""The arguments of a tool, one by one: of which types each may be, and its schema apart from the others.

Pure; knows JSON schemas. One may be put together of others: by `$ref`, which points to a part of the tool's own, and by
`allOf`. Invariant: whatever a schema refers to, its own parts included, an argument costs no more than a bounded look,
or its schema's size where that is written out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any
from urllib.parse import unquote

Schema = Mapping[str, Any]

ANY = frozenset(("string", "integer", "number", "boolean", "array", "object", "null"))
TEXT = frozenset(("string",))
NULL = frozenset(("null",))
MAX_PARTS = 16  # that one schema is put together of, and are looked at
MAX_CHOICES = 64  # of one argument
MAX_POINTER_CHARS = 1024
_OPEN = ("properties", "items", "additionalProperties")  # these may be of any type
_NOWHERE = object()


class Parameters:
    """What `schema`, that of an object, says of its members: `names` in its order, and which of them are `required`."""

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._members: dict[str, Any] = {}
        required: list[Any] = []
        for part in self._parts(schema):
            properties, needed = part.get("properties"), part.get("required")
            for name, member in properties.items() if isinstance(properties, dict) else ():
                self._members.setdefault(name, member)
            required += needed if isinstance(needed, list) else ()
        self.names = tuple(self._members)
        self.required: Set[str] = frozenset(each for each in required if isinstance(each, str))
        # Of each list of values, by its id, with itself: it may be that of many arguments.
        self._types_among: dict[int, tuple[list[Any], Set[str]]] = {}

    def types(self, name: str) -> Set[str]:
        """Return the JSON types that an argument may be of; one of which nothing is said is a text."""
        found: set[str] = set()
        ahead = _Choices(self._members.get(name))
        for schema in ahead:
            parts = self._parts(schema)
            if (said := _said(parts)) is not None:
                found |= said
            elif (values := _values(parts)) is not None:
                found |= self._among(values)
            elif (choices := _choices(parts)) is not None:
                ahead.add(choices)
            else:
                found |= ANY if self._are_open(parts) else TEXT
        return ANY if ahead.are_too_many else found

    def values(self, name: str) -> list[Any] | None:
        """Return the only values that an argument may have, None where it may have others."""
        found: list[Any] = []
        ahead = _Choices(self._members.get(name))
        for schema in ahead:
            parts = self._parts(schema)
            said, choices = _said(parts), _choices(parts)
            if (values := _values(parts)) is not None:
                found += values
            elif said == NULL:
                found.append(None)
            elif choices is not None and said is None:
                ahead.add(choices)
            else:
                return None
        return None if ahead.are_too_many else found

    def alone(self, name: str) -> object:
        """Return the schema of an argument with all that it refers to in it."""
        targets: list[str] = []
        numbers: dict[str, int] = {}

        def renamed(node: dict[str, Any]) -> dict[str, Any]:
            target = node.get("$ref")
            if isinstance(target, str) and self._at(target) is not _NOWHERE:
                if target not in numbers:
                    numbers[target] = len(targets)
                    targets.append(target)
                node["$ref"] = f"#/$defs/{numbers[target]}"
            return node

        def copied(schema: object) -> Any:
            return json.loads(json.dumps(schema), object_hook=renamed)

        schema = copied(self._members[name])
        definitions = {str(number): copied(self._at(target)) for number, target in enumerate(targets)}  # which grow
        return {**schema, "$defs": definitions} if definitions and isinstance(schema, dict) else schema

    def _among(self, values: list[Any]) -> Set[str]:
        known = self._types_among.get(id(values))
        if known is None:
            known = self._types_among[id(values)] = values, frozenset(map(type_of, values))
        return known[1]

    def _parts(self, schema: object) -> Sequence[Schema]:
        """Return a schema with those that it is put together of, it first: what is said first counts."""
        parts: list[Schema] = []
        ahead = [schema]
        for part in ahead:  # which grow, for ever where one refers to itself
            if isinstance(part, Mapping):
                parts.append(part)
                ahead += self._behind(part)
            if len(parts) == MAX_PARTS:
                break
        return parts

    def _behind(self, part: Schema) -> list[object]:
        """Return what a schema is put together of besides itself, as far as that can be told."""
        target, others = part.get("$ref"), part.get("allOf")
        referred = self._at(target) if isinstance(target, str) else _NOWHERE
        return [
            *([] if referred is _NOWHERE else [referred]),
            *(others[:MAX_PARTS] if isinstance(others, list) else ()),
        ]

    def _are_open(self, parts: Sequence[Schema]) -> bool:
        """Return whether a schema that names no type allows others than texts, or may, in what cannot be looked at."""
        seen = set(map(id, parts))
        return any(
            any(key in part for key in _OPEN)
            or ("$ref" in part and not (isinstance(part["$ref"], str) and id(self._at(part["$ref"])) in seen))
            or ("allOf" in part and not (isinstance(part["allOf"], list) and len(part["allOf"]) <= MAX_PARTS))
            for part in parts
        )

    def _at(self, target: str) -> object:
        """Return the part of the schema that a `$ref` names, `_NOWHERE` where there is none."""
        head, *tokens = unquote(target).split("/") if len(target) <= MAX_POINTER_CHARS else ("",)
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


class _Choices:
    """Schemas of which one is chosen, and those that they choose of, each once; iterated while they grow."""

    def __init__(self, schema: object) -> None:
        self.are_too_many = False
        self._schemas = [schema]
        self._seen = {id(schema)}

    def __iter__(self) -> Iterator[object]:
        return iter(self._schemas)

    def add(self, choices: Sequence[object]) -> None:
        """Add some, unless that makes too many."""
        self.are_too_many |= len(self._schemas) + len(choices) > MAX_CHOICES
        for choice in () if self.are_too_many else choices:
            if id(choice) not in self._seen:
                self._seen.add(id(choice))
                self._schemas.append(choice)


def type_of(value: object) -> str:
    """Return the JSON type of a value that was read from JSON."""
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _values(parts: Sequence[Schema]) -> list[Any] | None:
    if (part := next((part for part in parts if "const" in part), None)) is not None:
        return [part["const"]]
    return next((part["enum"] for part in parts if isinstance(part.get("enum"), list)), None)


def _said(parts: Sequence[Schema]) -> Set[str] | None:
    said = next((part["type"] for part in parts if isinstance(part.get("type"), str | list)), None)
    if isinstance(said, str):
        return frozenset((said,))
    return frozenset(each for each in said if isinstance(each, str)) if said is not None else None


def _choices(parts: Sequence[Schema]) -> list[Any] | None:
    return next((part[name] for part in parts for name in ("anyOf", "oneOf") if isinstance(part.get(name), list)), None)
