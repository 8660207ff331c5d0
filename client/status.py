"""gRPC statuses to errors, by their rich details where the router sent any. Protobuf stops here."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from pagewire.core.errors import STATUS_OF, InvalidRequest, PagewireError, RouterLost, TransferFailed, from_cause

_DETAILS_KEY = "grpc-status-details-bin"
# How gRPC words that the other side, which says CANCELLED when it stops, or something in between broke the stream off.
_BROKEN_STREAM = {"INTERNAL": "RST_STREAM", "UNKNOWN": "Stream removed", "CANCELLED": "CANCELLED"}
# What is most likely meant by gRPC's words for a connection that did not come about.
_UNCONNECTED = "failed to connect"
_LIKELY = {
    "Socket closed": "it may speak TLS alone, or refuse the certificate that it was shown or not shown",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "missing selected ALPN": "it speaks TLS, and no gRPC: HTTP has another port",
    "http1.x server": "it speaks HTTP, and no gRPC: that has another port",
}


def error_from_wire(
    code: str, message: str, trailing_metadata: Iterable[tuple[str, str | bytes]], request_id: str
) -> PagewireError:
    """Return the error that a gRPC status stands for. `code` is its name, such as "UNAVAILABLE"."""
    cause, field, retry_after_s = "", "", 0.0
    for key, value in trailing_metadata:
        if key != _DETAILS_KEY or not isinstance(value, bytes):
            continue
        for detail in _details(value):
            if isinstance(detail, error_details_pb2.ErrorInfo):
                cause = detail.reason
                request_id = detail.metadata.get("request_id") or request_id
            elif isinstance(detail, error_details_pb2.BadRequest) and detail.field_violations:
                field = detail.field_violations[0].field
            elif isinstance(detail, error_details_pb2.RetryInfo):
                retry_after_s = max(0.0, detail.retry_delay.seconds + detail.retry_delay.nanos / 1e9)
    cause = cause or _cause_of(code, message)
    error = from_cause(cause, _explained(message), field=field, retry_after_s=retry_after_s)
    error.request_id = request_id
    return error


def _details(data: bytes) -> list[object]:
    found: list[object] = []
    try:
        status = status_pb2.Status.FromString(data)
        for packed in status.details:
            for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
                if packed.Is(kind.DESCRIPTOR):
                    detail = kind()
                    packed.Unpack(detail)
                    found.append(detail)
    except DecodeError:
        # Details are an extra; the status code and its text still say what happened.
        return []
    return found


def _explained(message: str) -> str:
    likely = (meaning for words, meaning in _LIKELY.items() if words in message)
    meaning = next(likely, "") if message.startswith(_UNCONNECTED) else ""
    return f"{message}; {meaning}" if meaning else message


def _cause_of(code: str, message: str) -> str:
    """Return the cause of a status without details: no router of ours said it, but gRPC or what is in between."""
    if code == "UNAVAILABLE" or (code in _BROKEN_STREAM and _BROKEN_STREAM[code] in message):
        return RouterLost.cause
    if code == "RESOURCE_EXHAUSTED" and ("larger than max" in message or "metadata size exceeds" in message):
        return InvalidRequest.cause  # no router's word but gRPC's, and no other try makes it smaller
    rows = ((error, status) for error, status in STATUS_OF.items() if not issubclass(error, TransferFailed))
    return next((error.cause for error, status in rows if status.grpc == code), code.lower())
