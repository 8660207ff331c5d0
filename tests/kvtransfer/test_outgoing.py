"""The prefill pod's shipment, event by event: one way out, one release, every fence answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pagewire.core.errors import EngineFailed, LeaseExpired, PagewireError, PodLost
from pagewire.kvtransfer.effects import Announce, Outcome, Purge, Release, SendBlocks, SendFenced
from pagewire.kvtransfer.manifest import Manifest
from pagewire.kvtransfer.outgoing import OutgoingShipment, OutgoingState


def outgoing(*, ships: bool = True, num_groups: int = 1) -> OutgoingShipment:
    return OutgoingShipment(
        request_id="r", generation=1, shipment_id=9, peer_id="D", first_block=2, ships=ships, num_groups=num_groups
    )


def release(outcome: Outcome, is_computed: bool) -> tuple[Release]:
    return (Release(outcome=outcome, is_computed=is_computed),)


def test_the_happy_path() -> None:
    shipment = outgoing()
    assert shipment.chunk_done(0, (40, 41, 42)) == (
        Announce(first_block=2, num_blocks=1),
        SendBlocks(blocks=((2, 42),)),
    )
    assert shipment.chunk_done(3, (43, 44)) == (
        Announce(first_block=3, num_blocks=2),
        SendBlocks(blocks=((3, 43), (4, 44))),
    )
    assert shipment.prompt_done(is_finished=False) == ()
    assert shipment.manifest.num_blocks == 3
    assert shipment.landed() == (Purge(),)
    assert shipment.purged() == release(Outcome.LANDED, True)
    assert shipment.freed() == ()
    assert shipment.state is OutgoingState.CLOSED


def test_a_fence_is_answered_only_when_the_blocks_are_free() -> None:
    shipment = outgoing()
    shipment.chunk_done(2, (42,))
    assert shipment.fence() == (Purge(),)
    assert shipment.freed() == ()
    assert shipment.purged() == release(Outcome.CANCELLED, False)
    assert shipment.fence() == ()
    assert shipment.freed() == (SendFenced(),)
    assert shipment.fence() == (SendFenced(),), "one that comes after the end is answered at once"


def test_a_fence_during_another_end_is_answered_too() -> None:
    shipment = outgoing()
    assert shipment.lease_expired() == (Purge(),)
    assert shipment.fence() == ()
    assert shipment.purged() == release(Outcome.LOST, False)
    assert shipment.freed() == (SendFenced(),)


@pytest.mark.parametrize("end", [OutgoingShipment.peer_lost, OutgoingShipment.lease_expired, OutgoingShipment.failed])
def test_losses_release_once(end: object) -> None:
    shipment = outgoing()
    assert end(shipment) == (Purge(),)  # type: ignore[operator]
    assert (shipment.peer_lost(), shipment.landed(), shipment.failed()) == ((), (), ())
    assert shipment.purged() == release(Outcome.LOST, False)
    assert shipment.purged() == ()
    assert shipment.freed() == ()


def test_nothing_is_sent_after_the_end_began() -> None:
    shipment = outgoing()
    shipment.chunk_done(2, (42,))
    shipment.fence()
    assert shipment.chunk_done(3, (43,)) == ()
    assert shipment.resend(2, 1) == ()
    assert shipment.prompt_done(is_finished=False) == ()


def test_resend_is_once_per_block_and_only_of_what_is_ready() -> None:
    shipment = outgoing()
    shipment.chunk_done(2, (42, 43, 44))
    assert shipment.resend(0, 4) == (SendBlocks(blocks=((2, 42), (3, 43))),)
    assert shipment.resend(3, 2**31) == (SendBlocks(blocks=((4, 44),)),)
    assert shipment.resend(2, 3) == ()
    assert shipment.resend(-5, -1) == ()
    assert shipment.resend(-(2**40), 2**50) == (), "at once"


def test_reported_twice_is_announced_once_and_a_gap_is_our_own_bug() -> None:
    shipment = outgoing()
    shipment.chunk_done(2, (42, 43))
    assert shipment.chunk_done(2, (42, 43)) == ()
    assert shipment.chunk_done(3, (43, 44))[1] == SendBlocks(blocks=((4, 44),))
    with pytest.raises(ValueError, match="never reported"):
        shipment.chunk_done(9, (49,))


def test_a_sequence_that_its_first_token_ends_ships_nothing_more() -> None:
    shipment = outgoing()
    shipment.chunk_done(2, (42,))
    assert shipment.prompt_done(is_finished=True) == (Purge(),)
    assert shipment.purged() == release(Outcome.FINISHED, True)


def test_without_shipping_only_the_token_is_wanted() -> None:
    shipment = outgoing(ships=False)
    assert shipment.chunk_done(2, (42,)) == ()
    assert shipment.prompt_done(is_finished=False) == (Purge(),)
    assert shipment.purged() == release(Outcome.FINISHED, True)


def test_the_last_chunk_goes_group_by_group() -> None:
    shipment = outgoing(num_groups=2)
    assert shipment.chunk_done(1, (41, 42)) == (
        Announce(first_block=2, num_blocks=1),
        SendBlocks(blocks=((4, 84), (5, 85))),
    )
    group = Announce(first_block=3, num_blocks=2, group=0)
    assert shipment.chunk_done(3, (43, 44), 0) == (group, SendBlocks(blocks=((6, 86), (8, 88))))
    assert shipment.chunk_done(3, (43, 44), 0) == (), "a step that was tried again tells of it again"
    assert shipment.manifest.num_blocks == 3
    assert shipment.resend(3, 1, 0) == (SendBlocks(blocks=((6, 86),)),)
    assert shipment.resend(3, 1, 1) == (), "not ready"
    rest = Announce(first_block=3, num_blocks=2)
    assert shipment.chunk_done(3, (43, 44)) == (rest, SendBlocks(blocks=((7, 87), (9, 89))))
    assert shipment.chunk_done(3, (43, 44), 1) == ()
    assert shipment.resend(3, 2) == (SendBlocks(blocks=((7, 87), (8, 88), (9, 89))),)
    with pytest.raises(ValueError, match="never reported"):
        shipment.chunk_done(6, (46,), 0)


def test_a_group_of_blocks_that_travel_whole_is_nothing() -> None:
    shipment = outgoing()
    assert shipment.chunk_done(2, (42, 43), 0) == ()
    assert shipment.chunk_done(2, (42, 43)) != ()


def test_a_shipment_says_which_it_is_and_begins_without_an_end() -> None:
    shipment = outgoing()
    assert (shipment.request_id, shipment.generation, shipment.shipment_id, shipment.peer_id) == ("r", 1, 9, "D")
    assert (shipment.state, shipment.outcome, shipment.error) == (OutgoingState.SHIPPING, None, None)
    assert shipment.purged() == (), "nobody was asked to"
    assert shipment.manifest == Manifest(first_block=2, num_blocks=0)


def test_blocks_are_shipped_whole_unless_it_is_said_otherwise() -> None:
    shipment = OutgoingShipment(request_id="r", generation=1, shipment_id=9, peer_id="D", first_block=0)
    assert shipment.chunk_done(0, (40,)) == (Announce(first_block=0, num_blocks=1), SendBlocks(blocks=((0, 40),)))


def test_every_loss_has_a_named_cause_and_the_first_stands() -> None:
    mine = EngineFailed("its engine broke")
    ends: list[tuple[Callable[[OutgoingShipment], object], type[PagewireError] | None]] = [
        (lambda shipment: shipment.peer_lost(), PodLost),
        (lambda shipment: shipment.lease_expired(), LeaseExpired),
        (lambda shipment: shipment.failed(mine), EngineFailed),
        (lambda shipment: shipment.failed(), None),
        (lambda shipment: shipment.landed(), None),
        (lambda shipment: shipment.fence(), None),
    ]
    for end, cause in ends:
        shipment = outgoing()
        end(shipment)
        before = shipment.outcome, shipment.error
        shipment.lease_expired()
        shipment.failed(EngineFailed("another"))
        assert (shipment.outcome, shipment.error) == before
        assert type(shipment.error) is (cause or type(None))


def test_an_end_is_said_once() -> None:
    shipment = outgoing()
    shipment.fence()
    shipment.purged()
    assert shipment.freed() == (SendFenced(),)
    assert (shipment.freed(), shipment.purged(), shipment.landed()) == ((), (), ())
    assert shipment.state is OutgoingState.CLOSED
