"""The error tree: every error is in the table, crosses a border as itself, and an unknown cause is never a success."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from pagewire.core import errors
from pagewire.core.errors import (
    STATUS_OF,
    EngineFailed,
    ErrorInfo,
    InvalidRequest,
    PagewireError,
    TransferFailed,
    from_cause,
    status_of,
)


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
    assert isinstance(from_cause("of_a_newer_peer", "why"), EngineFailed)
    assert status_of(PagewireError("why")) == STATUS_OF[EngineFailed]


def test_statuses_exist_in_grpc() -> None:
    for status in STATUS_OF.values():
        assert grpc.StatusCode[status.grpc] is not grpc.StatusCode.OK
        assert 400 <= status.http < 600


def test_the_file_is_stdlib_only() -> None:
    assert "import grpc" not in Path(errors.__file__).read_text()
