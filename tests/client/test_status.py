"""What a gRPC status says went wrong: by its details where a router sent any, and else by its name and words."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, Help, RetryInfo
from google.rpc.status_pb2 import Status

from pagewire.client.status import error_from_wire
from pagewire.core.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineFailed,
    Forbidden,
    InvalidRequest,
    Overloaded,
    PagewireError,
    RoleRefused,
    RouterLost,
    Unauthenticated,
    UnknownModel,
)

KEY = "grpc-status-details-bin"


def packed(*details: Message) -> bytes:
    """The value of the trailer that carries details."""
    status = Status()
    for detail in details:
        one = Any()
        one.Pack(detail)
        status.details.append(one)
    return bytes(status.SerializeToString())


def invalid(*fields: str) -> bytes:
    violations = [BadRequest.FieldViolation(field=field) for field in fields]
    return packed(ErrorInfo(reason="invalid_request"), BadRequest(field_violations=violations))


def overloaded(seconds: int, nanos: int) -> bytes:
    delay = Duration(seconds=seconds, nanos=nanos)
    return packed(ErrorInfo(reason="overloaded"), RetryInfo(retry_delay=delay))


@pytest.mark.parametrize(
    ("code", "words", "kind"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses", RouterLost),
        ("INTERNAL", "Received RST_STREAM with error code 2", RouterLost),
        ("INTERNAL", "Stream removed", EngineFailed),
        ("UNKNOWN", "Stream removed", RouterLost),
        ("UNKNOWN", "Received RST_STREAM with error code 2", EngineFailed),
        ("CANCELLED", "CANCELLED", RouterLost),
        ("CANCELLED", "Locally cancelled by application!", Cancelled),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (5000000 vs. 4194304)", InvalidRequest),
        ("RESOURCE_EXHAUSTED", "received metadata size exceeds soft limit (12000 vs. 8192)", InvalidRequest),
        ("RESOURCE_EXHAUSTED", "no room", Overloaded),
        ("INTERNAL", "Received message larger than max (5000000 vs. 4194304)", EngineFailed),
        ("INVALID_ARGUMENT", "no", InvalidRequest),
        ("NOT_FOUND", "no", UnknownModel),
        ("UNAUTHENTICATED", "no", Unauthenticated),
        ("PERMISSION_DENIED", "no", Forbidden),
        ("DEADLINE_EXCEEDED", "no", DeadlineExceeded),
        ("FAILED_PRECONDITION", "no", RoleRefused),
        ("DATA_LOSS", "no", EngineFailed),
    ],
)
def test_a_status_without_details_is_told_by_its_name_and_its_words(
    code: str, words: str, kind: type[PagewireError]
) -> None:
    error = error_from_wire(code, words, (), "r1")
    assert type(error) is kind
    assert (error.retry_after_s, error.request_id) == (0.0, "r1")
    has_no_class = code in ("DATA_LOSS", "UNKNOWN") and kind is EngineFailed
    assert error.message == (f"{code.lower()}: {words}" if has_no_class else words)


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("UNAVAILABLE: ipv4:1.2.3.4:5: Socket closed", "may speak TLS alone, or refuse the certificate"),
        ("UNKNOWN: ipv4:1.2.3.4:5: Tls handshake failed: WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("UNKNOWN: ipv4:1.2.3.4:5: Cannot check peer: missing selected ALPN property.", "speaks TLS, and no gRPC"),
        (
            "INTERNAL: ipv4:1.2.3.4:5: (Trying to connect an http1.x server (HTTP status 400))",
            "speaks HTTP, and no gRPC",
        ),
    ],
)
def test_what_is_likely_meant_is_said_of_a_connection_that_did_not_come_about(words: str, meaning: str) -> None:
    words = f"failed to connect to all addresses; last error: {words}"
    error = error_from_wire("UNAVAILABLE", words, (), "r1")
    assert type(error) is RouterLost
    assert error.message.startswith(f"{words}; it {meaning}")


def test_of_a_connection_that_broke_nothing_is_guessed() -> None:
    assert error_from_wire("UNAVAILABLE", "Socket closed", (), "r1").message == "Socket closed"


def test_details_say_more_than_the_status() -> None:
    details = packed(ErrorInfo(reason="overloaded", metadata={"request_id": "theirs"}))
    error = error_from_wire("INTERNAL", "full", ((KEY, details),), "ours")
    assert type(error) is Overloaded
    assert (error.message, error.request_id, error.retry_after_s) == ("full", "theirs", 0.0)


@pytest.mark.parametrize(
    "trailer", [(KEY, "text"), ("another-bin", packed(ErrorInfo(reason="overloaded"))), ("another", "text")]
)
def test_other_trailers_are_passed_over(trailer: tuple[str, str | bytes]) -> None:
    details = packed(ErrorInfo(reason="forbidden"))
    for trailers in ((trailer, (KEY, details)), ((KEY, details), trailer)):
        assert type(error_from_wire("INTERNAL", "no", trailers, "r1")) is Forbidden


@pytest.mark.parametrize(("seconds", "nanos", "after_s"), [(1, 500_000_000, 1.5), (0, 250_000_000, 0.25), (-2, 0, 0.0)])
def test_how_long_to_wait_is_at_least_nothing(seconds: int, nanos: int, after_s: float) -> None:
    error = error_from_wire("RESOURCE_EXHAUSTED", "full", ((KEY, overloaded(seconds, nanos)),), "r1")
    assert error.retry_after_s == after_s


@pytest.mark.parametrize(("fields", "field"), [((), ""), (("top_p",), "top_p"), (("top_p", "top_k"), "top_p")])
def test_the_first_field_that_is_wrong_is_named(fields: tuple[str, ...], field: str) -> None:
    error = error_from_wire("INVALID_ARGUMENT", "no", ((KEY, invalid(*fields)),), "r1")
    assert isinstance(error, InvalidRequest)
    assert error.field == field


def test_details_without_an_id_leave_the_one_that_is_known() -> None:
    details = packed(ErrorInfo(reason="overloaded"), Help())
    assert error_from_wire("RESOURCE_EXHAUSTED", "full", ((KEY, details),), "r1").request_id == "r1"


def test_details_of_which_one_is_broken_say_nothing() -> None:
    broken = Status.FromString(packed(ErrorInfo(reason="forbidden"), RetryInfo()))
    broken.details[1].value = b"\xff"
    assert type(error_from_wire("INTERNAL", "no", ((KEY, broken.SerializeToString()),), "r1")) is EngineFailed
