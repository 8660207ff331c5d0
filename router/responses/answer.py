"""A response as it is answered, whole or as server-sent events.

Values in, JSON-ready dictionaries and bytes out; no I/O. Invariant: the response that a stream ends with is that which
is answered whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.core.errors import EngineFailed, PagewireError
from pagewire.core.sampling import FinishReason
from pagewire.router import answer_logprobs, sse
from pagewire.router.answers import error_body, ours
from pagewire.router.events import Begun, Chunk, Event, Finished, ScoredToken
from pagewire.router.openai import Call
from pagewire.router.responses.items import OutputItems

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseAnswer:
    """Writes one response. `created` is its Unix time in seconds."""

    call: Call
    model: str
    created: int

    def whole(self, chunks: Sequence[Chunk], finished: Sequence[Finished]) -> Json:
        """Return the response of a request that does not stream."""
        items = self.items()
        for chunk in chunks:
            items.take(chunk)
        items.finish(_last_status(finished[0]))
        return self.response(items, finished[0])

    def items(self) -> OutputItems:
        """Return the output, of which there is nothing yet."""
        return OutputItems(self.call.ask.request_id, self._entries)

    def response(self, items: OutputItems, finished: Finished | None = None) -> Json:
        """Return the response, one that is under way where nothing is `finished`."""
        status = "in_progress" if finished is None else _status(finished)
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{self.call.ask.request_id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": incomplete,
            "model": self.model,
            "output": items.items,
            "previous_response_id": None,
            "store": False,
            "usage": None if finished is None else _usage(finished),
            **self.call.echoed,
            **({} if finished is None else ours(self.call, [finished])),
        }

    def _entries(self, tokens: Sequence[ScoredToken]) -> list[Json]:
        entries: list[Json] = answer_logprobs.chat(tokens, lambda token: token.text)["content"]
        return entries


class ResponseStream:
    """What of one response was sent, and what comes next. `is_over` once all was."""

    def __init__(self, answer: ResponseAnswer) -> None:
        self.is_over = False
        self._answer = answer
        self._items = answer.items()
        self._num_told = 0
        self._opening = b""  # goes out with the next part

    def take(self, event: Event) -> bytes:
        """Return what goes out now that this event came; raises EngineFailed where it ends without an answer."""
        if isinstance(event, Begun):
            response = self._answer.response(self._items)
            kinds = ("response.created", "response.in_progress")
            self._opening = self._written({"type": kind, "response": response} for kind in kinds)
            return b""
        told = self._items.take(event) if isinstance(event, Chunk) else self._end(event)
        part, self._opening = self._opening + self._written(told), b""
        return part

    def broken(self, error: PagewireError) -> bytes:
        """Return how it ends in an error."""
        body = error_body(error)
        told = {name: body["error"][name] for name in ("code", "message", "param")}
        return self._opening + self._written([{"type": "error", **told, **body}])

    def _end(self, finished: Finished) -> list[Json]:
        if not finished.endings:
            raise EngineFailed("the request ended without an answer")
        told = self._items.finish(_last_status(finished))
        self.is_over = True
        response = self._answer.response(self._items, finished)
        return [*told, {"type": f"response.{response['status']}", "response": response}]

    def _written(self, told: Iterable[Json]) -> bytes:
        written = b""
        for event in told:
            data = sse.event({**event, "sequence_number": self._num_told})
            written += b"event: " + event["type"].encode() + b"\n" + data
            self._num_told += 1
        return written


def _status(finished: Finished) -> str:
    return "incomplete" if finished.endings[0].finish_reason is FinishReason.LENGTH else "completed"


def _last_status(finished: Finished) -> str:
    """Return the status of the last item: a call that a stop string cuts off is not to be run."""
    return "incomplete" if finished.endings[0].is_within_call else _status(finished)


def _usage(finished: Finished) -> Json:
    usage = finished.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
