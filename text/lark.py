"""Parts of grammars in Lark's EBNF, as llguidance takes it: a rule may be a JSON schema, or name tokens by their ids.

Pure; knows text and grammars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from pagewire.core.sampling import Grammar, GrammarKind
from pagewire.text.closed_schema import closed

ANYTHING = "/(?s:.*)/"
_ESCAPED_OR_BOUND = re.compile(r"\\.|[/\n]", re.DOTALL)


def literal(text: str) -> str:
    """Return a text as it stands: a string of Lark is one of JSON, in which DEL may not stand by itself either."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def pieces(texts: Sequence[str], token_ids: Mapping[str, int]) -> str:
    """Return texts one behind the other, those with an id as that special token."""
    return " ".join(f"<[{token_ids[text]}]>" if text in token_ids else literal(text) for text in texts) or '""'


def json_value(schema: object) -> str:
    """Return what is JSON by a schema, closed."""
    return "%json " + closed(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))


def everything_to(rule: str, end: str) -> str:
    """Return the definition of `rule` as everything up to `end`, and that."""
    return f"{rule}[suffix={literal(end)}]: {ANYTHING}"


def nested(grammar: Grammar) -> str | None:
    """Return a grammar as a part of another one, None where it is none."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            try:
                return json_value(json.loads(grammar.text))
            except (ValueError, RecursionError):
                return None
        case GrammarKind.REGEX:
            return f"/{_ESCAPED_OR_BOUND.sub(_within_slashes, grammar.text)}/"
        case GrammarKind.LARK:
            return f"%lark {{\n{grammar.text}\n}}"


def _within_slashes(found: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(found[0], found[0])
