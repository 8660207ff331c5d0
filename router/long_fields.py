"""The fields of a body that may hold very many values: prompts, messages, lists of tokens; checked by hand.

Pure; knows JSON values. A schema library tries every form of a field on every value and keeps each complaint, which
costs seconds and gigabytes for a small hostile body. Here the first value decides the form, and the first wrong one is
named. Invariant: the work is linear in the body, with a small factor, and no memory is taken per wrong value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.core.sampling import MAX_LOGIT_BIAS, TokenBias
from pagewire.router.ask import ChatOptions
from pagewire.router.tool_fields import as_tool_message, message_calls
from pagewire.router.validation import MAX_BAD_WORDS

MAX_PROMPTS = 128
MAX_MESSAGES = 1 << 16
MAX_DOCUMENTS = 1 << 16
_PARTS = ("text", "refusal")  # and what holds the text of each


def prompts(value: object) -> tuple[str | tuple[int, ...] | None, ...]:
    """Return the prompts of a completion, texts or token ids; raises InvalidRequest."""
    if value is None or isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise _wrong("prompt", "a text, a list of token ids, or a list of one of these", value)
    if not value or type(value[0]) is int:
        return (_integers("prompt", value),)
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt holds {len(value)} prompts, at most {MAX_PROMPTS} are taken", field="prompt")
    if isinstance(value[0], str):
        _all("prompt", value, str, "a text, as the others are")
        return tuple(value)
    if not isinstance(value[0], list):
        raise _wrong("prompt.0", "a text, a token id or a list of token ids", value[0])
    _all("prompt", value, list, "a list of token ids, as the others are")
    return tuple(_integers(f"prompt.{i}", each) for i, each in enumerate(value))


def check_count(field: str, count: int, most: int, *, of: str = "") -> None:
    """Raise InvalidRequest where a field holds more values (`of` some sort) than it may, before they are looked at."""
    if count > most:
        raise InvalidRequest(f"{field} takes at most {most}{f' {of}' if of else ''}, got {count}", field=field)


def documents(value: object) -> tuple[Mapping[str, Any], ...]:
    """Return the documents that a chat template may show; raises InvalidRequest."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _wrong("documents", "a list of objects", value)
    check_count("documents", len(value), MAX_DOCUMENTS)
    _all("documents", value, dict, "an object")
    return tuple(value)


def template_options(value: object) -> Mapping[str, Any]:
    """Return the variables that a chat template is to see; raises InvalidRequest."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong("chat_template_kwargs", "an object", value)
    return value


def chat_options(
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool,
    documents: tuple[Mapping[str, Any], ...],
    options: Mapping[str, Any],
) -> ChatOptions:
    """Return how messages become a prompt: unless told otherwise it ends with the assistant's turn, begun anew or left
    open. Raises InvalidRequest.
    """
    begins = not continue_final_message if add_generation_prompt is None else add_generation_prompt
    if begins and continue_final_message:
        raise InvalidRequest(
            "continue_final_message does not go with add_generation_prompt", field="continue_final_message"
        )
    return ChatOptions(
        add_generation_prompt=begins,
        continue_final_message=continue_final_message,
        documents=documents,
        options=tuple(options.items()),
    )


def stop(value: object) -> tuple[str, ...]:
    """Return the stop strings; raises InvalidRequest."""
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    if not isinstance(value, list):
        raise _wrong("stop", "a string or a list of strings", value)
    _all("stop", value, str, "a string")
    return tuple(value)


def token_ids(field: str, value: object) -> tuple[int, ...]:
    """Return the token ids of a field; raises InvalidRequest."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _wrong(field, "a list of token ids", value)
    return _integers(field, value)


def allowed_token_ids(value: object) -> tuple[int, ...]:
    """Return the only tokens that may be chosen, () for all; raises InvalidRequest, also where none may."""
    allowed = token_ids("allowed_token_ids", value)
    if value is not None and not allowed:
        raise InvalidRequest("allowed_token_ids is empty, which allows no token", field="allowed_token_ids")
    return allowed


def logit_bias(value: object) -> tuple[TokenBias, ...]:
    """Return the biases of an object from token ids, written as strings, to numbers; raises InvalidRequest."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise _wrong("logit_bias", "an object from token ids to numbers", value)
    check_count("logit_bias", len(value), MAX_LOGIT_BIAS)
    return tuple(_bias(token, bias) for token, bias in value.items())


def bad_words(value: object) -> tuple[str | tuple[int, ...], ...]:
    """Return the bad words, each a text or its token ids; raises InvalidRequest."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _wrong("bad_words", "a list of texts or of lists of token ids", value)
    check_count("bad_words", len(value), MAX_BAD_WORDS)
    return tuple(_bad_word(f"bad_words.{i}", word) for i, word in enumerate(value))


def _bias(token: str, bias: object) -> TokenBias:
    # ASCII digits alone: int() takes more, and a long run of digits costs it time.
    if not (token.isascii() and token.isdecimal() and len(token) <= 10):
        raise InvalidRequest(f"logit_bias: {token[:20]!r} is not a token id", field="logit_bias")
    if isinstance(bias, bool) or not isinstance(bias, (int, float)):
        raise _wrong(f"logit_bias.{token}", "a number", bias)
    return TokenBias(token=int(token), bias=bias)


def _bad_word(where: str, word: object) -> str | tuple[int, ...]:
    if isinstance(word, str):
        return word
    if not isinstance(word, list):
        raise _wrong(where, "a text or a list of token ids", word)
    return _integers(where, word)


def messages(value: object) -> tuple[Mapping[str, Any], ...]:
    """Return the messages of a chat, contents joined to one text; raises InvalidRequest or UnsupportedField."""
    if value is None:
        raise InvalidRequest("messages is missing", field="messages")
    if not isinstance(value, list):
        raise _wrong("messages", "a list", value)
    check_count("messages", len(value), MAX_MESSAGES)
    read, num_calls = [], 0
    for i, message in enumerate(value):
        if not isinstance(message, dict):
            raise _wrong(f"messages.{i}", "an object", message)
        # Calls by the API's older words have no ids, and their answers come right behind them.
        num_calls += bool(message.get("function_call"))
        read.append(_message(f"messages.{i}", as_tool_message(message, f"call{num_calls:05d}")))
    return tuple(read)


def _message(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("audio"):
        raise UnsupportedField(f"{where}.audio is not supported", field="messages")
    role, calls = message.get("role"), message.get("tool_calls")
    # An assistant need not say anything: it called tools, or its answer was cut off before.
    need_not_speak = role == "assistant" or bool(calls)
    read: dict[str, Any] = {"role": role, "content": _said(where, message, need_not_speak=need_not_speak)}
    if role is None:
        raise InvalidRequest(f"{where}.role is missing", field="messages")
    if message.get("reasoning") is not None:
        read["reasoning_content"] = message["reasoning"]
    names = ("name", "reasoning_content", "tool_call_id")
    read |= {name: message[name] for name in names if message.get(name) is not None}
    for name, text in read.items():
        if not isinstance(text, str):
            raise _wrong(f"{where}.{name}", "a string", text)
    if calls:
        if read["role"] != "assistant":
            raise InvalidRequest(f"{where}.tool_calls: only an assistant calls tools", field="messages")
        read["tool_calls"] = message_calls(f"{where}.tool_calls", calls)
    return read


def _said(where: str, message: Mapping[str, Any], *, need_not_speak: bool) -> str:
    """Return the text of a message: its content, and behind it what it refuses to say."""
    content, refusal = message.get("content"), message.get("refusal")
    if not isinstance(refusal, (str, type(None))):
        raise _wrong(f"{where}.refusal", "a string", refusal)
    said = "" if content is None and need_not_speak else _content(f"{where}.content", content)
    return "\n".join(filter(None, (said, refusal)))


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise InvalidRequest(f"{where} is missing", field="messages")
    if not isinstance(content, list):
        raise _wrong(where, "a string or a list of parts", content)
    texts: list[str] = []
    for i, part in enumerate(content):
        if not isinstance(part, dict):
            raise _wrong(f"{where}.{i}", "an object", part)
        kind = part.get("type")
        if not isinstance(kind, str):
            raise _wrong(f"{where}.{i}.type", "a string", kind)
        text = part.get(kind) if kind in _PARTS else None
        if text is None:
            raise UnsupportedField(f"{where}: parts of type {kind[:50]!r} are not supported", field="messages")
        if not isinstance(text, str):
            raise _wrong(f"{where}.{i}.{kind}", "a string", text)
        texts.append(text)
    return "\n".join(texts)


def _integers(where: str, values: list[Any]) -> tuple[int, ...]:
    _all(where, values, int, "an integer")
    return tuple(values)


def _all(where: str, values: list[Any], kind: type, wanted: str) -> None:
    # The types first, without a loop in Python; True is no integer here.
    if set(map(type, values)) <= {kind}:
        return
    i, wrong = next((i, value) for i, value in enumerate(values) if type(value) is not kind)
    raise _wrong(f"{where}.{i}", wanted, wrong)


def _wrong(where: str, wanted: str, value: object) -> InvalidRequest:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    got = names.get(type(value), "a number")
    return InvalidRequest(f"{where} is {got}, must be {wanted}", field=where.partition(".")[0])
