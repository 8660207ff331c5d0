"""The HTTP front door: OpenAI's endpoints and Anthropic's, health, metrics.

Knows HTTP; what a body means is in `openai.py`, `responses/` and `anthropic/`, what a request does in `dispatch.py`,
how its answer streams in `streaming.py`. A caller that goes away cancels its request, streaming or not. An error before
the first token is an HTTP status.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pagewire.core.errors import Cancelled, InvalidRequest, PagewireError, named
from pagewire.core.load import BrownoutLevel
from pagewire.core.own_version import own_version
from pagewire.router import openapi
from pagewire.router.answer_stream import AnswerStream
from pagewire.router.answers import Answer, error_body, model_body, models_body
from pagewire.router.anthropic import call as anthropic
from pagewire.router.anthropic.answer import MessageAnswer, MessageStream, message_error
from pagewire.router.ask import CHAT, COMPLETION
from pagewire.router.body_room import Body, BodyRoom
from pagewire.router.dispatch import Dispatcher
from pagewire.router.events import Event, Sink
from pagewire.router.guard import caller, check_sees_all
from pagewire.router.http_exchange import ErrorBody, id_headers, receive_body, refusal, request_id_of, with_request_id
from pagewire.router.http_protocol import HERE_FOR, OUTLET
from pagewire.router.intake import Intake
from pagewire.router.metrics import RouterMetrics
from pagewire.router.models import POD_ROLES, Models, ServedModel
from pagewire.router.openai import Call, parse
from pagewire.router.refusals import Refused
from pagewire.router.responses import call as responses
from pagewire.router.responses.answer import ResponseAnswer, ResponseStream
from pagewire.router.streaming import EventStream, Form, Outgoing, unless_gone, whole
from pagewire.router.token_desk import TokenDesk
from pagewire.router.turns import Turn
from pagewire.router.validation import is_request_id
from pagewire.serving.lifecycle import Lifecycle, Stage

log = logging.getLogger(__name__)

TIMELINE_HEADER = "x-pagewire-timeline"
EXPLAIN_HEADER = "x-pagewire-explain"
TRACE_KEY = "traceparent"
VERSION = own_version()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One that generates: how its bodies are read, how they are answered, whole, while the answer grows and with an
    error, and what it is in OpenTelemetry's words.
    """

    parse: Callable[..., Call]
    answer: Callable[..., Form]
    stream: Callable[[Any], Outgoing]
    operation: str
    error: ErrorBody = error_body


ENDPOINTS = {
    "/v1/chat/completions": Endpoint(
        parse=partial(parse, is_chat=True), answer=Answer, stream=AnswerStream, operation=CHAT
    ),
    "/v1/completions": Endpoint(
        parse=partial(parse, is_chat=False), answer=Answer, stream=AnswerStream, operation=COMPLETION
    ),
    "/v1/responses": Endpoint(parse=responses.parse, answer=ResponseAnswer, stream=ResponseStream, operation=CHAT),
    "/v1/messages": Endpoint(
        parse=anthropic.parse, answer=MessageAnswer, stream=MessageStream, operation=CHAT, error=message_error
    ),
}


class FrontDoor:
    """The HTTP application of one router."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        models: Models,
        index: Callable[[], Mapping[str, object]],
        lifecycle: Lifecycle,
        metrics: RouterMetrics,
        max_body_bytes: int,
        max_bodies_bytes: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._models = models
        self._index = index
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._room = BodyRoom(max_bodies_bytes)
        self._started = int(time.time())
        self._token_desk = TokenDesk(models, metrics.unknown_fields.inc)

    def app(self, others: Iterable[BaseRoute] = ()) -> ASGIApp:
        """Return the ASGI application; `others` are routes that this door knows nothing of."""
        generations = {path: _Generation(door=self, endpoint=endpoint) for path, endpoint in ENDPOINTS.items()}
        framework = Starlette(
            routes=[
                *(Route(path, each, methods=["POST"]) for path, each in generations.items()),
                Route("/v1/models", self.models),
                Route("/v1/models/{model:path}", self.model),
                Route("/health", self.health),
                Route("/ready", self.health),
                Route("/ping", self.health, methods=["GET", "POST"]),
                Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
                Route("/v1/responses/input_tokens", self.input_tokens, methods=["POST"]),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
                Route("/version", self.version),
                Route("/load", self.load),
                Route("/openapi.json", self.openapi),
                Route("/live", self.live),
                Route("/metrics", self.metrics),
                *others,
            ],
            exception_handlers={HTTPException: _http_error, Exception: _http_error},
        )

        # Who asks for a path with a slash too many would be sent to wherever its Host header says.
        framework.router.redirect_slashes = False
        others_named = with_request_id(framework)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            # What the framework puts around an application would cost every part of a stream.
            is_post = scope["type"] == "http" and scope["method"] == "POST"
            generation = generations.get(scope["path"]) if is_post else None
            await (generation or others_named)(scope, receive, send)

        return app

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        request_id = request_id_of(request.headers)
        try:
            body = models_body(self._models.linked(), self._started)
        except PagewireError as error:
            return refusal(error, request_id)
        return JSONResponse(body)

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        if not request.path_params["model"]:
            raise HTTPException(404)
        request_id = request_id_of(request.headers)
        try:
            name = request.path_params["model"]
            body = model_body(self._models.of(name).intake.limits(), self._started, name)
        except PagewireError as error:
            return refusal(error, request_id)
        return JSONResponse(body)

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens: how many tokens the prompt of a message has."""
        return await self._told(request, self._token_desk.count_message, message_error)

    async def input_tokens(self, request: Request) -> Response:
        """POST /v1/responses/input_tokens: how many tokens the prompt of a response has."""
        return await self._told(request, self._token_desk.count_response)

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: the tokens of a text or a chat."""
        return await self._told(request, self._token_desk.tokenize)

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: the text of tokens."""
        return await self._told(request, self._token_desk.detokenize)

    async def version(self, _request: Request) -> Response:
        """GET /version."""
        return JSONResponse({"version": VERSION})

    async def load(self, _request: Request) -> Response:
        """GET /load: how many requests are admitted now."""
        return JSONResponse({"server_load": self._dispatcher.active})

    async def openapi(self, _request: Request) -> Response:
        """GET /openapi.json: what this API takes and answers."""
        return JSONResponse(openapi.document(VERSION))

    async def health(self, _request: Request) -> Response:
        """GET /health: 200 while a request for some model would be admitted and some pod could take it.

        Another model may have no pod meanwhile: `models` says which can serve, and each answers for itself; "no_pod" is
        the status where none can. Names pods in brownout, those kept out for what attempts on them showed, those
        refused with why, and says what the prefix index is worth.
        """
        is_healthy = self._lifecycle.is_ready and self._models.can_serve
        counts = {model.title: model.num_pods() for model in self._models}
        levels = {pod.pod_id: pod.load.brownout for model in self._models for pod in model.pool.usable(*POD_ROLES)}
        body = {
            "status": "no_pod" if self._lifecycle.is_ready and not is_healthy else self._lifecycle.stage.name.lower(),
            "pods": {role: sum(each[role] for each in counts.values()) for role in POD_ROLES},
            "models": {model.title: model.can_serve for model in self._models},
            "brownout": {pod_id: level for pod_id, level in levels.items() if level is not BrownoutLevel.NORMAL},
            "ejected": {name: cause for model in self._models for name, cause in model.pool.ejected().items()},
            **self._index(),
        }
        return JSONResponse(body, status_code=200 if is_healthy else 503)

    async def live(self, _request: Request) -> Response:
        """GET /live: 200 until the process stops."""
        is_live = self._lifecycle.stage is not Stage.STOPPED
        return JSONResponse({"status": self._lifecycle.stage.name.lower()}, status_code=200 if is_live else 503)

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics."""
        self._metrics.active.set(self._dispatcher.active)
        self._metrics.pods.clear()  # a model that had no name yet may have one now
        self._metrics.concurrency_limit.clear()
        for model in self._models:
            for of, limit in model.entrance.gate.places.limits.items():
                self._metrics.concurrency_limit.labels(model.title, of).set(limit.most)
            for role, count in model.num_pods().items():
                self._metrics.pods.labels(model.title, role.value).set(count)
        return Response(self._metrics.exposition(), media_type="text/plain; version=0.0.4")

    async def _told(
        self,
        request: Request,
        tell: Callable[[bytes], Awaitable[dict[str, Any]]],
        body_of_error: ErrorBody = error_body,
    ) -> Response:
        request_id = request_id_of(request.headers)
        try:
            with self._dispatcher.uploading(caller()), self._room.body(caller()) as body:
                await receive_body(request, self._max_body_bytes, body.add)
                data = body.take()
            told = await tell(data)
            return JSONResponse(told, headers=id_headers(request_id))
        except PagewireError as error:
            if isinstance(error, Refused):
                self._dispatcher.refused_unread(error, "", request.scope.get(HERE_FOR, 0.0))
            return refusal(error, request_id, body_of_error)

    async def generate(self, scope: Scope, receive: Receive, send: Send, endpoint: Endpoint) -> None:
        """POST to one of the endpoints that generate."""
        with contextlib.ExitStack() as coming, self._room.body(caller()) as body:
            await self._generate(Request(scope, receive), send, endpoint, coming, body)

    async def _generate(
        self, request: Request, send: Send, endpoint: Endpoint, coming: contextlib.ExitStack, body: Body
    ) -> None:
        scope, receive = request.scope, request.receive
        request_id = request_id_of(request.headers)
        try:
            coming.enter_context(self._dispatcher.coming(caller()))
            await receive_body(request, self._max_body_bytes, body.add)
        except Refused as error:
            await self._refuse_unread(error, request, request_id, endpoint)(scope, receive, send)
            return
        except Exception as error:
            await self._refuse_unasked(error, request_id, endpoint)(scope, receive, send)
            return
        try:
            async with unless_gone(receive):
                response = await self._in_turn(request, body, request_id, endpoint, coming)
                await response(scope, receive, send)
        except Cancelled:
            log.info("request %s: the client went away", request_id, extra={"request_id": request_id})

    async def _in_turn(
        self, request: Request, body: Body, request_id: str, endpoint: Endpoint, coming: contextlib.ExitStack
    ) -> ASGIApp:
        try:
            turn = await self._dispatcher.turn(request.scope.get(HERE_FOR, 0.0))
        except Refused as error:
            return self._refuse_unread(error, request, request_id, endpoint)
        finally:
            coming.close()
        with turn:
            return await self._answer(request, body, request_id, turn, endpoint)

    async def _answer(self, request: Request, body: Body, request_id: str, turn: Turn, endpoint: Endpoint) -> ASGIApp:
        model: ServedModel | None = None
        try:
            call = self._call(request, body, request_id, endpoint)
            request_id = call.ask.request_id
            await self._dispatcher.settled(call.ask.model, turn)
            model = self._models.of(call.ask.model)
            served = model.intake.limits()
            self._check_several(call, model.intake)
        except Exception as error:  # the caller is answered, whatever it was
            return self._refuse_unasked(error, request_id, endpoint, model, endpoint.operation, turn.asked_s)
        answer = endpoint.answer(call=call, model=call.ask.model or served.model, created=int(time.time()))
        try:
            if call.is_streaming:
                stream = EventStream(endpoint.stream(answer), request_id, request.scope.get(OUTLET))
                # Nothing is sent before the first event, so that a refusal has its own status.
                await stream.begin(self._events(call, turn, stream))
                return stream
            events = self._events(call, turn)
            return JSONResponse(await whole(answer, events), headers=id_headers(request_id))
        except Exception as error:
            return refusal(_named(error, request_id), request_id, endpoint.error)  # the dispatcher has counted it

    def _refuse_unasked(
        self,
        error: Exception,
        request_id: str,
        endpoint: Endpoint,
        model: ServedModel | None = None,
        operation: str = "",
        since_s: float = 0.0,
    ) -> Response:
        # Not where it was caught: the error and a frame that it went through would keep each other, and so the body.
        told = _named(error, request_id)
        self._dispatcher.refused_unasked(told, model, operation, since_s)
        return refusal(told, request_id, endpoint.error)

    def _refuse_unread(self, error: Refused, request: Request, request_id: str, endpoint: Endpoint) -> Response:
        self._dispatcher.refused_unread(error, endpoint.operation, request.scope.get(HERE_FOR, 0.0))
        return refusal(error, request_id, endpoint.error)

    def _events(self, call: Call, turn: Turn, sink: Sink | None = None) -> AsyncGenerator[Event, None]:
        if len(call.asks) == 1:
            return self._dispatcher.answer(call.ask, turn, sink)
        turn.over()  # each of them has its own
        return self._dispatcher.answer_all(call.asks)

    def _check_several(self, call: Call, intake: Intake) -> None:
        """Refuse what is wrong with one of several prompts before any of them runs."""
        if len(call.asks) == 1:
            return
        most = self._dispatcher.most_at_once(call.ask.tenant)
        if len(call.asks) > most:  # coming back later would not help
            text = f"prompt holds {len(call.asks)} prompts, and {most} requests may run at once"
            raise InvalidRequest(text, field="prompt")
        for ask in call.asks:
            intake.check(ask)

    def _call(self, request: Request, body: Body, request_id: str, endpoint: Endpoint) -> Call:
        with_timeline = request.headers.get(TIMELINE_HEADER, "") in ("1", "true")
        explain = request.headers.get(EXPLAIN_HEADER, "") in ("1", "true")
        if explain:
            check_sees_all()
        correlation = request.headers.get("x-correlation-id", "")
        parents = request.headers.getlist(TRACE_KEY)
        origin = {
            "request_id": request_id,
            "correlation_id": correlation if is_request_id(correlation) else "",
            "tenant": caller(),
            "explain": explain,
            "traceparent": parents[0] if len(parents) == 1 else "",
        }
        is_named = request.headers.get("x-request-id", "") == request_id
        call = endpoint.parse(body.take(), origin, with_timeline=with_timeline, may_name_itself=not is_named)
        self._metrics.unknown_fields.inc(len(call.unknown_fields))
        return call


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Generation:
    """An endpoint that generates, as an application."""

    door: FrontDoor
    endpoint: Endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.door.generate(scope, receive, send, self.endpoint)


def _named(error: Exception, request_id: str) -> PagewireError:
    """Return what a caller is told; what nobody foresaw is logged."""
    if not isinstance(error, PagewireError):
        text = "request %s ended in an error that nobody foresaw"
        log.error(text, request_id, exc_info=error, extra={"request_id": request_id})
    return named(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """The framework's own refusals (no such path, wrong method) in OpenAI's shape; what nobody foresaw is logged."""
    if not isinstance(error, HTTPException):
        return refusal(named(error), request_id_of(request.headers))
    text = f"{request.method} {request.url.path}: {error.detail}"
    told = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    body = {"type": "error", "error": told}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)
