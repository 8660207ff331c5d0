"""A gRPC service from its descriptor, whose calls end as they should: with an answer, or with a named error.

Knows bytes, messages and statuses, nothing of what a method does. A method gets a parsed message and the call's
context, and raises PagewireErrors. Invariants: bytes that are no message are the caller's fault; what nobody foresaw is
logged here and ends that one call; whoever reads nothing keeps a method waiting for a bounded time.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pagewire.core.errors import Cancelled, EngineFailed, InvalidRequest, PagewireError
from pagewire.serving.grpc_server import abort

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Any, Context], Awaitable[Message]]
Streaming = Callable[[Any, Context], AsyncIterator[Message]]


def service_handler(service: ServiceDescriptor, servicer: object, *, stall_s: float) -> grpc.GenericRpcHandler:
    """Return what answers the calls of `service` by the methods of `servicer` that have their names.

    A stream of which nothing is read for `stall_s` seconds ends. Raises TypeError where a method is missing, or of the
    wrong kind.
    """
    methods = {method.name: _handler(method, servicer, stall_s) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _handler(method: MethodDescriptor, servicer: object, stall_s: float) -> grpc.RpcMethodHandler[Any, Any]:
    answer = getattr(servicer, method.name, None)
    if inspect.isasyncgenfunction(answer) != method.server_streaming or answer is None:
        raise TypeError(f"{type(servicer).__name__}.{method.name} does not fit {method.full_name}")
    kind = GetMessageClass(method.input_type)
    serialize = GetMessageClass(method.output_type).SerializeToString
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            functools.partial(_stream, kind, answer, stall_s), response_serializer=serialize
        )
    return grpc.unary_unary_rpc_method_handler(functools.partial(_call, kind, answer), response_serializer=serialize)


async def _call(kind: type[Message], answer: Unary, data: bytes, context: Context) -> Message:
    try:
        return await answer(_parsed(kind, data), context)
    except Exception as error:
        await _end(context, error)
        raise


async def _stream(kind: type[Message], answer: Streaming, stall_s: float, data: bytes, context: Context) -> None:
    # Writing waits for whoever reads, and a connection that lives says nothing of that: keepalive does not end it.
    now_s, patience = asyncio.get_running_loop().time, asyncio.timeout(None)
    try:
        async with patience, aclosing(answer(_parsed(kind, data), context)) as messages:  # type: ignore[type-var]
            async for message in messages:
                patience.reschedule(now_s() + stall_s)
                await context.write(message)
                patience.reschedule(None)
    except Exception as error:
        unread = Cancelled(f"nothing of the answer was read for {stall_s:g} s")
        await _end(context, unread if patience.expired() else error)
        raise


def _parsed(kind: type[Message], data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"this is no {kind.DESCRIPTOR.full_name}: {error}", field="body") from error


async def _end(context: Context, error: Exception) -> None:
    if not isinstance(error, PagewireError):
        log.error("a call ended in an error that nobody foresaw", exc_info=error)
        error = EngineFailed("internal error")
    await abort(context, error, error.request_id)
