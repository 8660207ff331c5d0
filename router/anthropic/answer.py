"""A message as it is answered, whole or as server-sent events.

Values in, JSON-ready dictionaries and bytes out; no I/O. Invariant: what a stream's events add up to is the message
that is answered whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.core.errors import EngineFailed, PagewireError, UnsupportedField, status_of
from pagewire.core.sampling import FinishReason
from pagewire.router import sse
from pagewire.router.answers import error_body, ours
from pagewire.router.anthropic.blocks import ContentBlocks
from pagewire.router.events import Begun, Chunk, Event, Finished
from pagewire.router.openai import Call

Json = dict[str, Any]
_REASONS = {FinishReason.LENGTH: "max_tokens", FinishReason.TOOL_CALLS: "tool_use"}


_KINDS = {404: "not_found_error", 500: "api_error", 503: "overloaded_error"}  # where OpenAI has other words
# By fields that are not supported, what Anthropic's package knows it by: without a thread it says all again.
_DETAILS: dict[str, Json] = {"thread": {"error_code": "thread_unsupported_request", "unsupported": []}}


def message_error(error: PagewireError) -> Json:
    """Return the error object of `error` in Anthropic's words."""
    body = error_body(error)
    body["error"]["type"] = _KINDS.get(status_of(error).http, body["error"]["type"])
    if isinstance(error, UnsupportedField) and error.field in _DETAILS:
        body["error"]["details"] = _DETAILS[error.field]
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAnswer:
    """Writes one message. `created` is told nowhere."""

    call: Call
    model: str
    created: int

    def whole(self, chunks: Sequence[Chunk], finished: Sequence[Finished]) -> Json:
        """Return the message of a request that does not stream."""
        content = ContentBlocks()
        for chunk in chunks:
            content.take(chunk)
        content.finish()
        usage = _usage(finished[0])
        return {**self.head(usage), "content": content.blocks, **self.stop(finished[0]), **ours(self.call, finished)}

    def head(self, usage: Json) -> Json:
        """Return a message that says nothing yet."""
        return {
            "id": f"msg_{self.call.ask.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def stop(self, finished: Finished) -> Json:
        """Return why a message ended."""
        (ending,) = finished.endings
        reason = _REASONS.get(ending.word, "end_turn" if ending.stop_text is None else "stop_sequence")
        was_shortened = finished.report is not None and bool(finished.report.notes)  # under pressure, and it says so
        if reason == "max_tokens" and finished.usage.completion_tokens < (self.call.ask.max_tokens or 0):
            reason = reason if was_shortened else "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": ending.stop_text if reason == "stop_sequence" else None}


class MessageStream:
    """What of one message was sent, and what comes next. `is_over` once all was."""

    def __init__(self, answer: MessageAnswer) -> None:
        self.is_over = False
        self._answer = answer
        self._content = ContentBlocks()
        self._opening = b""  # goes out with the next part

    def take(self, event: Event) -> bytes:
        """Return what goes out now that this event came; raises EngineFailed where it ends without an answer."""
        if isinstance(event, Begun):
            message = self._answer.head(_counted(len(event.prompt), 0))
            self._opening = _written([{"type": "message_start", "message": message}])
            return b""
        told = self._content.take(event) if isinstance(event, Chunk) else self._end(event)
        part, self._opening = self._opening + _written(told), b""
        return part

    def broken(self, error: PagewireError) -> bytes:
        """Return how it ends in an error."""
        return self._opening + _written([message_error(error)])

    def _end(self, finished: Finished) -> list[Json]:
        if not finished.endings:
            raise EngineFailed("the request ended without an answer")
        told = self._content.finish()
        self.is_over = True
        delta = {"type": "message_delta", "delta": self._answer.stop(finished), "usage": _usage(finished)}
        return [*told, delta | ours(self._answer.call, [finished]), {"type": "message_stop"}]


def _usage(finished: Finished) -> Json:
    usage = finished.usage
    counted = _counted(usage.prompt_tokens - usage.cached_tokens, usage.completion_tokens, usage.cached_tokens)
    if usage.reasoning_tokens is not None:
        counted["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return counted


def _counted(prompt: int, completion: int, cached: int = 0) -> Json:
    """Return so many tokens as usage, of a prompt those that were not `cached`."""
    return {
        "input_tokens": prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": completion,
    }


def _written(told: Iterable[Json]) -> bytes:
    return b"".join(b"event: " + event["type"].encode() + b"\n" + sse.event(event) for event in told)
