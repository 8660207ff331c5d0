"""A refusal of the router, as metrics and callers see it."""

from __future__ import annotations

from pagewire.core.errors import Overloaded, status_of
from pagewire.router.refusals import Reason, Refused


def test_a_refusal_is_an_overload_with_a_reason_and_says_when_to_come_back() -> None:
    refused = Refused(Reason.QUEUE_FULL, "no room", retry_after_s=2.5)
    assert (refused.reason, refused.message, refused.retry_after_s) == (Reason.QUEUE_FULL, "no room", 2.5)
    assert refused.cause == Overloaded.cause
    assert status_of(refused) == status_of(Overloaded("no room"))
