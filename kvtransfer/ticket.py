"""The permission to have a prompt's blocks shipped: what it says and who signed it; `TicketLedger` sees it used once.

    ticket = version u8 | expiry u64 (wall-clock seconds) | HMAC-SHA256 over both and the length-prefixed claims

The claims themselves do not travel in it: the verifier takes them from the frame and the link, so a ticket fits one
request, pair of pods and generation, or nothing. A MAC cannot hold a remaining time, so expiry is a wall-clock moment;
both clocks are passed in and may differ by `skew_s`. Knows no clock and no link. Invariants: an empty secret signs and
verifies nothing (refused at construction); what was verified can be forgotten after `LIFE_S` and twice the skew.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass

from pagewire.core.errors import Unauthenticated

VERSION = 1
ALLOWED_SKEW_S = 30
LIFE_S = 60  # as long as whoever mints one may have it be good
_HEAD = struct.Struct("<BQ")
_MAC_BYTES = 32
TICKET_BYTES = _HEAD.size + _MAC_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketClaims:
    """What a ticket is for: `source` is the prefill pod's id, `target` the decode pod's."""

    request_id: str
    source: str
    target: str
    shipment_id: int
    first_block: int
    generation: int

    def signed_bytes(self) -> bytes:
        """Return the claims without ambiguity: every part behind its length."""
        texts = (self.request_id, self.source, self.target)
        numbers = (self.shipment_id, self.first_block, self.generation)
        parts = [text.encode() for text in texts] + [str(number).encode() for number in numbers]
        return b"".join(struct.pack("<I", len(part)) + part for part in parts)


class TicketKey:
    """Mints and verifies under the cluster's secret. Raises ValueError on an empty one."""

    def __init__(self, secret: bytes, *, skew_s: int = ALLOWED_SKEW_S) -> None:
        if not secret:
            raise ValueError("the cluster secret is empty: anybody could mint tickets")
        self._secret = secret
        self._skew_s = skew_s

    def mint(self, claims: TicketClaims, expires_at_s: float) -> bytes:
        """Return a ticket that is good until the wall-clock moment `expires_at_s` (rounded up to whole seconds)."""
        head = _HEAD.pack(VERSION, int(-(-expires_at_s // 1)))
        return head + self._mac(head, claims)

    def verify(self, ticket: bytes, claims: TicketClaims, wall_now_s: float) -> float:
        """Return when it can be forgotten once used; raises Unauthenticated when it is not good for `claims` now."""
        if len(ticket) != TICKET_BYTES:
            raise Unauthenticated(f"a ticket of {len(ticket)} bytes for {claims.request_id}")
        head, mac = ticket[: _HEAD.size], ticket[_HEAD.size :]
        version, expires_at_s = _HEAD.unpack(head)
        if not hmac.compare_digest(mac, self._mac(head, claims)) or version != VERSION:
            raise Unauthenticated(f"the ticket for {claims.request_id} from {claims.target} is not good here")
        if wall_now_s > expires_at_s + self._skew_s:
            raise Unauthenticated(f"the ticket for {claims.request_id} expired {wall_now_s - expires_at_s:.0f} s ago")
        left_s = expires_at_s - wall_now_s
        if left_s >= LIFE_S + self._skew_s + 1:  # it would have to be remembered for as long; one second is rounding
            raise Unauthenticated(f"the ticket for {claims.request_id} is good for {left_s:.0f} s: {LIFE_S} are right")
        return float(expires_at_s + self._skew_s)

    def _mac(self, head: bytes, claims: TicketClaims) -> bytes:
        return hmac.digest(self._secret, b"pagewire ticket" + head + claims.signed_bytes(), "sha256")
