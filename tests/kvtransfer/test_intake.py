"""A shipment's sink: it speaks of its own shipment alone, on the clock, and only when there is something to do."""

from __future__ import annotations

from pagewire.core.clock import ManualClock
from pagewire.kvtransfer.effects import AskResend, Claim, Effects, Verdict
from pagewire.kvtransfer.intake import Intake
from pagewire.kvtransfer.shipment import IncomingShipment


def test_blocks_of_its_shipment_and_generation_are_placed_and_no_others() -> None:
    shipment = IncomingShipment(
        request_id="r", generation=2, shipment_id=9, first_block=0, max_blocks=4, deadline_s=100.0
    )
    shipment.chunk_ready(0, 2, 0.0)
    shipment.bound((50, 51))
    clock, told = ManualClock(), list[tuple[IncomingShipment, Effects]]()
    intake = Intake(shipment, clock, lambda *what: told.append(what))
    for shipment_id, generation in ((8, 2), (9, 1), (9, 3), (2, 9)):
        assert intake.claim(shipment_id, generation, [0, 1]) == [Claim(Verdict.DROP)] * 2
    assert intake.claim(9, 2, [0, 1]) == [Claim(Verdict.PLACE, 50), Claim(Verdict.PLACE, 51)]
    clock.advance(3.0)
    intake.settle(9, 2, [0], True)
    assert (told, shipment.times.last_verified_s) == ([], 3.0)
    intake.settle(9, 2, [1], False)
    assert told == [(shipment, (AskResend(first_block=1, num_blocks=1),))]
