"""The grammar of an output that has to be tool calls, or may be, in the words of the model's own format.

Pure; writes llguidance's Lark, where a rule may be a JSON schema. So a forced call reads like one that the model chose,
and the same reader reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pagewire.core.sampling import MAX_GRAMMAR_CHARS, Grammar, GrammarKind
from pagewire.text import lark
from pagewire.text.tools.formats import Keywords, ToolFormat
from pagewire.text.tools.parameters import Parameters, Schema

NO_ARGUMENTS: Schema = {"type": "object", "properties": {}}  # of a tool that says nothing of them
NO_IDS: Mapping[str, int] = {}


def calls(
    tool_format: ToolFormat, tools: Sequence[tuple[str, Schema]], token_ids: Mapping[str, int], *, is_single: bool
) -> str:
    """Return the grammar of one call or more of `tools`, each a name and the schema of its arguments; of exactly one
    if `is_single`.

    `token_ids` are those of the format's pieces that are special tokens. One that is too long to be taken ends early:
    what several arguments refer to is written out for each.
    """
    written: list[str] = []
    num_chars = 0
    for line in _lines(tool_format, tools, token_ids, is_single=is_single):
        written.append(line)
        num_chars += len(line)
        if num_chars > MAX_GRAMMAR_CHARS:
            break
    return "\n".join(written)


def _lines(
    tool_format: ToolFormat, tools: Sequence[tuple[str, Schema]], token_ids: Mapping[str, int], *, is_single: bool
) -> Iterator[str]:
    yield "start: opening call closing" if is_single else "start: opening call (between call)* closing"
    for rule, pieces in (
        ("opening", tool_format.opening),
        ("between", tool_format.between),
        ("closing", tool_format.closing),
    ):
        yield f"{rule}: {lark.pieces(pieces, token_ids)}"
    yield "call: " + " | ".join(f"call{i}" for i in range(len(tools)))
    for i, (name, schema) in enumerate(tools):
        number = " /:[0-9]+/" if tool_format.is_numbered else ""
        named = lark.literal(tool_format.before_name + name) + number
        named += f" {lark.pieces(tool_format.before_arguments, token_ids)}"
        yield f"call{i}: {named} arguments{i} {lark.literal(tool_format.after_arguments)}"
        if tool_format.keywords is None:
            yield f"arguments{i}: {lark.json_value(schema)}"
        else:
            yield from _keywords(tool_format.keywords, i, Parameters(schema))


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


def _keywords(keywords: Keywords, i: int, parameters: Parameters) -> Iterator[str]:
    """Yield the rules of arguments written one by one, in the order of the schema, optional ones or not."""
    names = parameters.names
    yield f"arguments{i}: first{i}_0"
    for k, name in enumerate(names):
        yield from _value(keywords, f"{i}_{k}", parameters, name)
        # "first" has nothing before it, "next" has, and then a comma stands between.
        for state, comma in (("first", ""), ("next", keywords.between)):
            skipped = "" if name in parameters.required else f" | {state}{i}_{k + 1}"
            before = lark.literal(f"{comma}{keywords.before}{name}{keywords.middle}")
            yield f"{state}{i}_{k}: {before} value{i}_{k} next{i}_{k + 1}{skipped}"
    yield from (f'{state}{i}_{len(names)}: ""' for state in ("first", "next"))


def _value(keywords: Keywords, rule: str, parameters: Parameters, name: str) -> Iterator[str]:
    """Yield the rules of an argument's value with what stands behind it."""
    after = lark.literal(keywords.after)
    if not keywords.text_end or "string" not in parameters.types(name):
        yield f"value{rule}: {lark.json_value(parameters.alone(name))} {after}"
    elif allowed := parameters.values(name):
        texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in allowed]
        yield f"value{rule}: (" + " | ".join(map(lark.literal, texts)) + f") {after}"
    else:
        behind = keywords.after.partition(keywords.text_end)[2]
        yield f"value{rule}: text{rule} {lark.literal(behind)}"
        yield lark.everything_to(f"text{rule}", keywords.text_end)
