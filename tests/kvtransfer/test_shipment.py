"""The decode pod's shipment, event by event: the automaton of its docstring, the timings, and what a liar achieves."""

from __future__ import annotations

import pytest

from pagewire.kvtransfer.effects import AskBind, AskResend, Detach, HandOver, Outcome, SendFence, SendLanded, Verdict
from pagewire.kvtransfer.shipment import IncomingShipment, IncomingState

FIRST, ROOM, DEADLINE_S = 2, 8, 100.0
TABLE = tuple(range(50, 60))  # chain index i lies in block 50 + i
LANDED = (Detach(), SendLanded(), HandOver(outcome=Outcome.LANDED, kept_blocks=4))
FENCE = (Detach(), SendFence())


def reserved() -> IncomingShipment:
    return IncomingShipment(
        request_id="r", generation=1, shipment_id=9, first_block=FIRST, max_blocks=ROOM, deadline_s=DEADLINE_S
    )


def shipping(*verified: int) -> IncomingShipment:
    """Four blocks announced and bound, some of them here."""
    shipment = reserved()
    assert shipment.accepted() == ()
    assert shipment.chunk_ready(FIRST, 4, 1.0) == (AskBind(num_blocks=FIRST + 4),)
    assert shipment.bound(TABLE[: FIRST + 4]) == ()
    for index in verified:
        assert shipment.arrived(index, True, 2.0).verdict is Verdict.PLACE
    return shipment


def fencing(*verified: int) -> IncomingShipment:
    shipment = shipping(*verified)
    assert shipment.stream_lost(3.0) == FENCE
    return shipment


def handover(outcome: Outcome, kept: int = 0) -> HandOver:
    return HandOver(outcome=outcome, kept_blocks=kept)


def test_the_happy_path_in_chunks_with_the_first_token_ahead_of_the_bytes() -> None:
    shipment = reserved()
    shipment.accepted()
    assert shipment.chunk_ready(2, 2, 1.0) == (AskBind(num_blocks=4),)
    shipment.bound(TABLE[:4])
    assert shipment.arrived(2, True, 1.5).block_id == 52
    assert shipment.arrived(4, True, 1.6).verdict is Verdict.WAIT
    assert shipment.chunk_ready(4, 2, 2.0) == (AskBind(num_blocks=6),)
    assert shipment.first_token(4, 2.5) == ()
    assert shipment.missing == (3, 4, 5)
    shipment.bound(TABLE[:6])
    assert [shipment.arrived(index, True, 3.0).verdict for index in (5, 4)] == [Verdict.PLACE] * 2
    assert shipment.landed_prefix_blocks == 1
    last = shipment.arrived(3, True, 4.0)
    assert (last.verdict, last.block_id, last.effects) == (Verdict.PLACE, 53, LANDED)
    assert shipment.is_landed
    assert list(shipment.missing) == []
    shipment.close()
    assert shipment.state is IncomingState.CLOSED


def test_the_first_token_behind_the_bytes_lands_at_once() -> None:
    shipment = shipping(2, 3, 4, 5)
    assert not shipment.is_landed
    assert shipment.first_token(4, 9.0) == LANDED
    assert shipment.exposed_s == 0.0


def test_ids_are_asked_for_once_and_with_the_manifest_at_the_latest() -> None:
    shipment = shipping()
    assert shipment.chunk_ready(4, 2, 1.0) == ()
    assert shipment.first_token(6, 2.0) == (AskBind(num_blocks=8),)
    assert shipment.first_token(6, 2.0) == ()


def test_a_first_token_that_ends_the_sequence_ships_nothing() -> None:
    shipment = shipping(2)
    assert shipment.first_token(0, 3.0) == (Detach(), handover(Outcome.FINISHED))
    assert shipment.arrived(3, True, 4.0).verdict is Verdict.LATE
    assert shipment.state is IncomingState.CLOSED


def test_corrupt_is_asked_for_once_more_and_then_as_a_dead_peer() -> None:
    shipment = shipping(2)
    first = shipment.arrived(3, False, 2.0)
    assert (first.verdict, first.effects) == (Verdict.CORRUPT, (AskResend(first_block=3, num_blocks=1),))
    assert shipment.arrived(2, False, 2.0).verdict is Verdict.DUPLICATE, "a spoilt copy of a good block is nothing"
    second = shipment.arrived(3, False, 3.0)
    assert (second.verdict, second.effects) == (Verdict.CORRUPT, FENCE)
    assert "corrupt twice" in shipment.error
    assert shipment.fenced() == (handover(Outcome.LOST, 1),)


def test_corrupt_once_then_right() -> None:
    shipment = shipping(2, 3, 4)
    shipment.first_token(4, 1.0)
    shipment.arrived(5, False, 2.0)
    assert shipment.arrived(5, True, 3.0).effects == LANDED


def test_duplicates_late_and_foreign_blocks_change_nothing() -> None:
    shipment = shipping(2)
    assert shipment.arrived(2, True, 2.0).verdict is Verdict.DUPLICATE
    for foreign in (0, 1, FIRST + ROOM, 10**9, -1):
        assert shipment.arrived(foreign, True, 2.0).verdict is Verdict.DROP
    assert shipment.num_verified == 1
    shipment.peer_lost()
    assert shipment.arrived(3, True, 3.0).verdict is Verdict.LATE


@pytest.mark.parametrize(
    ("first", "num"), [(2, 0), (2, -1), (1, 2), (0, 4), (7, 1), (2, ROOM + 1), (6, ROOM), (2, 2**31)]
)
def test_a_chunk_that_does_not_fit_is_as_a_dead_peer(first: int, num: int) -> None:
    shipment = shipping(2)
    assert shipment.chunk_ready(first, num, 2.0) == FENCE
    assert "does not fit" in shipment.error


@pytest.mark.parametrize("num_blocks", [-1, 1, 3, ROOM + 1, 2**31])
def test_a_manifest_that_contradicts_is_as_a_dead_peer(num_blocks: int) -> None:
    assert shipping(2).first_token(num_blocks, 2.0) == FENCE


def test_a_manifest_shorter_than_what_arrived_is_as_a_dead_peer() -> None:
    shipment = reserved()
    shipment.bound(TABLE)
    assert shipment.arrived(6, True, 1.0).verdict is Verdict.PLACE
    assert shipment.first_token(3, 2.0) == FENCE


def test_ids_that_change_are_our_own_bug() -> None:
    shipment = shipping()
    with pytest.raises(ValueError, match="other ids"):
        shipment.bound((1, 2, 3))
    assert shipment.bound(TABLE[:3]) == (), "a shorter table than known is an older answer"
    assert shipment.arrived(5, True, 2.0).block_id == 55


def test_a_sequence_that_the_engine_gave_up_cancels() -> None:
    assert shipping().bound(()) == (Detach(), SendFence(), handover(Outcome.CANCELLED))


def test_what_ends_a_reservation_closes_it() -> None:
    assert reserved().refused() == (Detach(), handover(Outcome.REFUSED))
    assert reserved().cancel(1.0) == (*FENCE, handover(Outcome.CANCELLED))
    assert reserved().peer_lost() == (Detach(), handover(Outcome.LOST))
    assert reserved().stream_lost(1.0) == (*FENCE, handover(Outcome.LOST))
    assert reserved().expired(DEADLINE_S) == (*FENCE, handover(Outcome.LOST))
    assert reserved().prefill_failed() == (Detach(), handover(Outcome.LOST))


def test_what_ends_shipping_keeps_the_prefix_only_where_somebody_wants_it() -> None:
    for end in (IncomingShipment.peer_lost, IncomingShipment.prefill_failed):
        shipment = shipping(2, 3, 5)
        assert end(shipment) == (Detach(), handover(Outcome.LOST, 2))
        assert shipment.state is IncomingState.RESUMABLE
    shipment = shipping(2, 3)
    assert shipment.cancel(2.0) == FENCE
    assert shipment.fenced() == (handover(Outcome.CANCELLED),)
    assert shipment.state is IncomingState.CLOSED


def test_every_way_out_of_fencing_hands_over_once() -> None:
    assert fencing(2).fenced() == (handover(Outcome.LOST, 1),)
    assert fencing(2).peer_lost() == (handover(Outcome.LOST, 1),)
    assert fencing(2).prefill_failed() == (handover(Outcome.LOST, 1),)
    shipment = fencing(2)
    assert shipment.expired(4.9) == ()
    assert shipment.expired(5.0) == (handover(Outcome.LOST, 1),)
    assert (shipment.fenced(), shipment.peer_lost(), shipment.expired(99.0), shipment.cancel(9.0)) == ((), (), (), ())


def test_cancelling_while_fencing_keeps_nothing() -> None:
    shipment = fencing(2)
    assert shipment.cancel(3.5) == ()
    assert shipment.fenced() == (handover(Outcome.CANCELLED),)


def test_a_fenced_that_nobody_asked_for_is_ignored() -> None:
    shipment = shipping(2)
    assert shipment.fenced() == ()
    assert shipment.state is IncomingState.SHIPPING


def test_after_the_first_token_the_bytes_have_less_time() -> None:
    shipment = shipping(2)
    shipment.first_token(4, 10.0)
    assert shipment.expired(39.9) == ()
    assert shipment.expired(40.0) == FENCE


def test_close_does_not_drop_blocks() -> None:
    for shipment in (reserved(), shipping(2), fencing(2)):
        before = shipment.state
        shipment.close()
        assert shipment.state is before


# ------------------------------------------------------------------------------------------------------- timings


def test_transfer_counts_overlapping_chunks_once_and_gaps_not_at_all() -> None:
    shipment = reserved()
    shipment.bound(TABLE)
    shipment.chunk_ready(2, 2, 1.0)
    shipment.chunk_ready(4, 2, 2.0)
    for index, at_s in ((2, 1.5), (3, 3.0), (4, 3.5), (5, 4.0)):  # [1, 3] and [2, 4]: 3 s together
        shipment.arrived(index, True, at_s)
    shipment.chunk_ready(6, 1, 10.0)
    shipment.arrived(6, True, 10.5)
    assert shipment.transfer_s == pytest.approx(3.5)


def test_a_block_that_overtook_its_announcement_starts_its_chunk() -> None:
    shipment = reserved()
    shipment.bound(TABLE)
    shipment.arrived(2, True, 1.0)
    shipment.chunk_ready(2, 2, 2.0)
    assert shipment.transfer_s == pytest.approx(1.0 - 1.0)
    shipment.arrived(3, True, 4.0)
    assert shipment.transfer_s == pytest.approx(3.0)


def test_exposed_is_what_came_after_the_first_token() -> None:
    shipment = shipping(2, 3)
    assert shipment.exposed_s == 0.0
    shipment.first_token(4, 3.0)
    shipment.arrived(4, True, 3.25)
    shipment.arrived(5, True, 3.75)
    assert shipment.exposed_s == pytest.approx(0.75)
    assert shipment.times.last_verified_s == 3.75
