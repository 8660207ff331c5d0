"""What browsers ask before, and look for after, a page of another origin calls the API.

Knows HTTP's headers for it and which paths are the API's; goes around the guard, for a browser asks without a key.
Invariants: no origin is allowed but those that the operator named, and none to use what a browser would add of its own,
cookies say; what is no preflight is answered by the application alone, whatever its origin.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagewire.router.config import ANY_ORIGIN
from pagewire.router.http_exchange import request_id_of

API = "/v1/"
API_PATHS = frozenset((
    "/tokenize", "/detokenize", "/health", "/ready", "/live", "/ping", "/version", "/load", "/openapi.json",
))  # fmt: skip
EXPOSED = b"x-request-id, request-id, retry-after, x-should-retry"
METHODS = b"GET, POST"
MAX_AGE_S = 600  # for which a browser need not ask again


class CrossOrigin:
    """Goes around a guarded application, where some origins may call it."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(each.encode() for each in origins)
        self._is_for_any = ANY_ORIGIN in origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight, or have the answer say who may read it."""
        if scope["type"] != "http" or not (scope["path"].startswith(API) or scope["path"] in API_PATHS):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        told = self._told(headers)
        if scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers:
            await _answer_preflight(headers, told, send)
            return

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *told]}
            await send(message)

        await self._app(scope, receive, tell)

    def _told(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return what every answer to a request says; a cache keeps one for each origin that it may depend on."""
        exposed = (b"access-control-expose-headers", EXPOSED)
        if self._is_for_any:
            return [(b"access-control-allow-origin", ANY_ORIGIN.encode()), exposed]
        origin = headers.get("origin", "").encode("latin-1")
        if origin not in self._origins:
            return [(b"vary", b"origin")]
        return [(b"access-control-allow-origin", origin), exposed, (b"vary", b"origin")]


async def _answer_preflight(headers: Headers, told: Sequence[tuple[bytes, bytes]], send: Send) -> None:
    """Answer what a browser asks first; one whose origin is not allowed is told of nothing that is."""
    answer = [*told, (b"x-request-id", request_id_of(headers).encode())]
    if any(name == b"access-control-allow-origin" for name, _ in told):
        asked = headers.get("access-control-request-headers", "").encode("latin-1")
        answer += [
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", str(MAX_AGE_S).encode()),
            (b"vary", b"access-control-request-headers"),
            # All that are asked for: clients have many of their own, and "*" leaves out the one with the key.
            *([(b"access-control-allow-headers", asked)] if asked else []),
        ]
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
