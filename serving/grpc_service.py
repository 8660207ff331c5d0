"""A gRPC service from its descriptor, whose calls end as they should: with an answer, or with a named error.

Knows bytes, messages and statuses, nothing of what a method does. A method gets a parsed message and the call's
context, and raises PagewireErrors. Invariant: bytes that are no message are the caller's fault, and what nobody foresaw
is logged here and ends that one call.
"""

from __future__ import annotations

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

from pagewire.core.errors import EngineFailed, InvalidRequest, PagewireError
from pagewire.serving.grpc_server import abort

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Any, Context], Awaitable[Message]]
Streaming = Callable[[Any, Context], AsyncIterator[Message]]


def service_handler(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """Return what answers the calls of `service` by the methods of `servicer` that have their names.

    Raises TypeError where one is missing, or of the wrong kind.
    """
    methods = {method.name: _handler(method, servicer) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _handler(method: MethodDescriptor, servicer: object) -> grpc.RpcMethodHandler[Any, Any]:
    answer = getattr(servicer, method.name, None)
    if inspect.isasyncgenfunction(answer) != method.server_streaming or answer is None:
        raise TypeError(f"{type(servicer).__name__}.{method.name} does not fit {method.full_name}")
    kind = GetMessageClass(method.input_type)
    serialize = GetMessageClass(method.output_type).SerializeToString
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            functools.partial(_stream, kind, answer), response_serializer=serialize
        )
    return grpc.unary_unary_rpc_method_handler(functools.partial(_call, kind, answer), response_serializer=serialize)


async def _call(kind: type[Message], answer: Unary, data: bytes, context: Context) -> Message:
    try:
        return await answer(_parsed(kind, data), context)
    except Exception as error:
        await _end(context, error)
        raise


async def _stream(kind: type[Message], answer: Streaming, data: bytes, context: Context) -> AsyncIterator[Message]:
    try:
        async with aclosing(answer(_parsed(kind, data), context)) as messages:  # type: ignore[type-var]
            async for message in messages:
                yield message
    except Exception as error:
        await _end(context, error)
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
