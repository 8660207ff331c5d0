"""A gRPC service from its descriptor, whose calls end as they should: with an answer, or with a named error.

Knows bytes, messages and statuses, nothing of what a method does. A method gets a parsed message and the call's
context, and raises PagewireErrors. Invariants: bytes that are no message are the caller's fault; what nobody foresaw is
logged here and ends that one call; whoever sends or reads nothing keeps a call waiting for a bounded time.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status

from pagewire.core.errors import Cancelled, InvalidRequest, PagewireError, named
from pagewire.serving.request_reader import RequestReader
from pagewire.serving.rich_status import rich_status

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Any, Context], Awaitable[Message]]
Streaming = Callable[[Any, Context], AsyncIterator[Message]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a caller may take over sending a request, and over reading any of what was sent to it; seconds.

    `most_read` requests of a service are read at once.
    """

    upload_s: float = 60.0
    stall_s: float = 60.0
    most_read: int = 32


def service_handler(service: ServiceDescriptor, servicer: object, patience: Patience) -> grpc.GenericRpcHandler:
    """Return what answers the calls of `service` by the methods of `servicer` that have their names.

    Raises TypeError where a method is missing, or of the wrong kind.
    """
    reader = RequestReader(patience.most_read, patience.upload_s)
    methods = {method.name: _handler(method, servicer, reader, patience) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _handler(
    method: MethodDescriptor, servicer: object, reader: RequestReader, patience: Patience
) -> grpc.RpcMethodHandler[Any, Any]:
    answer = getattr(servicer, method.name, None)
    if inspect.isasyncgenfunction(answer) != method.server_streaming or answer is None:
        raise TypeError(f"{type(servicer).__name__}.{method.name} does not fit {method.full_name}")
    serve = functools.partial(
        _stream if method.server_streaming else _call, GetMessageClass(method.input_type), answer, reader, patience
    )
    serialize = GetMessageClass(method.output_type).SerializeToString
    # Of the kind that leaves the reading to us, whatever the method's own: only so has it an end.
    return grpc.stream_stream_rpc_method_handler(serve, response_serializer=serialize)


async def _call(
    kind: type[Message], answer: Unary, reader: RequestReader, patience: Patience, _requests: object, context: Context
) -> None:
    try:
        said = await answer(_parsed(kind, await reader.read(context)), context)
    except grpc.aio.AbortError:
        raise  # by the method itself, with a status that no error of ours has
    except Exception as error:
        status = _status(error)
    else:
        async with asyncio.timeout(patience.stall_s):
            await context.write(said)
        return
    await context.abort_with_status(status)


async def _stream(
    kind: type[Message],
    answer: Streaming,
    reader: RequestReader,
    patience: Patience,
    _requests: object,
    context: Context,
) -> None:
    # Writing waits for whoever reads, and a connection that lives says nothing of that: keepalive does not end it.
    now_s, stalled = asyncio.get_running_loop().time, asyncio.timeout(None)
    try:
        messages = answer(_parsed(kind, await reader.read(context)), context)
        async with stalled, aclosing(messages):  # type: ignore[type-var]
            async for message in messages:
                stalled.reschedule(now_s() + patience.stall_s)
                await context.write(message)
                stalled.reschedule(None)
        return
    except Exception as error:
        if stalled.expired():
            status = _status(Cancelled(f"nothing of the answer was read for {patience.stall_s:g} s"))
        else:
            status = _status(error)
    await context.abort_with_status(status)


def _parsed(kind: type[Message], data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"this is no {kind.DESCRIPTOR.full_name}: {error}", field="body") from error


def _status(error: Exception) -> grpc.Status:
    """Return what `error` ends a call with. That is done when the error is gone: gRPC keeps what it raises then, with
    all that this was raised from, and so the request itself, until the garbage collector comes by.
    """
    if not isinstance(error, PagewireError):
        log.error("a call ended in an error that nobody foresaw", exc_info=error)
    told = named(error)
    status: grpc.Status = rpc_status.to_status(rich_status(told, told.request_id))
    return status
