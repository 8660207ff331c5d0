"""What of an answer was handed out when its router was lost, held against the same answer from its beginning. Pure.

An answer follows from its request, seed included, so asking another router again repeats it. It is repeated only where
it is the same: every token and every character that was handed out is compared, and only what comes after them goes on.

Invariant: what was handed out and what `rest` returns, put together, are one router's answer.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pagewire.client.results import Chunk, ToolCallPart
from pagewire.core.errors import RouterLost


@dataclass(slots=True)
class _HandedOut:
    """One sequence: what is still to be repeated of it, and whether its end was told."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    reasoning: str = ""
    calls: dict[int, ToolCallPart] = field(default_factory=dict)
    has_ended: bool = False

    @property
    def is_repeated(self) -> bool:
        return not (self.token_ids or self.text or self.reasoning or self.calls)

    def rest_of_call(self, part: ToolCallPart) -> ToolCallPart | None:
        """Return what of a piece was not handed out yet, None where all was; raises RouterLost where they differ."""
        known = self.calls.pop(part.index, None)
        if known is None:
            return part
        size = min(len(part.arguments), len(known.arguments))
        if (part.id, part.name) != (known.id, known.name) or part.arguments[:size] != known.arguments[:size]:
            raise _differs()
        if len(known.arguments) > size:
            # The pieces to come have no name.
            self.calls[part.index] = ToolCallPart(index=part.index, arguments=known.arguments[size:])
            return None
        rest = part.arguments[size:]
        return ToolCallPart(index=part.index, arguments=rest) if rest else None


class Replay:
    """One answer that begins anew."""

    def __init__(self, handed_out: Iterable[Chunk]) -> None:
        self._sequences: defaultdict[int, _HandedOut] = defaultdict(_HandedOut)
        for chunk in handed_out:
            sequence = self._sequences[chunk.index]
            sequence.token_ids += chunk.token_ids
            sequence.text += chunk.text
            sequence.reasoning += chunk.reasoning
            for part in chunk.tool_calls:
                before = sequence.calls.get(part.index)
                sequence.calls[part.index] = part if before is None else _more(before, part)
            sequence.has_ended |= chunk.finish_reason is not None

    @property
    def is_over(self) -> bool:
        """True once all was repeated."""
        return all(sequence.is_repeated for sequence in self._sequences.values())

    def rest(self, chunk: Chunk) -> Chunk | None:
        """Return what of `chunk` was not handed out yet, None where all was; raises RouterLost where they differ."""
        sequence = self._sequences[chunk.index]
        num_tokens = min(len(chunk.token_ids), len(sequence.token_ids))
        num_chars = min(len(chunk.text), len(sequence.text))
        num_thought = min(len(chunk.reasoning), len(sequence.reasoning))
        calls = tuple(part for each in chunk.tool_calls if (part := sequence.rest_of_call(each)) is not None)
        is_more_text = len(chunk.text) > num_chars or len(chunk.reasoning) > num_thought
        is_new = len(chunk.token_ids) > num_tokens or is_more_text or bool(calls)
        if (
            chunk.token_ids[:num_tokens] != sequence.token_ids[:num_tokens]
            or chunk.text[:num_chars] != sequence.text[:num_chars]
            or chunk.reasoning[:num_thought] != sequence.reasoning[:num_thought]
            or (is_new and sequence.has_ended)
        ):
            raise _differs()
        sequence.token_ids = sequence.token_ids[num_tokens:]
        sequence.text = sequence.text[num_chars:]
        sequence.reasoning = sequence.reasoning[num_thought:]
        if not is_new and (chunk.finish_reason is None or sequence.has_ended):
            return None
        return dataclasses.replace(
            chunk,
            text=chunk.text[num_chars:],
            token_ids=chunk.token_ids[num_tokens:],
            logprobs=chunk.logprobs[num_tokens:],
            tool_calls=calls,
            reasoning=chunk.reasoning[num_thought:],
        )


def _more(before: ToolCallPart, part: ToolCallPart) -> ToolCallPart:
    return dataclasses.replace(before, arguments=before.arguments + part.arguments)


def _differs() -> RouterLost:
    return RouterLost("the router went away, and another's answer is not the one that it had begun")
