"""Parts of grammars in Lark's EBNF, as llguidance takes it: a rule may be a JSON schema, or name tokens by their ids.

Pure; knows text only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

ANYTHING = "/(?s:.*)/"


def literal(text: str) -> str:
    """Return a text as it stands: a string of Lark is one of JSON."""
    return json.dumps(text, ensure_ascii=False)


def pieces(texts: Sequence[str], token_ids: Mapping[str, int]) -> str:
    """Return texts one behind the other, those with an id as that special token."""
    return " ".join(f"<[{token_ids[text]}]>" if text in token_ids else literal(text) for text in texts) or '""'


def json_value(schema: object) -> str:
    """Return what is JSON by a schema."""
    return "%json " + json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def everything_to(rule: str, end: str) -> str:
    """Return the definition of `rule` as everything up to `end`, and that."""
    return f"{rule}[suffix={literal(end)}]: {ANYTHING}"
