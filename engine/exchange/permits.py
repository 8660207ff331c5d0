"""Tickets, as one pod uses them: minted for what it takes, spent for what it serves.

Binds the pure `kvtransfer.ticket` to a pod's name and the wall clock. Invariant: a ticket is spent once at most, by the
pod it names, for the link it came over.
"""

from __future__ import annotations

from collections.abc import Callable

from pagewire.core.messages import Fetch, Run
from pagewire.kvtransfer.shipment import IncomingShipment
from pagewire.kvtransfer.ticket import LIFE_S, TicketClaims, TicketKey
from pagewire.kvtransfer.ticket_ledger import TicketLedger


class Permits:
    """The tickets of the pod `pod_id`. `wall` is the wall clock: a MAC cannot hold a remaining time."""

    def __init__(self, pod_id: str, secret: bytes, wall: Callable[[], float]) -> None:
        self._pod_id = pod_id
        self._key = TicketKey(secret)
        self._ledger = TicketLedger()
        self._wall = wall

    def mint(self, shipment: IncomingShipment, source: str) -> bytes:
        """Return the ticket with which we take `shipment` from the pod `source`."""
        claims = TicketClaims(
            request_id=shipment.request_id,
            source=source,
            target=self._pod_id,
            shipment_id=shipment.shipment_id,
            first_block=shipment.first_block,
            generation=shipment.generation,
        )
        return self._key.mint(claims, self._wall() + LIFE_S)

    def spend(self, asked: Run | Fetch, taker: str) -> None:
        """Use up the ticket that `taker` sent; raises Unauthenticated when it is not good for just this."""
        claims = TicketClaims(
            request_id=asked.spec.request_id if isinstance(asked, Run) else asked.request_id,
            source=self._pod_id,
            target=taker,
            shipment_id=asked.shipment_id,
            first_block=asked.first_block,
            generation=asked.generation,
        )
        forget_at_s = self._key.verify(asked.ticket, claims, self._wall())
        self._ledger.spend(asked.ticket, forget_at_s, self._wall())
