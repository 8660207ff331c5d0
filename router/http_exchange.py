"""What all HTTP endpoints have in common: a request's id, its body within a bound, and how it is refused.

Knows HTTP and OpenAI's error object, no endpoint. Invariant: a refusal names the request, and says whether and when
another try can help.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagewire.core.errors import Cancelled, InvalidRequest, PagewireError, UnsupportedEncoding, status_of
from pagewire.router.answers import error_body
from pagewire.router.validation import is_request_id

ErrorBody = Callable[[PagewireError], dict[str, Any]]
# A body beyond its bound is read and dropped up to here, so that its sender gets to read the refusal.
MAX_DISCARDED_BYTES = 64 << 20


def request_id_of(headers: Headers) -> str:
    """Return the id that the caller gave, a new one where it gave none that may be an id."""
    given = headers.get("x-request-id", "")
    return given if is_request_id(given) else uuid.uuid4().hex


def with_request_id(app: ASGIApp) -> ASGIApp:
    """Return `app` with the id of its request on every answer that does not carry one of its own."""

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        given = request_id_of(Headers(scope=scope)).encode()

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start" and "x-request-id" not in Headers(raw=message["headers"]):
                # A new list: an answer that is kept, a file's, sends the same one each time.
                message = {**message, "headers": [*message["headers"], (b"x-request-id", given)]}
            await send(message)

        await app(scope, receive, tell)

    return named


def id_headers(request_id: str) -> dict[str, str]:
    """Return what names a request to callers: as OpenAI's clients look for it, and as Anthropic's do."""
    return {"x-request-id": request_id, "request-id": request_id}


def refusal(error: PagewireError, request_id: str, body_of_error: ErrorBody = error_body) -> JSONResponse:
    """Return the answer that `error` is."""
    status = status_of(error)
    headers = id_headers(request_id)
    if status.http == 401:
        headers["www-authenticate"] = 'Bearer realm="pagewire"'
    elif status.http == 415:
        headers["accept-encoding"] = "identity"
    elif status.http in (429, 503):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    elif status.http >= 500:
        headers["x-should-retry"] = "false"  # clients of the OpenAI API try any 5xx again unless told
    return JSONResponse(body_of_error(error), status_code=status.http, headers=headers)


async def receive_body(request: Request, max_bytes: int, take: Callable[[bytes], object]) -> None:
    """Have `take` take each part of a request's body, which it may refuse.

    Raises InvalidRequest where it is larger, UnsupportedEncoding where it is compressed, Cancelled where its sender
    goes away.
    """
    encodings = ",".join(request.headers.getlist("content-encoding")).split(",")
    coded = next((each for each in map(str.strip, encodings) if each.lower() not in ("", "identity")), None)
    if coded is not None:
        text = f"the body's content-encoding is {coded[:50]!r}, bodies are read as they are: send it without one"
        raise UnsupportedEncoding(text, field="body")
    num_bytes = 0
    try:
        async for part in request.stream():
            num_bytes += len(part)
            if num_bytes <= max_bytes:
                take(part)
            elif num_bytes > MAX_DISCARDED_BYTES:
                break
    except ClientDisconnect as error:
        raise Cancelled("the client went away before its body was read") from error
    if num_bytes > max_bytes:
        raise InvalidRequest(f"the body is larger than {max_bytes} bytes", field="body")
