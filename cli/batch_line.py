"""One line of an OpenAI batch file: what it asks, and the line that answers it. Pure but for the ids that it draws.

A line that is no request gets a line with `error`; a request that is refused or fails gets the HTTP answer that a
server would give, as `response`. Knows nothing of engines or files.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagewire.core.documents import parse_object
from pagewire.core.errors import InvalidRequest, PagewireError, UnsupportedField, status_of
from pagewire.core.unicode_text import is_unicode
from pagewire.router.answers import error_body
from pagewire.router.openai import Call, parse

URLS = {"/v1/chat/completions": True, "/v1/completions": False}  # whether it is a chat
MAX_ID_CHARS = 512
HTTP_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """A line that is a request; its body may yet be refused."""

    custom_id: str
    request_id: str
    is_chat: bool
    body: Mapping[str, Any]

    def call(self) -> Call:
        """Return what the body asks; raises InvalidRequest or UnsupportedField, which name the field."""
        call = parse(json.dumps(self.body).encode(), {"request_id": self.request_id}, is_chat=self.is_chat)
        if call.is_streaming:
            raise UnsupportedField("stream is not supported in a batch: leave it out", field="stream")
        return call


def read(data: bytes, number: int) -> BatchLine:
    """Return the request of line `number`; raises InvalidRequest, which names line and field."""
    try:
        line = parse_object(data, f"line {number}")
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    custom_id, url = _custom_id(line), line.get("url")
    if custom_id is None:
        raise InvalidRequest(
            f"line {number}: custom_id is a text of 1 to {MAX_ID_CHARS} characters of Unicode", field="custom_id"
        )
    if line.get("method") != "POST":
        raise InvalidRequest(f"line {number}: method is {line.get('method')!r}, not 'POST'", field="method")
    if not isinstance(url, str) or url not in URLS:
        raise InvalidRequest(f"line {number}: url is {url!r}, not one of {', '.join(URLS)}", field="url")
    if not isinstance(line.get("body"), dict):
        raise InvalidRequest(f"line {number}: body is not an object", field="body")
    return BatchLine(custom_id=custom_id, request_id=uuid.uuid4().hex, is_chat=URLS[url], body=line["body"])


def custom_id_of(data: bytes) -> str | None:
    """Return the custom_id of a line, as far as it has a proper one."""
    try:
        return _custom_id(parse_object(data, "the line"))
    except ValueError:
        return None


def answered(line: BatchLine, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output line of an answer."""
    return _responded(line, HTTP_OK, body)


def failed(line: BatchLine, error: PagewireError) -> dict[str, Any]:
    """Return the output line of a request that was refused or failed."""
    return _responded(line, status_of(error).http, error_body(error))


def rejected(custom_id: str | None, error: PagewireError) -> dict[str, Any]:
    """Return the output line of a line that is no request."""
    told = {"code": error.cause, "message": error.message}
    return {"id": _new_id(), "custom_id": custom_id, "response": None, "error": told}


def _custom_id(line: Mapping[str, Any]) -> str | None:
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_ID_CHARS or not is_unicode(custom_id):
        return None
    return custom_id


def _responded(line: BatchLine, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": line.request_id, "body": body}
    return {"id": _new_id(), "custom_id": line.custom_id, "response": response, "error": None}


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
