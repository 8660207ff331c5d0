"""Errors as gRPC tells them: rich statuses, with a reason, the field at fault and a time to come back."""

from __future__ import annotations

from typing import NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from pagewire.core.errors import InvalidRequest, PagewireError, status_of

ERROR_DOMAIN = "pagewire"
MAX_TEXT_BYTES = 1000  # of an error; trailers have 8 KiB for all, in which a text comes up to three times


def rich_status(error: PagewireError, request_id: str = "") -> status_pb2.Status:
    """Return `error` as a google.rpc.Status: ErrorInfo (reason = cause), BadRequest and RetryInfo where they apply.

    Long texts are cut, so that the status fits into trailers.
    """
    message = _cut(error.message, MAX_TEXT_BYTES)
    metadata = {"request_id": _cut(request_id, 128)}
    details = [error_details_pb2.ErrorInfo(reason=error.cause, domain=ERROR_DOMAIN, metadata=metadata)]
    if isinstance(error, InvalidRequest) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s > 0:
        delay = duration_pb2.Duration(nanos=0)
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code_pb2.Code.Value(status_of(error).grpc), message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _cut(text: str, num_bytes: int) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= num_bytes else data[: num_bytes - 3].decode(errors="ignore") + "..."


async def abort(
    context: grpc.aio.ServicerContext[object, object], error: PagewireError, request_id: str = ""
) -> NoReturn:
    """End a call with `error` as a rich status."""
    await context.abort_with_status(rpc_status.to_status(rich_status(error, request_id)))
    raise AssertionError("abort_with_status always raises")
