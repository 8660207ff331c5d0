"""The gRPC front door: `pagewire.v1.Inference`.

Knows the calls; their messages are in `codec.py`, what a request does is in `dispatch.py`. A call that ends cancels its
request. Errors are rich statuses, made of PagewireErrors by whoever serves this.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from pagewire.core.errors import DeadlineExceeded, PagewireError
from pagewire.protos import inference_pb2 as pb
from pagewire.router.cache_watch import CacheWatch
from pagewire.router.codec import (
    ask_from_wire,
    cache_news_to_wire,
    pod_load_to_wire,
    response_to_wire,
    tokenize_from_wire,
)
from pagewire.router.dispatch import Dispatcher
from pagewire.router.events import Chunk, Finished
from pagewire.router.guard import caller, check_sees_all
from pagewire.router.json_text import MAX_VALUES
from pagewire.router.models import Models
from pagewire.serving.grpc_service import Context, Patience, service_handler

DESCRIPTOR = pb.DESCRIPTOR.services_by_name["Inference"]
SERVICE: str = DESCRIPTOR.full_name
EXPLAIN_KEY = "x-pagewire-explain"
TRACE_KEY = "traceparent"


def reflect(server: grpc.aio.Server) -> None:
    """Let gRPC tools ask what is served; call before the server starts."""
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


class Inference:
    """The public service. Callers who are slow are given up, as `patience` says; who listens to cache events has to
    come again, with a key, after `watch_s` seconds."""

    def __init__(
        self, dispatcher: Dispatcher, models: Models, cache_watch: CacheWatch, patience: Patience, *, watch_s: float
    ) -> None:
        self._dispatcher = dispatcher
        self._models = models
        self._cache_watch = cache_watch
        self._patience = patience
        self._watch_s = watch_s

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what the router's gRPC server answers."""
        return service_handler(DESCRIPTOR, self, self._patience)

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Stream an answer."""
        request_id = request.request_id or uuid.uuid4().hex
        metadata = context.invocation_metadata() or ()
        explain = request.explain or (EXPLAIN_KEY, "1") in metadata
        parents = [value for key, value in metadata if key == TRACE_KEY and isinstance(value, str)]
        traceparent = parents[0] if len(parents) == 1 else ""
        left_s = context.time_remaining()
        try:
            if explain:
                check_sees_all()
            if left_s is not None and left_s <= 0:
                raise DeadlineExceeded("the call's deadline had passed when it was read")
            ask = ask_from_wire(request, request_id, left_s, max(MAX_VALUES, self._models.longest_context))
        except PagewireError as error:
            self._dispatcher.refused_unasked(error)
            raise
        ask = dataclasses.replace(ask, tenant=caller(), explain=explain, traceparent=traceparent)
        async with aclosing(self._dispatcher.answer(ask)) as events:
            async for event in events:
                # `complete` says of the prompt what is to be said, and of a score there is no more.
                if isinstance(event, Finished) or (isinstance(event, Chunk) and not ask.is_score):
                    yield response_to_wire(request_id, event)

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, _context: Context) -> pb.GetModelInfoResponse:
        """Say what is served of a model, the first one where none is named."""
        model = self._models.of(request.model)
        limits = model.intake.limits()
        fingerprint = model.pool.fingerprint
        return pb.GetModelInfoResponse(
            model=limits.model,
            max_model_len=limits.max_model_len,
            block_size=fingerprint.block_size if fingerprint is not None else 0,
            vocab_size=limits.vocab_size,
            adapters=limits.adapters,
        )

    async def Tokenize(self, request: pb.TokenizeRequest, _context: Context) -> pb.TokenizeResponse:
        """Return a prompt's tokens, by the check and the template of Generate, but for how many fit."""
        ask = dataclasses.replace(tokenize_from_wire(request, uuid.uuid4().hex), tenant=caller())
        intake = self._models.of(request.model).intake
        limits, tokens = await intake.tokenize(ask)
        return pb.TokenizeResponse(token_ids=tokens, max_model_len=limits.max_model_len)

    async def GetLoads(self, _request: pb.GetLoadsRequest, _context: Context) -> pb.GetLoadsResponse:
        """Say what each known pod holds and has to do; operators alone may know, where there are keys."""
        check_sees_all()
        standings = [each for model in self._models for each in model.pool.standings()]
        standings.sort(key=lambda each: each.pod.pod_id)
        return pb.GetLoadsResponse(pods=[pod_load_to_wire(each) for each in standings])

    async def SubscribeKvEvents(
        self, request: pb.SubscribeKvEventsRequest, _context: Context
    ) -> AsyncGenerator[pb.KvEvent, None]:
        """Stream what pods' caches hold, gain and lose, for `watch_s` or until the router drains; as GetLoads."""
        check_sees_all()
        now_s = asyncio.get_running_loop().time
        ends_s = now_s() + self._watch_s
        with self._cache_watch.subscribe(request.pod_ids) as subscription, contextlib.suppress(TimeoutError):
            while (left_s := ends_s - now_s()) > 0:
                async with asyncio.timeout(left_s):
                    news = await subscription.take()
                yield cache_news_to_wire(news)
        raise DeadlineExceeded(f"cache events are told for {self._watch_s:g} s at a time: subscribe anew")
