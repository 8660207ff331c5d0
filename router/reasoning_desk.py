"""What a request needs to know of how its model reasons, and its answers' reasoning told apart while they grow.

Knows the tokenizer and the marks that the model puts around reasoning; chats alone are read so. Invariants: streamed or
whole, the same text is reasoning; what a grammar rules is the answer, behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagewire.router.ask import Ask, Reasoning
from pagewire.router.events import Chunk, Finished
from pagewire.router.request import Request
from pagewire.text.reasoning.formats import FORMATS, ReasoningFormat, Standing, format_of
from pagewire.text.reasoning.grammar import behind_reasoning
from pagewire.text.reasoning.reader import ReasoningReader, Thought
from pagewire.text.tokenizer import Tokenizer

AUTO = "auto"
TAIL = 32  # tokens of a prompt, which end with a mark or do not


class ReasoningDesk:
    """That of one model; `format_name` is one of `FORMATS`, `auto` for what the chat template tells, or `none`."""

    def __init__(self, tokenizer: Tokenizer, format_name: str = AUTO) -> None:
        self._tokenizer = tokenizer
        template = tokenizer.chat_template
        told = format_of(template.source) if template is not None else None
        self._format = told if format_name == AUTO else FORMATS.get(format_name)

    def prepared(self, ask: Ask) -> Ask:
        """Return `ask` with the marks of reasoning in its answers' text."""
        if (known := self._known(ask)) is None:
            return ask
        return replace(ask, text_rules=replace(ask.text_rules, shown=ask.text_rules.shown | known.marks))

    def guided(self, ask: Ask, prompt: Sequence[int]) -> Ask:
        """Return `ask`, whose prompt has become tokens, with a grammar that lets the model reason first."""
        if ask.grammar is None or (known := self._known(ask)) is None:
            return ask
        ids = {mark: token_id for mark in known.marks if (token_id := self._tokenizer.special_id(mark)) is not None}
        return replace(ask, grammar=behind_reasoning(ask.grammar, known, self._standing(ask, known, prompt), ids))

    def finder(self, ask: Ask, request: Request) -> ReasoningFinder | None:
        """Return what tells the reasoning of the answers to `ask` apart, None where nothing is told apart.

        `request` is what it was accepted as.
        """
        if (known := self._known(ask)) is None:
            return None
        closing = self._tokenizer.token_id(known.closing[0])
        is_told = ask.reasoning is Reasoning.APART
        return ReasoningFinder(known, self._standing(ask, known, request.prompt), closing, is_told=is_told)

    def _known(self, ask: Ask) -> ReasoningFormat | None:
        return None if ask.messages is None or ask.reasoning is Reasoning.WITHIN else self._format

    def _standing(self, ask: Ask, known: ReasoningFormat, prompt: Sequence[int]) -> Standing:
        if ask.chat.continue_final_message and ask.messages:
            last = ask.messages[-1]
            content = last.get("content") or ""
            return Standing.AMID if last.get("reasoning_content") and not content else known.standing_within(content)
        return known.standing(self._tokenizer.decode_all(list(prompt[-TAIL:])))


class ReasoningFinder:
    """Tells reasoning apart in the chunks of one request, whose answers begin at a `standing`.

    `closing_id` is the token that ends reasoning, where one does. What is not `is_told` is counted and dropped.
    """

    def __init__(
        self, reasoning_format: ReasoningFormat, standing: Standing, closing_id: int | None, *, is_told: bool
    ) -> None:
        self._format = reasoning_format
        self._standing = standing
        self._closing_id = closing_id
        self._is_told = is_told
        self._readers: dict[int, ReasoningReader] = {}
        self._num_begun: dict[int, int] = {}  # by answer, tokens that may turn out to be its opening mark
        self._num_tokens = 0

    def chunk(self, chunk: Chunk) -> Chunk:
        """Return a chunk with its part of the answer for its text, and its reasoning."""
        reader = self._readers.get(chunk.index)
        if reader is None:
            reader = self._readers[chunk.index] = ReasoningReader(self._format, self._standing)
        elif reader.is_done:
            return chunk
        before = reader.standing
        thought = reader.push(chunk.text)
        if chunk.ending is not None:
            rest = reader.finish()
            thought = Thought(reasoning=thought.reasoning + rest.reasoning, words=thought.words + rest.words)
        self._count(chunk, before, reader.standing, thought)
        return replace(chunk, text=thought.words, reasoning=thought.reasoning if self._is_told else "")

    def finished(self, finished: Finished) -> Finished:
        """Return the last event, whose usage knows of reasoning."""
        return replace(finished, usage=replace(finished.usage, reasoning_tokens=self._num_tokens))

    def _count(self, chunk: Chunk, before: Standing, after: Standing, thought: Thought) -> None:
        """Count the tokens of reasoning, its marks among them."""
        ids = chunk.token_ids
        if after is Standing.BEFORE:
            self._num_begun[chunk.index] = self._num_begun.get(chunk.index, 0) + len(ids)
        elif before in (Standing.WITHIN, Standing.AMID) or after is not Standing.BEHIND or thought.reasoning:
            is_closed = after is Standing.BEHIND and self._closing_id in ids
            num_new = ids.index(self._closing_id) + 1 if is_closed else len(ids)
            self._num_tokens += self._num_begun.pop(chunk.index, 0) + num_new
