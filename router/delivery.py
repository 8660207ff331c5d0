"""A request's events as its caller gets them: reasoning and calls found in the text, and tokens gathered to chunks of
some size.

Knows values, does no I/O; the same for all front doors. Invariant: what is handed out, put together, is what came in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from pagewire.router.events import Chunk, Event, Finished
from pagewire.text.tools.reader import joined as joined_calls


class Finder(Protocol):
    """Finds something in the text of one request's answers."""

    def chunk(self, chunk: Chunk) -> Chunk:
        """Return a chunk with what was found in it, and the rest of its text."""
        ...

    def finished(self, finished: Finished) -> Finished:
        """Return the last event with what is known of all that was found."""
        ...


class Delivery:
    """The events of one request, with what each of `finders` finds in what the one before it left. After an answer's
    first token its chunks have `interval` tokens at least, but for the last one.
    """

    def __init__(self, finders: Iterable[Finder], interval: int = 1) -> None:
        self._finders = tuple(finders)
        self._interval = interval
        self._held: dict[int, Chunk | None] = {}  # by answer, once it has begun

    def take(self, event: Event) -> Event | None:
        """Return what to hand out now that this event came, None for nothing yet."""
        for finder in self._finders:
            if isinstance(event, Chunk):
                event = finder.chunk(event)
            elif isinstance(event, Finished):
                event = finder.finished(event)
        return self._gathered(event) if self._interval > 1 and isinstance(event, Chunk) else event

    def _gathered(self, chunk: Chunk) -> Chunk | None:
        is_first = chunk.index not in self._held
        held = self._held.get(chunk.index)
        whole = chunk if held is None else joined(held, chunk)
        is_due = is_first or whole.ending is not None or len(whole.token_ids) >= self._interval
        self._held[chunk.index] = None if is_due else whole
        return whole if is_due else None


def joined(first: Chunk, second: Chunk) -> Chunk:
    """Return two chunks of one answer as one."""
    # Reasoning comes first: where it goes on, all before it is of it too, also what nobody knew for its mark yet.
    num_reasoning = len(first.token_ids) + second.num_reasoning if second.num_reasoning else first.num_reasoning
    return replace(
        first,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        ending=second.ending,
        calls=joined_calls(first.calls, second.calls, len(first.text)),
        reasoning=first.reasoning + second.reasoning,
        num_reasoning=num_reasoning,
    )
