"""JSON schemas whose objects have the members that they name, and no others, unless they say so.

To JSON Schema an object that names `properties` may have any others beside them. Who asks a model for one does not mean
that: a small model that may go on with another member does, until its tokens are used up. To JSON Schema a
`format` is a remark, which libraries make of many types (`password`, `path`, `base64`), and one that is not known says
nothing; llguidance refuses it. It refuses all `propertyNames` too, and zod writes such of every record, which say that
names are texts. Pure; knows JSON values. Invariant: what fits a closed schema fits the one that it was
made of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Node = dict[str, Any]

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_INSIDE = (
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "propertyNames",
    "unevaluatedProperties", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
)  # fmt: skip
_ANY_NAMES: tuple[Node, ...] = ({}, {"type": "string"})
_OF_MEMBERS = frozenset(
    ("properties", "patternProperties", "additionalProperties", "propertyNames", "required", "dependentRequired",
     "minProperties", "maxProperties")
)  # fmt: skip
_OTHERS = frozenset(("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"))

# That llguidance holds a text to.
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)


def closed(text: str) -> str:
    """Return a schema, as JSON, in which objects that name members have no others, where nothing is said of those.

    `additionalProperties` says it. One that puts an object together of several schemas comes back as it is, for each of
    these names some of the members; so does what is no JSON. What says nothing is left out of either: formats that are
    not known, and `propertyNames` that every name fits.
    """
    try:
        schema = json.loads(text)
        nodes = [*_nodes(schema)]
        idle = [_without_idle(node) for node in reversed(nodes)]  # those within others first: they may say nothing then
        if any(_puts_together(node) for node in nodes):
            return _written(schema) if any(idle) else text
        for node in filter(_names_all, nodes):
            node["additionalProperties"] = False
        return _written(schema)
    except (ValueError, RecursionError):
        return text


def _written(schema: object) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _nodes(schema: object) -> Iterator[Node]:
    """Yield a schema and all within it that are objects; values that it only tells, as in `enum`, are none."""
    ahead = [schema]
    while ahead:
        node = ahead.pop()
        if isinstance(node, list):
            ahead += node
        elif isinstance(node, dict):
            yield node
            ahead += [node[key] for key in _INSIDE if key in node]
            ahead += [each for key in _BY_NAME if isinstance(node.get(key), dict) for each in node[key].values()]


def _without_idle(node: Node) -> bool:
    """Leave out of a schema what says nothing, and return whether there was any of it."""
    names, kind = node.get("propertyNames"), node.get("format")
    has_names = names is True or names in _ANY_NAMES
    has_kind = isinstance(kind, str) and kind not in _FORMATS
    if has_names:
        del node["propertyNames"]
    if has_kind:
        del node["format"]
    return has_names or has_kind


def _puts_together(node: Node) -> bool:
    """Return whether several parts of it, or what it says and another schema, may speak of one object."""
    others = node.keys() & _OTHERS
    parts = node.get("allOf")
    has_parts = isinstance(parts, list) and len(parts) > 1
    return "not" in others or len(others) > 1 or has_parts or bool(others and node.keys() & _OF_MEMBERS)


def _names_all(node: Node) -> bool:
    """Return whether the members that it names are enough, and nothing is said of others."""
    if "additionalProperties" in node or "unevaluatedProperties" in node:
        return False
    if "patternProperties" in node:
        return True
    named, needed, least = node.get("properties"), node.get("required", []), node.get("minProperties", 0)
    if not isinstance(named, dict) or not isinstance(needed, list) or not isinstance(least, int):
        return False
    return least <= len(named) and all(isinstance(each, str) and each in named for each in needed)
