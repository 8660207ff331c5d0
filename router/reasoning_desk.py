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
from pagewire.router.tool_desk import AUTO
from pagewire.text.reasoning.formats import FORMATS, ReasoningFormat, Standing, format_of
from pagewire.text.reasoning.grammar import behind_reasoning
from pagewire.text.reasoning.reader import ReasoningReader, Thought
from pagewire.text.tokenizer import Tokenizer

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

    def guided(self, ask: Ask, prompt: Sequence[int], *, is_headed: bool = False) -> Ask:
        """Return `ask`, whose prompt has become tokens, with a grammar that lets the model reason first. What begins an
        answer is in one that `is_headed`.
        """
        if ask.grammar is None or (known := self._known(ask)) is None:
            return ask
        ids = {mark: token_id for mark in known.marks if (token_id := self._tokenizer.special_id(mark)) is not None}
        standing = self._standing(ask, known, prompt)
        return replace(ask, grammar=behind_reasoning(ask.grammar, known, standing, ids, is_headed=is_headed))

    def finder(self, ask: Ask, request: Request, *, may_call: bool = False) -> ReasoningFinder | None:
        """Return what tells the reasoning of the answers to `ask` apart, None where nothing is told apart.

        `request` is what it was accepted as. If somebody reads the calls behind it, they `may_call`.
        """
        if (known := self._known(ask)) is None:
            return None
        closing_ids = [each for mark in known.closing if (each := self._tokenizer.token_id(mark)) is not None]
        is_told = ask.reasoning is Reasoning.APART
        return ReasoningFinder(
            known,
            self._standing(ask, known, request.prompt),
            closing_ids if len(closing_ids) == len(known.closing) else [],
            is_told=is_told,
            may_call=may_call,
        )

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

    `closing_ids` are the tokens that end reasoning, none where its mark is no tokens. What is not `is_told` is counted
    and dropped. They may begin calls behind it if they `may_call`.
    """

    def __init__(
        self,
        reasoning_format: ReasoningFormat,
        standing: Standing,
        closing_ids: Sequence[int],
        *,
        is_told: bool,
        may_call: bool = False,
    ) -> None:
        self._format = reasoning_format
        self._standing = standing
        self._closing_ids = closing_ids
        self._is_told = is_told
        self._may_call = may_call
        self._readers: dict[int, ReasoningReader] = {}
        self._num_begun: dict[int, int] = {}  # by answer, tokens that may turn out to be its opening mark
        self._num_tokens = 0

    def chunk(self, chunk: Chunk) -> Chunk:
        """Return a chunk with its part of the answer for its text, and its reasoning."""
        reader = self._readers.get(chunk.index)
        if reader is None:
            reader = self._readers[chunk.index] = ReasoningReader(self._format, self._standing, may_call=self._may_call)
        elif reader.is_done:
            return chunk
        is_behind = reader.standing is Standing.BEHIND
        thought = reader.push(chunk.text)
        if chunk.ending is not None:
            rest = reader.finish()
            thought = Thought(reasoning=thought.reasoning + rest.reasoning, words=thought.words + rest.words)
        num_new = 0 if is_behind else self._count(chunk, reader)
        reasoning = thought.reasoning if self._is_told else ""
        return replace(chunk, text=thought.words, reasoning=reasoning, num_reasoning=num_new)

    def finished(self, finished: Finished) -> Finished:
        """Return the last event, whose usage knows of reasoning."""
        return replace(finished, usage=replace(finished.usage, reasoning_tokens=self._num_tokens))

    def _count(self, chunk: Chunk, reader: ReasoningReader) -> int:
        """Return how many of a chunk's tokens are reasoning or its marks, and count them."""
        num_new = len(chunk.token_ids)
        if reader.standing is Standing.BEFORE:
            self._num_begun[chunk.index] = self._num_begun.get(chunk.index, 0) + num_new
            return 0
        if not reader.has_reasoned:
            return 0
        if reader.standing is Standing.BEHIND:
            num_new = min(num_new, self._end_of_closing(chunk.token_ids, reader.num_closing))
        self._num_tokens += num_new + self._num_begun.pop(chunk.index, 0)
        return num_new

    def _end_of_closing(self, ids: tuple[int, ...], size: int) -> int:
        """Return how many tokens there are up to the end of the closing mark, of `size` tokens, which may have begun
        before; else all.
        """
        if self._closing_ids and self._closing_ids[0] in ids:
            return ids.index(self._closing_ids[0]) + size
        return ids.index(self._closing_ids[-1]) + 1 if self._closing_ids and self._closing_ids[-1] in ids else len(ids)
