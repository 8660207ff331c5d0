"""The live page's door: /ui and its files, open to everybody, and /ui/events behind the key.

Knows HTTP. What the page shows comes by events alone, so its files tell nothing. Invariant: the page runs nothing and
loads nothing but its own files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from pagewire.core.errors import Cancelled, PagewireError, status_of
from pagewire.router.answers import error_body
from pagewire.router.guard import caller, sees_all
from pagewire.router.live.feed import Feed
from pagewire.router.streaming import unless_gone

FOLDER = Path(__file__).parent.parent / "ui"
PAGE = "index.html"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
NAMES = tuple(sorted(path.name for path in FOLDER.iterdir() if path.suffix in KINDS and path.name != PAGE))
OPEN_PATHS = frozenset(("/ui", "/ui/", *(f"/ui/{name}" for name in NAMES)))
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class LiveDoor:
    """Serves the page and its feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def routes(self) -> Sequence[BaseRoute]:
        """Return what the page asks for, for the application."""
        return (
            Route("/ui", _File(PAGE)),
            Route("/ui/", _to_page),
            Route("/ui/events", _Events(self._feed), methods=["GET"]),
            *(Route(f"/ui/{name}", _File(name)) for name in NAMES),
        )


async def _to_page(_request: Request) -> Response:
    return RedirectResponse("../ui", headers=_HEADERS)  # its files are named beside it


class _File:
    """One file, as an application."""

    def __init__(self, name: str) -> None:
        path = FOLDER / name
        self._response = Response(
            path.read_bytes(), media_type=f"{KINDS[path.suffix]}; charset=utf-8", headers=_HEADERS
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._response(scope, receive, send)


class _Events:
    """GET /ui/events, as an application: what goes around a function would not see its caller go."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with unless_gone(receive):
                await self._stream(scope, receive, send)
        except Cancelled:
            return

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        view = None if sees_all() else caller().name
        async with aclosing(self._feed.watch(view)) as frames:
            try:
                frame = await anext(frames)
            except PagewireError as error:
                await _refusal(error)(scope, receive, send)
                return
            headers = Response(headers={**_HEADERS, "cache-control": "no-store"}, media_type="text/event-stream")
            del headers.headers["content-length"]
            await send({"type": "http.response.start", "status": 200, "headers": headers.raw_headers})
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _refusal(error: PagewireError) -> Response:
    headers = {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    return JSONResponse(error_body(error), status_code=status_of(error).http, headers=headers)
