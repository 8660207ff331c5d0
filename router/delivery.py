"""A request's events as its caller gets them: calls found in the text, and tokens gathered to chunks of some size.

Knows values, does no I/O; the same for all front doors. Invariant: what is handed out, put together, is what came in.
"""

from __future__ import annotations

from dataclasses import replace

from pagewire.router.events import Chunk, Event
from pagewire.router.tool_desk import CallFinder
from pagewire.text.tools.reader import CallPart


class Delivery:
    """The events of one request. After an answer's first token its chunks have `interval` tokens at least, but for the
    last one.
    """

    def __init__(self, finder: CallFinder | None, interval: int = 1) -> None:
        self._finder = finder
        self._interval = interval
        self._held: dict[int, Chunk | None] = {}  # by answer, once it has begun

    def take(self, event: Event) -> Event | None:
        """Return what to hand out now that this event came, None for nothing yet."""
        if self._finder is not None:
            event = self._finder.found(event)
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
    return replace(
        first,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        ending=second.ending,
        calls=_joined_calls(first.calls, second.calls),
    )


def _joined_calls(first: tuple[CallPart, ...], second: tuple[CallPart, ...]) -> tuple[CallPart, ...]:
    # One piece of a call at most: of the last one of `first` there may be more in `second`.
    if not (first and second and first[-1].index == second[0].index):
        return first + second
    more = replace(first[-1], arguments=first[-1].arguments + second[0].arguments)
    return (*first[:-1], more, *second[1:])
