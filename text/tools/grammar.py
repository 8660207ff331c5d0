"""The grammar of an output that has to be tool calls, or may be, in the words of the model's own format.

Pure; writes llguidance's Lark, where a rule may be a JSON schema. So a forced call reads like one that the model chose,
and the same reader reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagewire.core.sampling import Grammar, GrammarKind
from pagewire.text import lark
from pagewire.text.tools import keyed
from pagewire.text.tools.formats import Keywords, ToolFormat
from pagewire.text.tools.readings import Schema

NO_ARGUMENTS: Schema = {"type": "object", "properties": {}}  # of a tool that says nothing of them
NO_IDS: Mapping[str, int] = {}
_DEFINITIONS = ("$defs", "definitions")


def calls(
    tool_format: ToolFormat, tools: Sequence[tuple[str, Schema]], token_ids: Mapping[str, int], *, is_single: bool
) -> str:
    """Return the grammar of one call or more of `tools`, each a name and the schema of its arguments; of exactly one
    if `is_single`.

    `token_ids` are those of the format's pieces that are special tokens.
    """
    lines = ["start: opening call closing" if is_single else "start: opening call (between call)* closing"]
    lines += [
        f"{rule}: {lark.pieces(pieces, token_ids)}"
        for rule, pieces in (
            ("opening", tool_format.opening),
            ("between", tool_format.between),
            ("closing", tool_format.closing),
        )
    ]
    lines.append("call: " + " | ".join(f"call{i}" for i in range(len(tools))))
    for i, (name, schema) in enumerate(tools):
        number = " /:[0-9]+/" if tool_format.is_numbered else ""
        named = lark.literal(tool_format.before_name + name) + number
        named += f" {lark.pieces(tool_format.before_arguments, token_ids)}"
        lines.append(f"call{i}: {named} arguments{i} {lark.literal(tool_format.after_arguments)}")
        keywords = tool_format.keywords
        lines += [f"arguments{i}: {lark.json_value(schema)}"] if keywords is None else _keywords(keywords, i, schema)
    return "\n".join(lines)


def calls_or(
    calls_grammar: str, answer: Grammar, head: Sequence[str] = (), token_ids: Mapping[str, int] = NO_IDS
) -> Grammar:
    """Return the grammar of an output that is all calls, or all that `answer` rules, with a `head` before it, pieces of
    which `token_ids` are special tokens.

    A schema that is no JSON is left as it is: to refuse it is somebody else's.
    """
    other = lark.nested(answer)
    if other is None:
        return answer
    text = f"start: calls | head answer\ncalls: %lark {{\n{calls_grammar}\n}}\n"
    text += f"head: {lark.pieces(head, token_ids)}\nanswer: {other}"
    return replace(answer, kind=GrammarKind.LARK, text=text)


def _keywords(keywords: Keywords, i: int, schema: Schema) -> list[str]:
    """Return the rules of arguments written one by one, in the order of the schema, optional ones or not."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = schema.get("required") or ()
    definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}
    names = list(properties)
    lines = [f"arguments{i}: first{i}_0"]
    for k, name in enumerate(names):
        value = properties[name]
        lines += _value(keywords, f"{i}_{k}", {**definitions, **value} if isinstance(value, dict) else value)
        # "first" has nothing before it, "next" has, and then a comma stands between.
        for state, comma in (("first", ""), ("next", keywords.between)):
            skipped = "" if name in required else f" | {state}{i}_{k + 1}"
            before = lark.literal(f"{comma}{keywords.before}{name}{keywords.middle}")
            lines.append(f"{state}{i}_{k}: {before} value{i}_{k} next{i}_{k + 1}{skipped}")
    return [*lines, f'first{i}_{len(names)}: ""', f'next{i}_{len(names)}: ""']


def _value(keywords: Keywords, name: str, schema: object) -> list[str]:
    """Return the rules of a value with what stands behind it."""
    if not keywords.text_end or "string" not in keyed.types(schema):
        return [f"value{name}: {lark.json_value(schema)} {lark.literal(keywords.after)}"]
    said = schema if isinstance(schema, dict) else {}
    allowed = [said["const"]] if "const" in said else said.get("enum")
    if isinstance(allowed, list) and allowed:
        texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in allowed]
        return [f"value{name}: (" + " | ".join(map(lark.literal, texts)) + f") {lark.literal(keywords.after)}"]
    behind = keywords.after.partition(keywords.text_end)[2]
    return [
        f"value{name}: text{name} {lark.literal(behind)}",
        lark.everything_to(f"text{name}", keywords.text_end),
    ]
