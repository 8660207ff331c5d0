"""What a body of /v1/messages, or of its count of tokens, asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pagewire.core.errors import InvalidRequest
from pagewire.router.anthropic.body import NAMES, as_chat, wishes
from pagewire.router.bodies import MessagesBody
from pagewire.router.json_text import read_body
from pagewire.router.openai import Call, checked, parse_as_chat, unknown_fields


def parse(
    data: bytes, origin: Mapping[str, Any], *, with_timeline: bool = False, may_name_itself: bool = False
) -> Call:
    """Read a body; arguments and errors are those of `openai.parse`."""
    call = parse_count(data, origin, with_timeline=with_timeline, may_name_itself=may_name_itself)
    if call.ask.max_tokens is None:
        raise InvalidRequest("max_tokens is missing", field="max_tokens")
    return call


def parse_count(data: bytes, origin: Mapping[str, Any], **of_answer: bool) -> Call:
    """Read a body whose prompt is to be counted: it may leave `max_tokens` out, and else is as `parse` has it."""
    raw = read_body(data)
    body = checked(MessagesBody, raw)
    call = parse_as_chat(as_chat(body, raw), origin, NAMES, **of_answer)
    chat = replace(call.ask.chat, wishes=tuple(wishes(body).items()))
    ask = replace(call.ask, chat=chat, fits_max_tokens=True)
    return replace(call, asks=(ask,), unknown_fields=unknown_fields(body))
