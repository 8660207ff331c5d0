"""What a body of /v1/responses asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pagewire.router.bodies import ResponsesBody
from pagewire.router.json_text import read_body
from pagewire.router.openai import Call, checked, parse_as_chat, unknown_fields
from pagewire.router.responses.body import NAMES, as_chat, echoed


def parse(
    data: bytes, origin: Mapping[str, Any], *, with_timeline: bool = False, may_name_itself: bool = False
) -> Call:
    """Read a body; arguments and errors are those of `openai.parse`."""
    raw = read_body(data)
    body = checked(ResponsesBody, raw)
    chat = as_chat(body, raw)
    call = parse_as_chat(chat, origin, NAMES, with_timeline=with_timeline, may_name_itself=may_name_itself)
    return replace(call, echoed=echoed(body), unknown_fields=unknown_fields(body))
