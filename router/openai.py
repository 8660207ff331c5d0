"""The OpenAI API's shapes: what a body may hold, what it asks of us, and what we answer.

Knows JSON and `Ask`; nothing of HTTP or pods. A field is honoured, ignored, known and refused by name, or unknown: then
it is ignored and counted. Fields that hold many values are read in `long_fields.py`, grammars in `guided.py`, the
others by the schemas here, which see single values only. Checks of values are in `validation.py`, the same for all
front doors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.core.sampling import MAX_LOGPROBS
from pagewire.router import guided, long_fields
from pagewire.router.request import Ask

# Fields that are about the caller's bookkeeping, or about our insides, which no caller may steer.
IGNORED = frozenset(
    (
        "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "session_id",
        "service_tier", "parallel_tool_calls", "kv_transfer_params", "request_id", "verbosity",
    )
)  # fmt: skip
# Known and not honoured: refused by name, but for the values that ask for nothing.
REFUSED: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "reasoning_effort": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
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
# The other endpoint's.
REFUSED_OF_CHATS: dict[str, tuple[object, ...]] = {"echo": (False,)}
REFUSED_OF_COMPLETIONS: dict[str, tuple[object, ...]] = {"top_logprobs": (0,)}


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
    n: int | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    logit_bias: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    logprobs: int | bool | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    stop: Any = None
    stop_token_ids: Any = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int | None = None
    return_token_ids: bool | None = None
    pagewire: Wishes | None = None


class CompletionBody(_Body):
    """Body of /v1/completions."""

    prompt: Any = None
    echo: bool | None = None


class ChatBody(_Body):
    """Body of /v1/chat/completions."""

    messages: Any = None
    max_completion_tokens: int | None = None
    top_logprobs: int | None = None


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
    for name, allowed in (REFUSED | (REFUSED_OF_CHATS if is_chat else REFUSED_OF_COMPLETIONS)).items():
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
    if (body.n or 1) > 1 and raw.get("best_of") is not None:
        raise InvalidRequest(f"best_of must not be less than n, which is {body.n}", field="best_of")
    if body.stream and (body.prompt_logprobs is not None or (isinstance(body, CompletionBody) and body.echo)):
        field = "echo" if body.prompt_logprobs is None else "prompt_logprobs"
        raise UnsupportedField(f"{field} is not supported in a stream", field=field)
    if body.stream and body.use_beam_search:
        raise UnsupportedField("stream is not supported with use_beam_search: leave it out", field="stream")
    options = body.stream_options
    if options is not None and not body.stream:
        raise InvalidRequest("stream_options may only be set when stream is true", field="stream_options")
    if options is not None and options.continuous_usage_stats:
        raise UnsupportedField("stream_options.continuous_usage_stats is not supported", field="stream_options")
    return Call(
        ask=(
            _chat_ask(body, raw, request_id) if isinstance(body, ChatBody) else _completion_ask(body, raw, request_id)
        ),
        is_chat=is_chat,
        is_streaming=bool(body.stream),
        with_usage=options is not None and bool(options.include_usage),
        with_token_ids=bool(body.return_token_ids),
        with_timeline=with_timeline or (body.pagewire is not None and bool(body.pagewire.timeline)),
        unknown_fields=tuple(sorted(set(body.model_extra or ()) - IGNORED - set(REFUSED) - set(guided.FIELDS))),
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


def _common(body: _Body, raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": body.model or "",
        "n": body.n,
        "use_beam_search": bool(body.use_beam_search),
        "beam_width": body.beam_width,
        "length_penalty": body.length_penalty,
        "early_stopping": body.early_stopping,
        "temperature": body.temperature,
        "top_p": body.top_p,
        # -1 is vLLM's way to say off
        "top_k": 0 if body.top_k == -1 else body.top_k,
        "min_p": body.min_p,
        "typical_p": body.typical_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "min_tokens": body.min_tokens,
        "logit_bias": long_fields.logit_bias(body.logit_bias),
        "allowed_token_ids": long_fields.token_ids("allowed_token_ids", body.allowed_token_ids),
        "bad_words": long_fields.bad_words(body.bad_words),
        "grammar": guided.grammar(raw),
        "seed": body.seed,
        "stop": long_fields.stop(body.stop),
        "stop_token_ids": long_fields.token_ids("stop_token_ids", body.stop_token_ids),
        "ignore_eos": bool(body.ignore_eos),
        "cache_salt": body.cache_salt,
        "priority": body.priority or 0,
    }


def _completion_ask(body: CompletionBody, raw: Mapping[str, Any], request_id: str) -> Ask:
    if "messages" in (body.model_extra or {}):
        raise InvalidRequest("exactly one form of prompt is needed, got prompt and messages", field="messages")
    if body.logprobs is True:
        raise InvalidRequest("logprobs is how many alternatives to name, a number", field="logprobs")
    logprobs = None if body.logprobs is False else body.logprobs
    prompt = long_fields.prompt(body.prompt)
    return Ask(
        request_id=request_id,
        text=prompt if isinstance(prompt, str) else None,
        token_ids=prompt if isinstance(prompt, tuple) else None,
        max_tokens=body.max_tokens,
        logprobs=logprobs,
        prompt_logprobs=logprobs if body.echo and body.prompt_logprobs is None else body.prompt_logprobs,
        echo=bool(body.echo),
        **_common(body, raw),
    )


def _chat_ask(body: ChatBody, raw: Mapping[str, Any], request_id: str) -> Ask:
    if "prompt" in (body.model_extra or {}):
        raise InvalidRequest("exactly one form of prompt is needed, got messages and prompt", field="prompt")
    if body.logprobs is not None and not isinstance(body.logprobs, bool):
        raise InvalidRequest("logprobs is true or false; how many alternatives is top_logprobs", field="logprobs")
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs may only be set when logprobs is true", field="top_logprobs")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs must be between 0 and {MAX_LOGPROBS}, is {body.top_logprobs}", field="top_logprobs"
        )
    return Ask(
        request_id=request_id,
        messages=long_fields.messages(body.messages),
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        **_common(body, raw),
    )
