"""The error tree: every error is in the table, crosses a border as itself, and an unknown cause is never a success."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from pagewire.core import errors
from pagewire.core.errors import (
    STATUS_OF,
    ContextTooLong,
    EngineFailed,
    ErrorInfo,
    InvalidRequest,
    Overloaded,
    PagewireError,
    PeerMismatch,
    RoleRefused,
    TransferFailed,
    Unavailable,
    UnsupportedEncoding,
    from_cause,
    named,
    status_of,
)

# As google.rpc.Code maps gRPC's statuses to HTTP's.
HTTP_OF = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
# Of FAILED_PRECONDITION it says 400, and these two are no fault of the words that were sent; of UNIMPLEMENTED 501, and
# here it is the caller who can do otherwise.
OTHERWISE = {RoleRefused: 409, PeerMismatch: 500, UnsupportedEncoding: 415}


def subclasses(root: type[PagewireError]) -> set[type[PagewireError]]:
    return {root}.union(*(subclasses(child) for child in root.__subclasses__()))


def test_every_error_has_a_row_and_a_cause_of_its_own() -> None:
    # A folder may refine an error for itself: outside it is what it derives from.
    tree = {kind for kind in subclasses(PagewireError) if kind.__module__ == errors.__name__} - {PagewireError}
    assert tree == set(STATUS_OF)
    assert len({error.cause for error in tree}) == len(tree)


def test_a_refined_error_has_the_row_of_what_it_refines() -> None:
    class Torn(TransferFailed):
        pass

    assert status_of(Torn("half a block")) == STATUS_OF[TransferFailed]
    assert status_of(PagewireError("of no kind")) == STATUS_OF[EngineFailed]


def test_the_drawing_shows_every_error() -> None:
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"(?:^|\|- )\s*([A-Z][A-Za-z]+)(?:\s|$)", errors.__doc__, re.MULTILINE))
    assert {error.__name__ for error in STATUS_OF} <= drawn


@pytest.mark.parametrize("error", STATUS_OF)
def test_an_error_crosses_a_border_as_itself(error: type[PagewireError]) -> None:
    sent = error("why", retry_after_s=2.5)
    if isinstance(sent, InvalidRequest):
        sent.field = "top_p"
    back = ErrorInfo.of(sent).error()
    assert type(back) is error
    assert (back.message, back.retry_after_s) == ("why", 2.5)
    if isinstance(back, InvalidRequest):
        assert back.field == "top_p"


def test_an_unknown_cause_is_a_failure() -> None:
    unknown = from_cause("of_a_newer_peer", "why")
    assert type(unknown) is EngineFailed
    assert unknown.message == "of_a_newer_peer: why"
    assert status_of(PagewireError("why")) == STATUS_OF[EngineFailed]


@pytest.mark.parametrize("error", STATUS_OF)
def test_a_status_is_the_same_over_grpc_and_http(error: type[PagewireError]) -> None:
    status = STATUS_OF[error]
    assert status.http == OTHERWISE.get(error, HTTP_OF.get(status.grpc))


@pytest.mark.parametrize("error", STATUS_OF)
def test_another_try_helps_where_there_was_no_room_no_pod_or_no_way(error: type[PagewireError]) -> None:
    assert STATUS_OF[error].retryable is issubclass(error, Overloaded | Unavailable | TransferFailed)


@pytest.mark.parametrize("error", STATUS_OF)
def test_an_error_that_says_no_more_than_why_promises_nothing(error: type[PagewireError]) -> None:
    plain = error("why")
    assert (str(plain), plain.message, plain.retry_after_s, plain.request_id) == ("why", "why", 0.0, "")
    assert not isinstance(plain, InvalidRequest) or plain.field == ""
    assert ErrorInfo.of(plain) == ErrorInfo(cause=error.cause, message="why")
    assert from_cause(error.cause, "why").retry_after_s == ErrorInfo.of(plain).error().retry_after_s == 0.0


def test_a_context_that_is_too_long_is_told_in_openais_words() -> None:
    error = ContextTooLong("you asked for 600", field="max_tokens", max_tokens=512, retry_after_s=1.5)
    assert error.message == str(error) == "This model's maximum context length is 512 tokens: you asked for 600"
    assert (error.field, error.retry_after_s) == ("max_tokens", 1.5)


def test_what_nobody_foresaw_is_told_of_in_few_words() -> None:
    known = Overloaded("full", retry_after_s=3.0)
    assert named(known) is known
    no_memory = named(MemoryError("12 GiB at 0x7f"))
    assert isinstance(no_memory, Unavailable)
    assert (no_memory.message, no_memory.retry_after_s) == ("this process has no memory left", 1.0)
    unforeseen = named(KeyError("a secret"))
    assert type(unforeseen) is EngineFailed
    assert unforeseen.message == "internal error"


def test_statuses_exist_in_grpc() -> None:
    for status in STATUS_OF.values():
        assert grpc.StatusCode[status.grpc] is not grpc.StatusCode.OK
        assert 400 <= status.http < 600


def test_the_file_is_stdlib_only() -> None:
    assert "import grpc" not in Path(errors.__file__).read_text()
