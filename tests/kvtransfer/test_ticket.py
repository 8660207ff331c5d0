"""Tickets: good for exactly one shipment, for a while, once."""

from __future__ import annotations

import dataclasses
import hmac
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.errors import Unauthenticated
from pagewire.kvtransfer.ticket import ALLOWED_SKEW_S, LIFE_S, TICKET_BYTES, TicketClaims, TicketKey
from pagewire.kvtransfer.ticket_ledger import LEAST_SWEPT, TicketLedger

KEY = TicketKey(b"cluster secret", skew_s=30)
CLAIMS = TicketClaims(request_id="r-1", source="P", target="D", shipment_id=7, first_block=3, generation=1)
OTHERS = [
    dataclasses.replace(CLAIMS, request_id="r-2"),
    dataclasses.replace(CLAIMS, source="P2"),
    dataclasses.replace(CLAIMS, target="D2"),
    dataclasses.replace(CLAIMS, source="D", target="P"),
    dataclasses.replace(CLAIMS, shipment_id=8),
    dataclasses.replace(CLAIMS, first_block=2),
    dataclasses.replace(CLAIMS, generation=2),
    dataclasses.replace(CLAIMS, request_id="r-1P", source=""),  # the same letters, cut elsewhere
]


def test_a_ticket_is_good_until_it_expires_and_for_the_skew_after() -> None:
    ticket = KEY.mint(CLAIMS, 1000.4)
    assert len(ticket) == TICKET_BYTES
    assert KEY.verify(ticket, CLAIMS, 950.0) == 1031.0
    assert KEY.verify(ticket, CLAIMS, 1031.0) == 1031.0
    with pytest.raises(Unauthenticated, match="expired"):
        KEY.verify(ticket, CLAIMS, 1031.5)


def test_a_ticket_is_the_bytes_that_its_definition_says() -> None:
    claims = [b"r-1", b"P", b"D", b"7", b"3", b"1"]
    head = struct.pack("<BQ", 1, 1001)  # the version; a ticket of another is not good, whoever signed it
    signed = b"pagewire ticket" + head + b"".join(struct.pack("<I", len(part)) + part for part in claims)
    assert KEY.mint(CLAIMS, 1000.4) == head + hmac.new(b"cluster secret", signed, "sha256").digest()
    other = struct.pack("<BQ", 2, 1001)
    signed = signed.replace(head, other)
    with pytest.raises(Unauthenticated):
        KEY.verify(other + hmac.new(b"cluster secret", signed, "sha256").digest(), CLAIMS, 950.0)


@pytest.mark.parametrize("other", OTHERS)
def test_a_ticket_for_something_else_is_refused(other: TicketClaims) -> None:
    with pytest.raises(Unauthenticated):
        KEY.verify(KEY.mint(CLAIMS, 1000), other, 950.0)


@given(at=st.integers(0, TICKET_BYTES - 1), bit=st.integers(0, 7))
def test_every_bit_counts(at: int, bit: int) -> None:
    ticket = bytearray(KEY.mint(CLAIMS, 1000))
    ticket[at] ^= 1 << bit
    with pytest.raises(Unauthenticated):
        KEY.verify(bytes(ticket), CLAIMS, 950.0)


@given(ticket=st.binary(max_size=100))
def test_anything_else_is_refused(ticket: bytes) -> None:
    with pytest.raises(Unauthenticated):
        KEY.verify(ticket, CLAIMS, 0.0)


@pytest.mark.parametrize(
    ("left_s", "is_taken"), [(LIFE_S + ALLOWED_SKEW_S, True), (LIFE_S + ALLOWED_SKEW_S + 1, False)]
)
def test_one_that_is_good_for_longer_than_any_is_refused(left_s: int, is_taken: bool) -> None:
    """Of a clock that is ahead, or a pod that was taken over: it would have to be remembered for as long."""
    key = TicketKey(b"cluster secret")
    ticket = key.mint(CLAIMS, 900 + left_s)
    if is_taken:
        assert key.verify(ticket, CLAIMS, 900.0) == 900 + left_s + ALLOWED_SKEW_S
    else:
        with pytest.raises(Unauthenticated, match="is good for 91 s: 60 are right"):
            key.verify(ticket, CLAIMS, 900.0)


def test_another_clusters_ticket_is_refused() -> None:
    with pytest.raises(Unauthenticated):
        KEY.verify(TicketKey(b"other").mint(CLAIMS, 1000), CLAIMS, 950.0)


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TicketKey(b"")


PARTS = st.tuples(st.text(), st.text(), st.text(), st.integers(0), st.integers(0), st.integers(0))


@given(left=PARTS, right=PARTS)
def test_different_claims_are_different_bytes(left: tuple[object, ...], right: tuple[object, ...]) -> None:
    def signed(parts: tuple[object, ...]) -> bytes:
        names = ("request_id", "source", "target", "shipment_id", "first_block", "generation")
        return TicketClaims(**dict(zip(names, parts, strict=True))).signed_bytes()  # type: ignore[arg-type]

    assert (signed(left) == signed(right)) == (left == right)


def test_a_ticket_is_used_once_and_forgotten_when_it_could_not_be_verified() -> None:
    ledger = TicketLedger(max_tickets=2)
    ledger.spend(b"a", 10.0, 0.0)
    with pytest.raises(Unauthenticated, match="used before"):
        ledger.spend(b"a", 10.0, 0.0)
    ledger.spend(b"b", 20.0, 0.0)
    with pytest.raises(Unauthenticated, match="no more"):
        ledger.spend(b"c", 20.0, 10.0)
    with pytest.raises(Unauthenticated, match="used before"):
        ledger.spend(b"a", 10.0, 10.0)
    with pytest.raises(Unauthenticated, match="no more"):
        ledger.spend(b"c", 30.0, 10.5)  # it was looked through half a second ago
    ledger.spend(b"c", 30.0, 11.0)
    assert len(ledger) == 2
    with pytest.raises(Unauthenticated, match="used before"):
        ledger.spend(b"b", 20.0, 11.0)
    with pytest.raises(Unauthenticated, match="no more"):
        ledger.spend(b"d", 30.0, 11.0)
    ledger.spend(b"d", 30.0, 21.0)
    with pytest.raises(Unauthenticated, match="no more"):
        ledger.spend(b"e", 30.0, 9.0)  # the clock was set back, and it is looked through, in vain


@pytest.mark.parametrize("lives_s", [0, 100, LEAST_SWEPT, 5000])
def test_a_ledger_holds_few_more_than_can_be_verified(lives_s: int) -> None:
    ledger = TicketLedger()
    held = []
    for now_s in range(20_000):
        ledger.spend(now_s.to_bytes(4, "big"), now_s + lives_s, now_s)
        held.append(len(ledger))
    assert max(held) <= max(LEAST_SWEPT, 2 * (lives_s + 1))
    assert sum(later <= sooner for sooner, later in pairwise(held)) <= 20_000 / (LEAST_SWEPT / 2), "it looks rarely"
    for number in range(20_000 - 1 - lives_s, 20_000):
        with pytest.raises(Unauthenticated, match="used before"):
            ledger.spend(number.to_bytes(4, "big"), number + lives_s, 19_999)


def test_a_ledger_is_bounded_by_itself() -> None:
    ledger = TicketLedger()
    for number in range(65536):
        ledger.spend(number.to_bytes(4, "big"), 10.0, 0.0)
    with pytest.raises(Unauthenticated, match="65536 tickets"):
        ledger.spend(b"one more", 10.0, 0.0)
