"""The marks that models put around their reasoning, and which of them a chat template tells of.

Pure; knows text only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Standing(Enum):
    """Where a text stands: before the reasoning, if there is to be any, at its beginning or amid it, or behind it."""

    BEFORE = "before"
    WITHIN = "within"
    AMID = "amid"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """Reasoning stands between `opening` and `closing`, each in pieces that may be special tokens.

    An answer without any begins with `bare`, where that is not empty, and then `closing` ends with it: reasoning ends
    as well where one of `calling` stands in its place, which begins a call. Before a `header_end`, which ends these
    two, a model may name the kind of its answer, ` json` say.
    """

    name: str
    opening: tuple[str, ...]
    closing: tuple[str, ...]
    bare: tuple[str, ...] = ()
    header_end: str = ""
    calling: tuple[tuple[str, ...], ...] = ()

    @property
    def end(self) -> tuple[str, ...]:
        """What of `closing` ends the reasoning, whatever begins behind it."""
        return self.closing[: len(self.closing) - len(self.bare)]

    @property
    def marks(self) -> frozenset[str]:
        """What is to be seen in the text where it is a special token."""
        return frozenset((*self.opening, *self.closing, *self.bare))

    def standing(self, prompt: str) -> Standing:
        """Return where an answer begins, by the last characters of its prompt."""
        end = prompt.rstrip()
        if end.endswith("".join(self.opening)):
            return Standing.WITHIN
        return Standing.BEHIND if end.endswith("".join(self.closing)) else Standing.BEFORE

    def standing_within(self, begun: str) -> Standing:
        """Return where an answer goes on, of which `begun` was there before."""
        opening, closing = "".join(self.opening), "".join(self.closing)
        if closing in begun:
            return Standing.BEHIND
        if begun.lstrip().startswith(opening):
            return Standing.AMID
        return Standing.BEHIND if begun.strip() else Standing.BEFORE


THINK = ReasoningFormat(name="think", opening=("<think>",), closing=("</think>",))
SEED = ReasoningFormat(name="seed", opening=("<seed:think>",), closing=("</seed:think>",))
MISTRAL = ReasoningFormat(name="mistral", opening=("[THINK]",), closing=("[/THINK]",))
KIMI = ReasoningFormat(name="kimi", opening=("◁think▷",), closing=("◁/think▷",))
HARMONY = ReasoningFormat(
    name="harmony",
    opening=("<|channel|>", "analysis", "<|message|>"),
    closing=("<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>"),
    bare=("<|channel|>", "final", "<|message|>"),
    header_end="<|message|>",
    calling=(("<|channel|>", "commentary"), (" to", "=")),
)
FORMATS = {each.name: each for each in (THINK, SEED, MISTRAL, KIMI, HARMONY)}


def format_of(template: str) -> ReasoningFormat | None:
    """Return the format that a chat template reads or writes reasoning in, None where it knows none of these."""
    if "<|channel|>analysis" in template:
        return HARMONY
    marked = (each for each in (THINK, SEED, MISTRAL, KIMI) if any(mark in template for mark in each.marks))
    return next(marked, None)
