"""The grammar of an output that may reason before it is what was asked for.

Pure; writes Lark's EBNF as llguidance takes it, which nests JSON schemas and whole grammars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pagewire.core.sampling import Grammar, GrammarKind
from pagewire.text import lark
from pagewire.text.reasoning.formats import ReasoningFormat, Standing


def behind_reasoning(
    grammar: Grammar,
    reasoning_format: ReasoningFormat,
    standing: Standing,
    token_ids: Mapping[str, int],
    *,
    is_headed: bool = False,
) -> Grammar:
    """Return the grammar of what `grammar` rules, with reasoning before it: none behind it, some within it.

    `token_ids` are those of the format's pieces that are special tokens. A grammar that `is_headed` has in it what
    begins an answer. A schema that is no JSON is left as it is: to refuse it is somebody else's.
    """
    answer = lark.nested(grammar)
    if standing is Standing.BEHIND or answer is None:
        return grammar
    if is_headed:
        reasoning_format = replace(reasoning_format, closing=reasoning_format.end, bare=())
    lines = [f"start: {_beginning(reasoning_format, standing, token_ids)} answer"]
    first, *rest = reasoning_format.closing
    if first in token_ids:
        lines += [f"thought: reasoning {lark.pieces((first, *rest), token_ids)} breaks?", f"reasoning: {lark.ANYTHING}"]
    else:
        lines += [f"thought: reasoning {lark.pieces(rest, token_ids)} breaks?", lark.everything_to("reasoning", first)]
    lines += [r"breaks: /\n+/", f"answer: {answer}"]
    return replace(grammar, kind=GrammarKind.LARK, text="\n".join(lines))


def _beginning(reasoning_format: ReasoningFormat, standing: Standing, token_ids: Mapping[str, int]) -> str:
    """Return what stands before the answer."""
    if standing is not Standing.BEFORE:
        return "thought"
    reasoning = f"{lark.pieces(reasoning_format.opening, token_ids)} thought"
    bare = lark.pieces(reasoning_format.bare, token_ids)
    return f"({reasoning} | {bare})" if reasoning_format.bare else f"({reasoning})?"
