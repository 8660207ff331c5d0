"""Answers in the OpenAI API's shapes: whole responses, stream chunks, errors, the list of models.

Pure: values in, JSON-ready dictionaries out. The `pagewire` object of an answer holds its timeline and report, where
the caller asked for them, and in any case what was done otherwise than asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.core.errors import InvalidRequest, PagewireError, status_of
from pagewire.router import answer_logprobs
from pagewire.router.openai import Call
from pagewire.router.request import Chunk, Ending, Finished, ScoredToken

_ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "service_unavailable", 504: "timeout_error"}

Json = dict[str, Any]


def error_body(error: PagewireError) -> Json:
    """Return OpenAI's error object for `error`."""
    http = status_of(error).http
    kind = _ERROR_TYPES.get(http, "invalid_request_error" if http < 500 else "server_error")
    param = error.field or None if isinstance(error, InvalidRequest) else None
    return {"error": {"message": error.message, "type": kind, "param": param, "code": error.cause}}


def models_body(model: str, max_model_len: int, created: int) -> Json:
    """Return the list of the one model that is served."""
    entry = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "pagewire",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
    }
    return {"object": "list", "data": [entry]}


def pagewire_object(request_id: str, finished: Finished) -> Json:
    """Return where the request ran, what it cost and when; only stamps of one process may be subtracted."""
    return {
        "request_id": request_id,
        "attempts": finished.attempts,
        "predicted_cached_tokens": finished.predicted_cached_tokens,
        "report": dataclasses.asdict(finished.report) if finished.report is not None else None,
        "timelines": [
            {
                "process": timeline.process,
                "stamps": [{"phase": stamp.phase.value, "at_s": stamp.at_s} for stamp in timeline.stamps],
            }
            for timeline in finished.timelines
        ],
    }


def _notes(finished: Finished) -> Json:
    """Return what an answer holds of ours though nobody asked: that something was done otherwise than asked."""
    notes = finished.report.notes if finished.report is not None else ()
    return {"pagewire": {"notes": list(notes)}} if notes else {}


def _usage(finished: Finished) -> Json:
    usage = finished.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Writes one answer. `created` is its Unix time in seconds."""

    call: Call
    model: str
    created: int

    def whole(self, chunks: Sequence[Chunk], finished: Finished) -> Json:
        """Return the response of a request that does not stream."""
        choices = [
            self._choice(index, [chunk for chunk in chunks if chunk.index == index], ending, finished)
            for index, ending in enumerate(finished.endings)
        ]
        body = {**self._head("chat.completion"), "choices": choices, "usage": _usage(finished), **_notes(finished)}
        if self.call.with_timeline:
            body["pagewire"] = pagewire_object(self.call.ask.request_id, finished)
        return body

    def _choice(self, index: int, chunks: Sequence[Chunk], ending: Ending, finished: Finished) -> Json:
        text = (finished.echo or "") + "".join(chunk.text for chunk in chunks)
        choice: Json = {
            "index": index,
            "logprobs": self._logprobs(chunks, finished.prompt_logprobs if finished.echo is not None else ()),
            "finish_reason": ending.finish_reason.value,
            "stop_reason": ending.stop_reason,
        }
        if self.call.is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        if self.call.with_token_ids:
            choice["token_ids"] = [token for chunk in chunks for token in chunk.token_ids]
            choice["prompt_token_ids"] = list(finished.prompt)
        if ending.score is not None:
            choice |= {"cumulative_logprob": ending.cumulative_logprob, "score": ending.score}
        if finished.prompt_logprobs and finished.echo is None:
            choice["prompt_logprobs"] = answer_logprobs.prompt(finished.prompt_logprobs)
        return choice

    def opening(self) -> list[Json]:
        """Return what a stream begins with: a chat names the role, for each choice."""
        if not self.call.is_chat:
            return []
        delta = {"delta": {"role": "assistant", "content": ""}}
        return [self._chunk(delta, index) for index in range(self.call.ask.n or 1)]

    def chunk(self, chunk: Chunk) -> list[Json]:
        """Return the stream's part for new output; nothing where the caller would see nothing."""
        shows_tokens = self.call.with_token_ids or self.call.ask.logprobs is not None
        if not chunk.text and not (shows_tokens and chunk.token_ids):
            return []
        choice: Json = {"delta": {"content": chunk.text}} if self.call.is_chat else {"text": chunk.text}
        choice["logprobs"] = self._logprobs([chunk])
        if self.call.with_token_ids:
            choice["token_ids"] = list(chunk.token_ids)
        return [self._chunk(choice, chunk.index)]

    def end(self, last: Chunk, finished: Finished | None = None) -> Json:
        """Return how a choice ends in a stream, after its `last` chunk; `finished` if the request ends with it."""
        choice: Json = {"delta": {}} if self.call.is_chat else {"text": ""}
        if last.ending is not None:
            choice |= {"finish_reason": last.ending.finish_reason.value, "stop_reason": last.ending.stop_reason}
        if self.call.with_token_ids:
            choice["token_ids"] = []
            if finished is not None:
                choice["prompt_token_ids"] = list(finished.prompt)
        return self._chunk(choice, last.index)

    def closing(self, last: Chunk, finished: Finished) -> list[Json]:
        """Return how a stream ends: the end of the choice that took longest, then usage if asked for.

        The last part carries `pagewire`.
        """
        parts = [self.end(last, finished)]
        if self.call.with_usage:
            parts.append({**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(finished)})
        parts[-1] |= _notes(finished)
        if self.call.with_timeline:
            parts[-1]["pagewire"] = pagewire_object(self.call.ask.request_id, finished)
        return parts

    def _logprobs(self, chunks: Sequence[Chunk], prompt: tuple[ScoredToken, ...] = ()) -> Json | None:
        if self.call.ask.logprobs is None:
            return None
        tokens = [*prompt, *(token for chunk in chunks for token in chunk.logprobs)]
        if self.call.is_chat:
            return answer_logprobs.chat(tokens)
        return answer_logprobs.completion(tokens, chunks[0].offset if chunks else 0)

    def _chunk(self, choice: Json, index: int) -> Json:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **choice}
        body = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**body, "usage": None} if self.call.with_usage else body

    def _head(self, chat_object: str) -> Json:
        prefix, kind = ("chatcmpl", chat_object) if self.call.is_chat else ("cmpl", "text_completion")
        return {
            "id": f"{prefix}-{self.call.ask.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }
