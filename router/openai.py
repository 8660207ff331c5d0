"""The OpenAI API's shapes: what a body may hold, what it asks of us, and what we answer.

Knows JSON and `Ask`; nothing of HTTP or pods. A field is honoured, ignored, known and refused by name, or unknown: then
it is ignored and counted. Fields that hold many values are read in `long_fields.py`, the others by the schemas here,
which see single values only. Checks of values are in `validation.py`, the same for all front doors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.router import long_fields
from pagewire.router.request import Ask

# Fields that are about the caller's bookkeeping, or about our insides, which no caller may steer.
IGNORED = frozenset(
    (
        "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "session_id",
        "service_tier", "priority", "parallel_tool_calls", "kv_transfer_params", "request_id", "verbosity",
    )
)  # fmt: skip
# Known and not honoured: refused by name, but for the values that ask for nothing.
REFUSED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "logit_bias": ({},),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "reasoning_effort": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "return_tokens_as_token_ids": (False,),
    "stream_interval": (1,),
    "vllm_xargs": ({},),
    "prompt_embeds": (),
}


class _Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class StreamOptions(_Schema):
    """`stream_options` of a streaming request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Wishes(_Schema):
    """The request field `pagewire`: what of our own to answer with."""

    timeline: bool | None = None


class _Body(_Schema):
    """What both endpoints take."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Any = None
    stop_token_ids: Any = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    pagewire: Wishes | None = None


class CompletionBody(_Body):
    """Body of /v1/completions."""

    prompt: Any = None


class ChatBody(_Body):
    """Body of /v1/chat/completions."""

    messages: Any = None
    max_completion_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A parsed body: what is asked, and the form of the answer."""

    ask: Ask
    is_chat: bool
    is_streaming: bool = False
    with_usage: bool = False
    with_token_ids: bool = False
    with_timeline: bool = False
    unknown_fields: tuple[str, ...] = ()


def parse(data: bytes, *, is_chat: bool, request_id: str, with_timeline: bool = False) -> Call:
    """Read a body; raises InvalidRequest or UnsupportedField, which name the field."""
    raw = _json_object(data)
    for name, allowed in REFUSED.items():
        value = raw.get(name)
        if value is not None and not any(_same(value, each) for each in allowed):
            raise UnsupportedField(f"{name} is not supported: leave it out{_or(allowed)}", field=name)
    try:
        body: ChatBody | CompletionBody = (
            ChatBody.model_validate(raw) if is_chat else CompletionBody.model_validate(raw)
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = [str(part) for part in first["loc"]]
        raise InvalidRequest(f"{'.'.join(path)}: {first['msg']}", field=path[0] if path else "") from error
    options = body.stream_options
    if options is not None and not body.stream:
        raise InvalidRequest("stream_options may only be set when stream is true", field="stream_options")
    if options is not None and options.continuous_usage_stats:
        raise UnsupportedField("stream_options.continuous_usage_stats is not supported", field="stream_options")
    return Call(
        ask=_chat_ask(body, request_id) if isinstance(body, ChatBody) else _completion_ask(body, request_id),
        is_chat=is_chat,
        is_streaming=bool(body.stream),
        with_usage=options is not None and bool(options.include_usage),
        with_token_ids=bool(body.return_token_ids),
        with_timeline=with_timeline or (body.pagewire is not None and bool(body.pagewire.timeline)),
        unknown_fields=tuple(sorted(set(body.model_extra or ()) - IGNORED - set(REFUSED))),
    )


def _json_object(data: bytes) -> Mapping[str, Any]:
    try:
        raw = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: {error.reason} at byte {error.start}", field="body") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply", field="body") from error
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}", field="body") from error
    if not isinstance(raw, dict):
        raise InvalidRequest("the body is not a JSON object", field="body")
    return raw


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _same(value: object, allowed: object) -> bool:
    # True == 1 in Python, and not in JSON.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _or(allowed: tuple[object, ...]) -> str:
    return f", or set it to {json.dumps(allowed[0])}" if allowed else ""


def _common(body: _Body) -> dict[str, Any]:
    return {
        "model": body.model or "",
        "temperature": body.temperature,
        "top_p": body.top_p,
        # -1 is vLLM's way to say off
        "top_k": 0 if body.top_k == -1 else body.top_k,
        "min_p": body.min_p,
        "seed": body.seed,
        "stop": long_fields.stop(body.stop),
        "stop_token_ids": long_fields.stop_token_ids(body.stop_token_ids),
        "ignore_eos": bool(body.ignore_eos),
        "cache_salt": body.cache_salt,
    }


def _completion_ask(body: CompletionBody, request_id: str) -> Ask:
    if "messages" in (body.model_extra or {}):
        raise InvalidRequest("exactly one form of prompt is needed, got prompt and messages", field="messages")
    prompt = long_fields.prompt(body.prompt)
    return Ask(
        request_id=request_id,
        text=prompt if isinstance(prompt, str) else None,
        token_ids=prompt if isinstance(prompt, tuple) else None,
        max_tokens=body.max_tokens,
        **_common(body),
    )


def _chat_ask(body: ChatBody, request_id: str) -> Ask:
    if "prompt" in (body.model_extra or {}):
        raise InvalidRequest("exactly one form of prompt is needed, got messages and prompt", field="prompt")
    return Ask(
        request_id=request_id,
        messages=long_fields.messages(body.messages),
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        **_common(body),
    )
