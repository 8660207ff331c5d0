"""The OpenAI API's shapes: what a body may hold, what it asks of us, and what we answer.

Knows JSON and `Ask`; nothing of HTTP or pods. A field is honoured, ignored, known and refused by name, or unknown: then
it is ignored and counted. Fields that hold many values are read in `long_fields.py`, grammars in `guided.py`, tools in
`tool_fields.py`, the others by the schemas of `bodies.py`, which see single values only. Checks of values are in
`validation.py`, the same for all front doors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.core.sampling import MAX_LOGPROBS
from pagewire.router import guided, long_fields, tool_fields
from pagewire.router.ask import Ask, ChatOptions, Reasoning
from pagewire.router.bodies import (
    IGNORED,
    REFUSED,
    REFUSED_OF_CHATS,
    REFUSED_OF_COMPLETIONS,
    REFUSED_OF_MESSAGES,
    REFUSED_OF_RESPONSES,
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    MessagesBody,
    ResponsesBody,
    Schema,
    TokenizeChatBody,
    TokenizeTextBody,
)
from pagewire.router.json_text import read_body
from pagewire.router.validation import callers_words, checked_request_id
from pagewire.text.text_stream import TextRules

MAX_CHOICES = 1024
_REFUSED_OF: dict[type[Schema], dict[str, tuple[object, ...]]] = {
    ChatBody: REFUSED | REFUSED_OF_CHATS,
    TokenizeChatBody: REFUSED | REFUSED_OF_CHATS,
    CompletionBody: REFUSED | REFUSED_OF_COMPLETIONS,
    TokenizeTextBody: REFUSED | REFUSED_OF_COMPLETIONS,
    ResponsesBody: REFUSED | REFUSED_OF_RESPONSES,
    MessagesBody: REFUSED | REFUSED_OF_MESSAGES,
}
S = TypeVar("S", bound=Schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A parsed body: what is asked, an ask for each prompt, and the form of the answer.

    With `shows_ids` tokens in log probabilities are named by their ids.
    `with_running_usage` is usage in every part of a stream. `with_prompt_logprobs` scores of the prompt have a member
    of their own: an echo's have not. If it `has_functions`, a call is told by that older name. What is `echoed` a
    response repeats.
    """

    asks: tuple[Ask, ...]
    is_chat: bool
    is_streaming: bool = False
    with_usage: bool = False
    with_running_usage: bool = False
    with_token_ids: bool = False
    with_prompt_logprobs: bool = False
    with_timeline: bool = False
    shows_ids: bool = False
    has_functions: bool = False
    echoed: Mapping[str, Any] = field(default_factory=dict)
    unknown_fields: tuple[str, ...] = ()

    @property
    def ask(self) -> Ask:
        """The first of the asks: all differ in their prompts alone."""
        return self.asks[0]

    @property
    def is_score(self) -> bool:
        """True where prompts alone are answered."""
        return self.ask.is_score


def parse(
    data: bytes, origin: Mapping[str, Any], *, is_chat: bool, with_timeline: bool = False, may_name_itself: bool = False
) -> Call:
    """Read a body; raises InvalidRequest or UnsupportedField, which name the field.

    `origin` are the fields of an `Ask` that no body says: who asks, and `request_id`, unless the body has one and
    `may_name_itself`.
    """
    raw = read_body(data)
    body = checked(ChatBody, raw) if is_chat else checked(CompletionBody, raw)
    return _call(body, raw, origin, with_timeline=with_timeline, may_name_itself=may_name_itself)


def parse_as_chat(
    chat: Mapping[str, Any],
    origin: Mapping[str, Any],
    called: tuple[tuple[str, str], ...],
    *,
    with_timeline: bool = False,
    may_name_itself: bool = False,
) -> Call:
    """Return what the members of a chat ask that another endpoint's body came to be, `called` as `in_words` has it."""
    with callers_words(called):
        body = _validated(ChatBody, chat)
        call = _call(body, chat, origin, with_timeline=with_timeline, may_name_itself=may_name_itself)
    grammar = call.ask.grammar
    if grammar is not None:  # a pod that refuses it names it too
        grammar = replace(grammar, field=dict(called).get(grammar.field, grammar.field).partition(".")[0])
    return replace(call, asks=(replace(call.ask, called=called, grammar=grammar),))


def parse_tokenize(data: bytes, origin: Mapping[str, Any]) -> tuple[Call, bool]:
    """Read a body of /tokenize as that of a chat or a completion, whose prompt it counts, and whether it wants the
    tokens' texts; raises as `parse` does.
    """
    raw = read_body(data)
    body = checked(TokenizeTextBody, raw) if raw.get("messages") is None else checked(TokenizeChatBody, raw)
    return _call(body, raw, origin), bool(body.return_token_strs)


def parse_detokenize(data: bytes) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Read a body of /detokenize: its model, its tokens, and what fields are unknown; raises InvalidRequest."""
    body = _validated(DetokenizeBody, read_body(data))
    if body.tokens is None:
        raise InvalidRequest("tokens is missing", field="tokens")
    return body.model or "", long_fields.token_ids("tokens", body.tokens), unknown_fields(body)


def checked(schema: type[S], raw: Mapping[str, Any]) -> S:
    """Return a body without what is refused of its endpoint; raises UnsupportedField or InvalidRequest."""
    refused = _REFUSED_OF[schema]
    for name, value in raw.items():
        allowed = refused.get(name)
        if allowed is not None and value is not None and not any(_same(value, each) for each in allowed):
            raise UnsupportedField(f"{name} is not supported: leave it out{_or(allowed)}", field=name)
    return _validated(schema, raw)


def _call(
    body: ChatBody | CompletionBody,
    raw: Mapping[str, Any],
    origin: Mapping[str, Any],
    *,
    with_timeline: bool = False,
    may_name_itself: bool = False,
) -> Call:
    if isinstance(body, CompletionBody):
        _check_best_of(body)
    if body.stream and body.use_beam_search:
        raise UnsupportedField("stream is not supported with use_beam_search: leave it out", field="stream")
    options = body.stream_options
    if options is not None and not body.stream:
        raise InvalidRequest("stream_options may only be set when stream is true", field="stream_options")
    with_usage = options is not None and bool(options.include_usage)
    common = {**origin, **_common(body, raw)}
    if may_name_itself and body.request_id is not None:
        common["request_id"] = checked_request_id(body.request_id)
    asks = _chat_asks(body, raw, common) if isinstance(body, ChatBody) else _completion_asks(body, common)
    return Call(
        asks=asks,
        is_chat=isinstance(body, ChatBody),
        is_streaming=bool(body.stream),
        with_usage=with_usage,
        with_running_usage=with_usage and options is not None and bool(options.continuous_usage_stats),
        with_token_ids=bool(body.return_token_ids),
        with_prompt_logprobs=body.prompt_logprobs is not None,
        with_timeline=with_timeline or (body.pagewire is not None and bool(body.pagewire.timeline)),
        shows_ids=bool(body.return_tokens_as_token_ids),
        has_functions=isinstance(body, ChatBody) and tool_fields.is_of_functions(raw),
        unknown_fields=unknown_fields(body),
    )


def unknown_fields(body: Schema) -> tuple[str, ...]:
    """Return the members that nobody knows: of the body, of its objects that are ours to read."""
    known = IGNORED.union(guided.FIELDS, _REFUSED_OF.get(type(body), REFUSED))
    found = sorted((body.model_extra or {}).keys() - known)
    for name in ("stream_options", "pagewire"):
        if isinstance(inner := getattr(body, name, None), Schema):
            found += [f"{name}.{each}" for each in sorted(inner.model_extra or {})]
    return tuple(found)


def _validated(schema: type[S], raw: Mapping[str, Any]) -> S:
    """Return a body with its fields' types checked; raises InvalidRequest for the first wrong one."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = [str(part) for part in first["loc"]]
        raise InvalidRequest(f"{'.'.join(path)}: {first['msg']}", field=path[0] if path else "") from error


def _check_best_of(body: CompletionBody) -> None:
    if body.best_of is None or body.best_of == (body.n or 1):
        return
    if body.best_of < (body.n or 1):
        raise InvalidRequest(f"best_of must not be less than n, which is {body.n or 1}", field="best_of")
    raise UnsupportedField("best_of is not supported: leave it out, or set it to n", field="best_of")


def _same(value: object, allowed: object) -> bool:
    # True == 1 in Python, and not in JSON.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _or(allowed: tuple[object, ...]) -> str:
    return f", or set it to {json.dumps(allowed[0])}" if allowed else ""


def _common(body: Body, raw: Mapping[str, Any]) -> dict[str, Any]:
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
        "allowed_token_ids": long_fields.allowed_token_ids(body.allowed_token_ids),
        "bad_words": long_fields.bad_words(body.bad_words),
        "grammar": guided.grammar(raw),
        "seed": body.seed,
        "stop": long_fields.stop(body.stop),
        "stop_token_ids": long_fields.token_ids("stop_token_ids", body.stop_token_ids),
        "ignore_eos": bool(body.ignore_eos),
        "text_rules": TextRules(
            with_special=body.skip_special_tokens is False, with_stop=bool(body.include_stop_str_in_output)
        ),
        "add_special_tokens": body.add_special_tokens,
        "truncate_prompt_tokens": body.truncate_prompt_tokens,
        "truncation_side": body.truncation_side or "left",
        "cache_salt": body.cache_salt,
        "priority": body.priority or 0,
        "stream_interval": body.stream_interval,
    }


def _completion_asks(body: CompletionBody, common: Mapping[str, Any]) -> tuple[Ask, ...]:
    if (body.model_extra or {}).get("messages") is not None:
        raise InvalidRequest("exactly one form of prompt is needed, got prompt and messages", field="messages")
    if body.logprobs is True:
        raise InvalidRequest("logprobs is how many alternatives to name, a number", field="logprobs")
    logprobs = None if body.logprobs is False else body.logprobs
    scores_prompt = bool(body.echo) and body.prompt_logprobs is None
    prompts = long_fields.prompts(body.prompt)
    if len(prompts) * (body.n or 1) > MAX_CHOICES:
        text = f"{len(prompts)} prompts with n {body.n} are more than {MAX_CHOICES} answers"
        raise InvalidRequest(text, field="prompt")
    is_score = bool(body.echo) and body.max_tokens == 0
    common = {
        **common,
        "is_score": is_score,
        "max_tokens": 1 if is_score else body.max_tokens,
        "logprobs": logprobs,
        "prompt_logprobs": logprobs if scores_prompt else body.prompt_logprobs,
        "echo": bool(body.echo),
        "called": (("prompt_logprobs", "logprobs"),) if scores_prompt else (),
    }
    return tuple(
        Ask(
            text=prompt if isinstance(prompt, str) else None,
            token_ids=prompt if isinstance(prompt, tuple) else None,
            **common,
        )
        for prompt in prompts
    )


def _chat_asks(body: ChatBody, raw: Mapping[str, Any], common: Mapping[str, Any]) -> tuple[Ask, ...]:
    if (body.model_extra or {}).get("prompt") is not None:
        raise InvalidRequest("exactly one form of prompt is needed, got messages and prompt", field="prompt")
    if body.logprobs is not None and not isinstance(body.logprobs, bool):
        raise InvalidRequest("logprobs is true or false; how many alternatives is top_logprobs", field="logprobs")
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs may only be set when logprobs is true", field="top_logprobs")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs must be between 0 and {MAX_LOGPROBS}, is {body.top_logprobs}", field="top_logprobs"
        )
    by_new_name = body.max_completion_tokens is not None
    ask = Ask(
        messages=long_fields.messages(body.messages),
        tools=tool_fields.tools(raw),
        chat=_chat_options(body),
        reasoning=Reasoning.of(body.separate_reasoning, body.include_reasoning),
        max_tokens=body.max_completion_tokens if by_new_name else body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        called=(("max_tokens", "max_completion_tokens"),) if by_new_name else (),
        **common,
    )
    return (ask,)


def _chat_options(body: ChatBody) -> ChatOptions:
    options, effort = long_fields.template_options(body.chat_template_kwargs), body.reasoning_effort
    return long_fields.chat_options(
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        documents=long_fields.documents(body.documents),
        options=options if effort is None else {"reasoning_effort": effort, **options},
    )
