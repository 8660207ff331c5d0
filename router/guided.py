"""The fields of a body that say what an output has to be: OpenAI's `response_format`, vLLM's `structured_outputs`.

Pure; knows JSON values and writes them as one `Grammar`. Whether a grammar is a good one is for the pods' compiler to
say. Invariant: at most one field of a body asks for one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.core.sampling import MAX_GRAMMAR_CHARS, Grammar, GrammarKind
from pagewire.text import gbnf, lark

ANY_OBJECT = '{"type":"object"}'
MAX_CHOICES = 1024
_STRUCTURED = ("json", "json_object", "regex", "choice", "grammar")
_GUIDED = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}

FIELDS = ("response_format", "structured_outputs", *_GUIDED)


def grammar(body: Mapping[str, Any]) -> Grammar | None:
    """Return what the output of a request has to be, None for anything; raises InvalidRequest or UnsupportedField."""
    asked = [name for name in FIELDS if body.get(name) is not None]
    found = [(name, each) for name in asked if (each := _read(name, body[name])) is not None]
    if len(found) > 1:
        raise InvalidRequest(f"{found[0][0]} and {found[1][0]} both say what the output is", field=found[1][0])
    return found[0][1] if found else None


def choice(field: str, values: object) -> Grammar:
    """Return the grammar of one of several texts; raises InvalidRequest."""
    if (
        not isinstance(values, (list, tuple))
        or not values
        or not all(isinstance(each, str) and each for each in values)
    ):
        raise InvalidRequest(f"{field} is a list of texts that are not empty", field=field)
    if len(values) > MAX_CHOICES:
        raise InvalidRequest(f"{field} has at most {MAX_CHOICES} choices, got {len(values)}", field=field)
    text = "start: " + " | ".join(map(lark.literal, values))
    return Grammar(kind=GrammarKind.LARK, text=text, field=field)


def _read(field: str, value: Any) -> Grammar | None:
    if field == "response_format":
        return _response_format(value)
    if field == "structured_outputs":
        return _structured_outputs(value)
    return _of(field, _GUIDED[field], value)


def _response_format(value: Any) -> Grammar | None:
    field = "response_format"
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar(kind=GrammarKind.JSON_SCHEMA, text=ANY_OBJECT, field=field)
    if kind == "json_schema":
        named = value.get("json_schema")
        if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
            raise InvalidRequest("response_format.json_schema.schema is missing", field=field)
        return _of(field, "json", named["schema"])
    if not isinstance(kind, str):
        raise InvalidRequest("response_format is an object with a type", field=field)
    raise UnsupportedField(
        f"response_format.type {kind[:50]!r} is not supported: text, json_object and json_schema are", field=field
    )


def _structured_outputs(value: Any) -> Grammar | None:
    field = "structured_outputs"
    if not isinstance(value, dict):
        raise InvalidRequest("structured_outputs is an object", field=field)
    given = {name: each for name, each in value.items() if each is not None and each is not False}
    unknown = next((name for name in given if name not in _STRUCTURED), None)
    if unknown is not None:
        raise UnsupportedField(f"structured_outputs.{unknown[:50]} is not supported", field=field)
    if len(given) != 1:
        raise InvalidRequest(f"structured_outputs has one of {', '.join(_STRUCTURED)}, got {len(given)}", field=field)
    ((kind, asked),) = given.items()
    return _of(field, kind, asked)


def _of(field: str, kind: str, value: Any) -> Grammar:
    if kind == "choice":
        return choice(field, value)
    if kind == "json_object":
        return Grammar(kind=GrammarKind.JSON_SCHEMA, text=ANY_OBJECT, field=field)
    if kind == "json" and isinstance(value, (dict, bool)):
        try:
            value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        except RecursionError as error:
            raise InvalidRequest(f"{field} is nested too deeply", field=field) from error
    elif kind == "json" and isinstance(value, str):
        _check_json(field, value)
    if not isinstance(value, str):
        raise InvalidRequest(f"{field}: {kind} is a text" + (" or an object" if kind == "json" else ""), field=field)
    if kind == "grammar" and gbnf.is_gbnf(value):
        value = _gbnf(field, value)
    kinds = {"json": GrammarKind.JSON_SCHEMA, "regex": GrammarKind.REGEX, "grammar": GrammarKind.LARK}
    return Grammar(kind=kinds[kind], text=value, field=field)


def _gbnf(field: str, text: str) -> str:
    """Return a grammar in GBNF as one in Lark's EBNF, which goes into others too; raises InvalidRequest."""
    if len(text) > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(f"{field} has 1 to {MAX_GRAMMAR_CHARS} characters, got {len(text)}", field=field)
    try:
        return gbnf.as_lark(text)
    except gbnf.NoGbnf as error:
        raise InvalidRequest(f"{field} is no grammar in GBNF: {error}", field=field) from error


def _check_json(field: str, text: str) -> None:
    """Raise InvalidRequest where a schema is no JSON: who compiles it would count from the beginning of its own."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field} is no JSON: {error}", field=field) from error
