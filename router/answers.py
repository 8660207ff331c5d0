"""Answers in the OpenAI API's shapes: whole responses, stream chunks, errors, the list of models.

Values in, JSON-ready dictionaries out. The `pagewire` object of an answer holds its timeline and report, where the
caller asked for them, and in any case what was done otherwise than asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pagewire.core.errors import InvalidRequest, PagewireError, status_of
from pagewire.core.sampling import FinishReason
from pagewire.router import answer_logprobs
from pagewire.router.events import Begun, Chunk, Ending, Event, Finished, ScoredToken
from pagewire.router.explanation import explanation_object
from pagewire.router.openai import Call
from pagewire.router.validation import Limits
from pagewire.text.tools.reader import CallPart

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable",
    504: "timeout_error",
}

Json = dict[str, Any]


def error_body(error: PagewireError) -> Json:
    """Return OpenAI's error object for `error`, where Anthropic's clients look for theirs too."""
    http = status_of(error).http
    kind = _ERROR_TYPES.get(http, "invalid_request_error" if http < 500 else "server_error")
    param = error.field or None if isinstance(error, InvalidRequest) else None
    return {"type": "error", "error": {"message": error.message, "type": kind, "param": param, "code": error.cause}}


def models_body(served: Iterable[Limits], created: int) -> Json:
    """Return the list of the models that are served, each with its adapters behind it: OpenAI's, and Anthropic's in one
    page.
    """
    names = [(limits, name) for limits in served for name in (limits.model, *limits.adapters)]
    models = [model_body(limits, created, name) for limits, name in names]
    page = {"has_more": False, "first_id": models[0]["id"], "last_id": models[-1]["id"]}
    return {"object": "list", "data": models, **page}


def model_body(limits: Limits, created: int, name: str) -> Json:
    """Return what is said of one model, or of an adapter of it, in OpenAI's words and in Anthropic's."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": created,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "owned_by": "pagewire",
        "root": limits.model,
        "parent": None if name == limits.model else limits.model,
        "max_model_len": limits.max_model_len,
        "max_input_tokens": limits.max_model_len,
        "max_tokens": limits.max_model_len - 1,  # behind a prompt of one
        "permission": [],
    }


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


def ours(call: Call, finished: Sequence[Finished]) -> Json:
    """Return what an answer holds of ours: notes, though nobody asked, and what was asked, prompt by prompt."""
    objects = [_of_one(call, each) for each in finished]
    told: Json = objects[0] if len(objects) == 1 else {"prompts": objects} if any(objects) else {}
    if not call.with_timeline:  # or the reports hold them
        notes = dict.fromkeys(note for each in finished if each.report is not None for note in each.report.notes)
        told |= {"notes": list(notes)} if notes else {}
    return {"pagewire": told} if told else {}


def _of_one(call: Call, finished: Finished) -> Json:
    """Return where and when one prompt ran, and why there: what of it was asked for."""
    told = pagewire_object(call.ask.request_id, finished) if call.with_timeline else {}
    if finished.explanation is not None:
        told["explanation"] = explanation_object(finished.explanation)
    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Writes one answer, to one prompt or several. `created` is its Unix time in seconds."""

    call: Call
    model: str
    created: int

    def whole(self, chunks: Sequence[Chunk], finished: Sequence[Finished]) -> Json:
        """Return the response of a request that does not stream; `finished` are in the order of the prompts."""
        if self.call.is_score:
            chunks = ()
        of_index: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            of_index.setdefault(chunk.index, []).append(chunk)
        choices = [
            self._choice(index, of_index.get(index, []), ending, each)
            for each in finished
            for index, ending in enumerate(each.endings, start=each.first_index)
        ]
        return {
            **self._head("chat.completion"),
            **self._of_prompt(finished[0])[0],
            "choices": choices,
            "usage": self._usage(finished),
            **ours(self.call, finished),
        }

    def _choice(self, index: int, chunks: Sequence[Chunk], ending: Ending, finished: Finished) -> Json:
        text = (finished.echo or "") + "".join(chunk.text for chunk in chunks)
        choice: Json = {
            "index": index,
            "logprobs": self._logprobs(chunks, finished.prompt_logprobs if finished.echo is not None else ()),
            **self._reason(ending),
        }
        if self.call.is_chat:
            choice["message"] = self._message(text, chunks, ending)
        else:
            choice["text"] = text
        if self.call.with_token_ids:
            choice["token_ids"] = [token for chunk in chunks for token in chunk.token_ids]
        if ending.score is not None:
            choice |= {"cumulative_logprob": ending.cumulative_logprob, "score": ending.score}
        return choice | self._of_prompt(finished)[1]

    def _of_prompt(self, event: Begun | Finished) -> tuple[Json, Json]:
        """Return what is told of a prompt with the answer, and with each choice, where vLLM has it."""
        told: Json = {"prompt_token_ids": list(event.prompt)} if self.call.with_token_ids else {}
        if event.prompt_logprobs and self.call.with_prompt_logprobs:
            told["prompt_logprobs"] = answer_logprobs.prompt(event.prompt_logprobs)
        return (told, {}) if self.call.is_chat else ({}, told)

    def _reason(self, ending: Ending) -> Json:
        if self.call.is_score:
            return {"finish_reason": FinishReason.LENGTH, "stop_reason": None}
        is_function = self.call.has_functions and ending.word is FinishReason.TOOL_CALLS
        return {"finish_reason": "function_call" if is_function else ending.word, "stop_reason": ending.stop_reason}

    def _message(self, text: str, chunks: Sequence[Chunk], ending: Ending) -> Json:
        reasoning = "".join(chunk.reasoning for chunk in chunks)
        message: Json = {"role": "assistant", "content": text, "refusal": None, **_reasoning(reasoning)}
        calls: dict[int, CallPart] = {}
        for part in (part for chunk in chunks for part in chunk.calls) if ending.has_calls else ():
            before = calls.get(part.index)
            calls[part.index] = part if before is None else replace(before, arguments=before.arguments + part.arguments)
        if calls:
            message |= {"content": text or None, **self._call_parts(calls.values())}
            for call in message.get("tool_calls", ()):
                del call["index"]
        return message

    def _call_parts(self, parts: Iterable[CallPart]) -> Json:
        """Return pieces of calls as a stream has them: the first one of each has an id and the name."""
        told = []
        for part in parts:
            function = {"name": part.name, "arguments": part.arguments} if part.name else {"arguments": part.arguments}
            if self.call.has_functions:
                return {"function_call": function}  # the only one
            told.append(
                {
                    "index": part.index,
                    **({"id": part.id, "type": "function"} if part.name else {}),
                    "function": function,
                }
            )
        return {"tool_calls": told}

    def prompt_of(self, event: Event) -> int:
        """Return the place of the prompt that an event is about."""
        index = event.index if isinstance(event, Chunk) else event.first_index
        return index // (self.call.ask.n or 1)

    def opening(self, begun: Begun, usage: Json | None = None) -> list[Json]:
        """Return what the stream of a prompt's choices begins with: a chat's role, and what is told of the prompt.

        `usage` is what every part of a stream has of it, here and below.
        """
        of_all, of_choice = self._of_prompt(begun)
        if not self.call.is_chat and not of_choice and begun.echo is None:
            return []
        said: Json = (
            {"delta": {"role": "assistant", "content": ""}} if self.call.is_chat else {"text": begun.echo or ""}
        )
        if self.call.with_token_ids:
            said["token_ids"] = []
        if begun.echo is not None:
            said["logprobs"] = self._logprobs([], begun.prompt_logprobs)
        choices = range(begun.first_index, begun.first_index + (self.call.ask.n or 1))
        parts = [self._chunk({**said, **of_choice}, index, usage) for index in choices]
        parts[0] |= of_all
        return parts

    @property
    def is_text_alone(self) -> bool:
        """True where of a stream's chunks nothing is told but their text: they differ in nothing else."""
        call = self.call
        return not (call.with_token_ids or call.ask.logprobs is not None or call.with_running_usage or call.is_score)

    def chunk(self, chunk: Chunk, usage: Json | None = None) -> list[Json]:
        """Return the stream's part for new output; nothing where the caller would see nothing."""
        shows_tokens = self.call.with_token_ids or self.call.ask.logprobs is not None
        is_seen = chunk.text or chunk.calls or chunk.reasoning or (shows_tokens and chunk.token_ids)
        if self.call.is_score or not is_seen:
            return []
        choice: Json = {"delta": {"content": chunk.text}} if self.call.is_chat else {"text": chunk.text}
        if chunk.calls or chunk.reasoning:
            choice["delta"] = _reasoning(chunk.reasoning) | ({"content": chunk.text} if chunk.text else {})
            choice["delta"] |= self._call_parts(chunk.calls) if chunk.calls else {}
        choice["logprobs"] = self._logprobs([chunk])
        if self.call.with_token_ids:
            choice["token_ids"] = list(chunk.token_ids)
        return [self._chunk(choice, chunk.index, usage)]

    def end(self, last: Chunk, usage: Json | None = None) -> Json:
        """Return how a choice ends in a stream, after its `last` chunk."""
        choice: Json = {"delta": {}} if self.call.is_chat else {"text": ""}
        if last.ending is not None:
            choice |= self._reason(last.ending)
        if self.call.with_token_ids:
            choice["token_ids"] = []
        return self._chunk(choice, last.index, usage)

    def closing(self, last: Chunk, finished: Sequence[Finished], usage: Json | None = None) -> list[Json]:
        """Return how a stream ends: the end of the choice that took longest, then usage if asked for.

        `finished` are in the order of the prompts' ends. The last part carries `pagewire`.
        """
        parts = [self.end(last, usage)]
        if self.call.with_usage:
            parts.append({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage(finished)})
        parts[-1] |= ours(self.call, sorted(finished, key=lambda each: each.first_index))
        return parts

    def _usage(self, finished: Sequence[Finished]) -> Json:
        usages = [each.usage for each in finished]
        counts = (sum(usage.prompt_tokens for usage in usages), sum(usage.completion_tokens for usage in usages))
        reasoned = [usage.reasoning_tokens for usage in usages if usage.reasoning_tokens is not None]
        return {
            **self.counted(*counts),
            "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages)},
            **({"completion_tokens_details": {"reasoning_tokens": sum(reasoned)}} if reasoned else {}),
        }

    def counted(self, prompt: int, completion: int) -> Json:
        """Return so many tokens as usage. What a score generates is not asked for, and not counted."""
        completion = 0 if self.call.is_score else completion
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _logprobs(self, chunks: Sequence[Chunk], prompt: tuple[ScoredToken, ...] = ()) -> Json | None:
        if self.call.ask.logprobs is None:
            return None
        tokens = [*prompt, *(token for chunk in chunks for token in chunk.logprobs)]
        if self.call.is_chat:
            return answer_logprobs.chat(tokens, self._name)
        return answer_logprobs.completion(tokens, self._name)

    def _name(self, token: ScoredToken) -> str:
        return f"token_id:{token.token_id}" if self.call.shows_ids else token.text

    def _chunk(self, choice: Json, index: int, usage: Json | None) -> Json:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **choice}
        body = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**body, "usage": usage} if self.call.with_usage else body

    def _head(self, chat_object: str) -> Json:
        prefix, kind = ("chatcmpl", chat_object) if self.call.is_chat else ("cmpl", "text_completion")
        return {
            "id": f"{prefix}-{self.call.ask.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def _reasoning(text: str) -> Json:
    """Return reasoning by both of its names: OpenAI's advice and vLLM's, and DeepSeek's, which older clients read."""
    return {"reasoning": text, "reasoning_content": text} if text else {}
