"""One answer on its way out: its events, in the order in which they come, as bytes.

Knows `Answer` and server-sent events, does no I/O. Invariants: of each choice an opening comes first where it has one,
then its chunks, then its end; usage, where every part has it, counts what was sent up to there.
"""

from __future__ import annotations

from typing import Any

from pagewire.core.errors import EngineFailed, PagewireError
from pagewire.router import sse
from pagewire.router.answers import Answer, error_body
from pagewire.router.events import Begun, Chunk, Event, Finished


class AnswerStream:
    """What of one answer was sent, and what comes next. `is_over` once all was."""

    def __init__(self, answer: Answer) -> None:
        self.is_over = False
        self._answer = answer
        # No choice's end waits while another's chunk comes, and none counts those before: most are their text alone.
        call = answer.call
        self._is_plain = len(call.asks) == 1 and (call.ask.n or 1) == 1 and answer.is_text_alone
        self._written = sse.Events(answer)
        self._opening = b""  # goes out with the next part
        self._held: dict[int, Chunk] = {}  # by prompt, a choice's last chunk whose end was not told yet
        self._finished: list[Finished] = []
        self._num_prompt = 0
        self._num_output = 0

    def take(self, event: Event) -> bytes:
        """Return what goes out now that this event came; raises EngineFailed where a request ends without an answer."""
        if self._is_plain and isinstance(event, Chunk) and event.ending is None and not self._opening:
            return self._written.chunk(event)
        if isinstance(event, Begun):
            self._begin(event)
            return b""
        part = self._chunk(event) if isinstance(event, Chunk) else self._end(event)
        if part and self._opening:
            part, self._opening = self._opening + part, b""
        return part

    def broken(self, error: PagewireError) -> bytes:
        """Return how it ends in an error."""
        return sse.event(error_body(error)) + sse.DONE

    def _begin(self, begun: Begun) -> None:
        self._num_prompt += len(begun.prompt)
        self._opening += sse.events(self._answer.opening(begun, self._usage()))

    def _chunk(self, chunk: Chunk) -> bytes:
        # A choice's end waits for the next event of its prompt: with the last one comes what is known only then.
        prompt = self._answer.prompt_of(chunk)
        last = self._held.pop(prompt, None)
        before = sse.event(self._answer.end(last, self._usage())) if last is not None else b""
        self._num_output += len(chunk.token_ids)
        if chunk.ending is not None:
            self._held[prompt] = chunk
        return before + self._written.chunk(chunk, self._usage())

    def _end(self, finished: Finished) -> bytes:
        last = self._held.pop(self._answer.prompt_of(finished), None)
        if last is None:
            raise EngineFailed("the request ended without an answer")
        self._finished.append(finished)
        if len(self._finished) < len(self._answer.call.asks):
            return sse.event(self._answer.end(last, self._usage()))
        self.is_over = True
        return sse.events(self._answer.closing(last, self._finished, self._usage())) + sse.DONE

    def _usage(self) -> dict[str, Any] | None:
        if not self._answer.call.with_running_usage:
            return None
        return self._answer.counted(self._num_prompt, self._num_output)
