"""The HTTP front door: OpenAI's endpoints, health, metrics.

Knows HTTP, server-sent events and disconnects; what a body means is in `openai.py`, what a request does in
`dispatch.py`. A caller that goes away cancels its request, streaming or not. An error before the first token is an HTTP
status; after it, an error event and `[DONE]`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from pagewire.core.errors import Cancelled, EngineFailed, InvalidRequest, PagewireError, status_of
from pagewire.core.load import BrownoutLevel
from pagewire.core.messages import Role
from pagewire.router.answers import Answer, error_body, models_body
from pagewire.router.dispatch import Dispatcher
from pagewire.router.intake import Intake
from pagewire.router.metrics import RouterMetrics
from pagewire.router.openai import Call, parse
from pagewire.router.pods import PodPool
from pagewire.router.request import Chunk, Event, Finished
from pagewire.router.validation import is_request_id
from pagewire.serving.lifecycle import Lifecycle, Stage

log = logging.getLogger(__name__)

# A body beyond the bound is read and dropped up to here, so that its sender gets to read the refusal.
MAX_DISCARDED_BYTES = 64 << 20
TIMELINE_HEADER = "x-pagewire-timeline"
T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


class FrontDoor:
    """The HTTP application of one router."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        intake: Intake,
        pool: PodPool,
        lifecycle: Lifecycle,
        metrics: RouterMetrics,
        max_body_bytes: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._intake = intake
        self._pool = pool
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._started = int(time.time())

    def app(self) -> FastAPI:
        """Return the ASGI application."""
        app = FastAPI(title="Pagewire", openapi_url=None)
        app.add_api_route("/v1/chat/completions", self.chat, methods=["POST"])
        app.add_api_route("/v1/completions", self.completions, methods=["POST"])
        app.add_api_route("/v1/models", self.models, methods=["GET"])
        app.add_api_route("/v1/models/{model:path}", self.model, methods=["GET"])
        for path in ("/health", "/ready"):
            app.add_api_route(path, self.health, methods=["GET"])
        app.add_api_route("/live", self.live, methods=["GET"])
        app.add_api_route("/metrics", self.metrics, methods=["GET"])
        app.add_exception_handler(HTTPException, _http_error)
        app.add_exception_handler(Exception, _http_error)
        return app

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._generate(request, is_chat=True)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._generate(request, is_chat=False)

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        request_id = _request_id(request)
        try:
            limits = self._intake.limits()
        except PagewireError as error:
            return _refusal(error, request_id)
        body = models_body(limits.model, limits.max_model_len, self._started)
        return JSONResponse(body, headers={"x-request-id": request_id})

    async def model(self, request: Request, model: str) -> Response:
        """GET /v1/models/NAME."""
        request_id = _request_id(request)
        try:
            limits = self._intake.limits()
            self._intake.check_model(model)
        except PagewireError as error:
            return _refusal(error, request_id)
        body = models_body(limits.model, limits.max_model_len, self._started)["data"][0]
        return JSONResponse(body, headers={"x-request-id": request_id})

    async def health(self) -> Response:
        """GET /health: 200 while a request would be admitted and some pod could take it; names pods in brownout."""
        pods = self._usable_pods()
        is_healthy = self._lifecycle.is_ready and pods[Role.DECODE] + pods[Role.COLOCATED] > 0
        levels = {pod.pod_id: pod.load.brownout for pod in self._pool.usable(*Role)}
        strained = {pod_id: level for pod_id, level in levels.items() if level is not BrownoutLevel.NORMAL}
        body = {"status": self._lifecycle.stage.name.lower(), "pods": pods, "brownout": strained}
        return JSONResponse(body, status_code=200 if is_healthy else 503)

    async def live(self) -> Response:
        """GET /live: 200 until the process stops."""
        is_live = self._lifecycle.stage is not Stage.STOPPED
        return JSONResponse({"status": self._lifecycle.stage.name.lower()}, status_code=200 if is_live else 503)

    async def metrics(self) -> Response:
        """GET /metrics."""
        self._metrics.active.set(self._dispatcher.active)
        for role, count in self._usable_pods().items():
            self._metrics.pods.labels(role.value).set(count)
        return Response(self._metrics.exposition(), media_type="text/plain; version=0.0.4")

    def _usable_pods(self) -> dict[Role, int]:
        return {role: len(self._pool.usable(role)) for role in (Role.PREFILL, Role.DECODE, Role.COLOCATED)}

    async def _generate(self, request: Request, *, is_chat: bool) -> Response:
        request_id = _request_id(request)
        try:
            call = await self._call(request, is_chat=is_chat, request_id=request_id)
            answer = Answer(call=call, model=self._intake.limits().model, created=int(time.time()))
        except PagewireError as error:
            self._metrics.requests.labels(error.cause).inc()
            return _refusal(error, request_id)
        try:
            events = self._dispatcher.answer(call.ask)
            if call.is_streaming:
                # Nothing is sent before the first event, so that a refusal has its own status.
                first = await _unless_gone(request.receive, _first(events))
                return _Stream(_sse(answer, first, events), events, request_id)
            return await _unless_gone(request.receive, _whole(answer, events, request_id))
        except PagewireError as error:
            return _refusal(error, request_id)

    async def _call(self, request: Request, *, is_chat: bool, request_id: str) -> Call:
        data = await self._body(request)
        with_timeline = request.headers.get(TIMELINE_HEADER, "") in ("1", "true")
        call = parse(data, is_chat=is_chat, request_id=request_id, with_timeline=with_timeline)
        self._metrics.unknown_fields.inc(len(call.unknown_fields))
        return call

    async def _body(self, request: Request) -> bytes:
        data, num_bytes = bytearray(), 0
        try:
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes <= self._max_body_bytes:
                    data += part
                elif num_bytes > MAX_DISCARDED_BYTES:
                    break
        except ClientDisconnect as error:
            raise Cancelled("the client went away before its body was read") from error
        if num_bytes > self._max_body_bytes:
            raise InvalidRequest(f"the body is larger than {self._max_body_bytes} bytes", field="body")
        return bytes(data)


class _Stream(Response):
    """Server-sent events, ended early when the caller goes away."""

    def __init__(
        self, parts: AsyncGenerator[bytes, None], events: AsyncGenerator[Event, None], request_id: str
    ) -> None:
        super().__init__(
            headers={"x-request-id": request_id, "cache-control": "no-cache"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._parts = parts
        self._events = events

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        # `events` is closed here too: parts that were never begun would not close it.
        async with aclosing(self._events), aclosing(self._parts):
            try:
                await _unless_gone(receive, self._send(send))
            except Cancelled:
                log.info("a client went away while its answer streamed")

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _sse(answer: Answer, first: Event, events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    """Yield an answer as server-sent events; `first` is the event that was waited for."""
    try:
        for part in answer.opening():
            yield _event(part)
        chunk, event = None, first
        while isinstance(event, Chunk):
            chunk = event
            for part in answer.chunk(chunk):
                yield _event(part)
            event = await anext(events)
            if chunk.ending is not None and isinstance(event, Chunk):
                yield _event(answer.end(chunk))
        if chunk is None:
            raise EngineFailed("the request ended without an answer")
        for part in answer.closing(chunk, event):
            yield _event(part)
    except PagewireError as error:
        yield _event(error_body(error))
    yield DONE


def _event(body: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _first(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)


async def _whole(answer: Answer, events: AsyncGenerator[Event, None], request_id: str) -> Response:
    chunks: list[Chunk] = []
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Finished):
                return JSONResponse(answer.whole(chunks, event), headers={"x-request-id": request_id})
            chunks.append(event)
    raise EngineFailed("the request ended without an answer")


async def _unless_gone(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """Return what `work` returns; raises Cancelled, with `work` cancelled and done, if the caller disconnects first."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnect(receive))
    watcher.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if watcher.done() and not watcher.cancelled():
            raise Cancelled("the client went away") from None
        raise
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if is_request_id(given) else uuid.uuid4().hex


def _refusal(error: PagewireError, request_id: str) -> Response:
    status = status_of(error)
    headers = {"x-request-id": request_id}
    if status.http in (429, 503):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    elif status.http >= 500:
        headers["x-should-retry"] = "false"  # clients of the OpenAI API try any 5xx again unless told
    return JSONResponse(error_body(error), status_code=status.http, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """The framework's own refusals (no such path, wrong method) in OpenAI's shape."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = str(error.detail) if isinstance(error, HTTPException) else "internal error"
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {
        "error": {"message": f"{request.method} {request.url.path}: {text}", "type": kind, "param": None, "code": None}
    }
    return JSONResponse(body, status_code=status)
