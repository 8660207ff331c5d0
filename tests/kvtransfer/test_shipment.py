"""The decode pod's shipment, event by event: the automaton of its docstring, the timings, and what a liar achieves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pagewire.core.errors import (
    BlockCorrupt,
    ContractBroken,
    EngineFailed,
    PagewireError,
    PrefillLost,
    StreamLost,
    TransferTimeout,
)
from pagewire.kvtransfer.effects import (
    AskBind,
    AskResend,
    Detach,
    Effects,
    HandOver,
    Outcome,
    SendFence,
    SendLanded,
    Verdict,
)
from pagewire.kvtransfer.shipment import IncomingShipment, IncomingState
from pagewire.kvtransfer.transfer_times import Landing

FIRST, ROOM, DEADLINE_S = 2, 8, 100.0
TABLE = tuple(range(50, 60))  # chain index i lies in block 50 + i
LANDED = (Detach(), SendLanded(), HandOver(outcome=Outcome.LANDED, kept_blocks=4))
FENCE = (Detach(), SendFence())


def arrives(shipment: IncomingShipment, index: int, is_intact: bool, now_s: float) -> Effects:
    """A block is claimed, written and settled in one go."""
    claim = shipment.claim(index)
    assert (claim.verdict, claim.block_id) == (Verdict.PLACE, TABLE[index])
    return shipment.settle(index, is_intact, now_s)


def test_what_is_announced_again_says_nothing_new_and_is_not_kept() -> None:
    shipment = IncomingShipment(
        request_id="r", generation=1, shipment_id=9, first_block=FIRST, max_blocks=ROOM, deadline_s=DEADLINE_S,
        num_groups=2,
    )  # fmt: skip
    shipment.bound(TABLE)
    for now_s in range(1, 50):
        for group in (0, 1, None):
            shipment.chunk_ready(FIRST, 4, float(now_s), group)
    for part in range(2 * FIRST, 2 * (FIRST + 4)):
        shipment.claim(part)
        shipment.settle(part, True, 60.0)
    landings = list(shipment.times.landings())
    assert [(landing.announced_s, landing.placed_s) for landing in landings] == [(1.0, 60.0)] * 3
    assert shipment.transfer_s == 59.0


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
        arrives(shipment, index, True, 2.0)
    return shipment


def fencing(*verified: int) -> IncomingShipment:
    shipment = shipping(*verified)
    assert shipment.stream_lost(StreamLost("the test says so"), 3.0) == FENCE
    return shipment


def handover(outcome: Outcome, kept: int = 0) -> HandOver:
    return HandOver(outcome=outcome, kept_blocks=kept)


def test_the_happy_path_in_chunks_with_the_first_token_ahead_of_the_bytes() -> None:
    shipment = reserved()
    shipment.accepted()
    assert shipment.chunk_ready(2, 2, 1.0) == (AskBind(num_blocks=4),)
    shipment.bound(TABLE[:4])
    assert arrives(shipment, 2, True, 1.5) == ()
    assert shipment.claim(4).verdict is Verdict.WAIT
    assert shipment.chunk_ready(4, 2, 2.0) == (AskBind(num_blocks=6),)
    assert shipment.first_token(4, 2.5) == ()
    assert shipment.num_verified == 1
    shipment.bound(TABLE[:6])
    assert [arrives(shipment, index, True, 3.0) for index in (5, 4)] == [(), ()]
    assert shipment.landed_prefix_blocks == 1
    assert arrives(shipment, 3, True, 4.0) == LANDED
    assert shipment.is_landed
    assert shipment.num_verified == 4
    shipment.close()
    assert shipment.state is IncomingState.CLOSED


def test_a_shipment_says_which_it_is() -> None:
    shipment = reserved()
    assert (shipment.request_id, shipment.generation, shipment.shipment_id, shipment.first_block) == ("r", 1, 9, FIRST)


def test_the_first_sign_of_the_prompt_starts_it() -> None:
    signs: list[Callable[[IncomingShipment], object]] = [
        lambda shipment: shipment.accepted(),
        lambda shipment: shipment.chunk_ready(FIRST, 1, 1.0),
        lambda shipment: shipment.first_token(1, 1.0),
        lambda shipment: shipment.fetch_ready(1, 1.0),
        lambda shipment: shipment.claim(FIRST),
    ]
    for sign in signs:
        shipment = reserved()
        sign(shipment)
        assert shipment.state is IncomingState.SHIPPING


def ended() -> list[IncomingShipment]:
    """One in each of the ways that a shipment ends, before anybody acted upon it and after."""
    landed, closed = shipping(2, 3, 4, 5), shipping(2, 3, 4, 5)
    for shipment in (landed, closed):
        assert shipment.first_token(4, 3.0) == LANDED
    closed.close()
    resumable, finished = shipping(2, 3), shipping(2)
    assert resumable.peer_lost() == (Detach(), handover(Outcome.LOST, 2))
    assert finished.first_token(0, 3.0) == (Detach(), handover(Outcome.FINISHED))
    return [landed, closed, resumable, finished, fencing(2)]


def test_what_comes_after_the_end_changes_nothing() -> None:
    for shipment in ended():

        def seen(shipment: IncomingShipment = shipment) -> tuple[object, ...]:
            times = (shipment.times.first_token_s, shipment.transfer_s, shipment.deadline_s)
            return (shipment.state, shipment.manifest, shipment.num_verified, shipment.error, times)

        before = seen()
        late = [
            shipment.accepted(),
            shipment.refused(),
            shipment.chunk_ready(FIRST, 1, 9.0),
            shipment.first_token(0, 9.0),
            shipment.first_token(5, 9.0),
            shipment.fetch_ready(0, 9.0),
            shipment.fetch_ready(5, 9.0),
            shipment.bound(TABLE),
            shipment.bound(()),
            shipment.stream_lost(StreamLost("the test says so"), 9.0),
        ]
        assert late == [()] * len(late)
        assert seen() == before


def test_a_manifest_is_told_once() -> None:
    shipment = shipping(2)
    assert shipment.first_token(4, 3.0) == ()
    before = shipment.manifest, shipment.deadline_s
    assert (shipment.first_token(0, 4.0), shipment.first_token(5, 4.0), shipment.fetch_ready(0, 4.0)) == ((), (), ())
    assert (shipment.manifest, shipment.deadline_s, shipment.times.first_token_s) == (*before, 3.0)


def test_a_manifest_may_fill_what_was_reserved() -> None:
    assert shipping(2).first_token(ROOM, 3.0) == (AskBind(num_blocks=FIRST + ROOM),)


def test_what_is_behind_the_manifest_is_not_of_this_shipment() -> None:
    shipment = shipping(2)
    shipment.bound(TABLE)
    shipment.first_token(4, 3.0)
    assert shipment.claim(FIRST + 4).verdict is Verdict.DROP
    assert shipment.chunk_ready(FIRST + 4, 1, 3.0) == FENCE


def test_a_first_chunk_behind_a_gap_is_as_a_dead_peer() -> None:
    shipment = reserved()
    assert shipment.chunk_ready(FIRST + 1, 1, 1.0) == FENCE
    assert isinstance(shipment.error, ContractBroken)


def test_a_fence_whose_last_claim_is_settled_still_waits_for_its_answer() -> None:
    shipment = shipping(2)
    shipment.claim(3)
    assert shipment.stream_lost(StreamLost("the test says so"), 3.0) == FENCE
    assert shipment.settle(3, True, 3.0) == ()
    assert shipment.fenced() == (handover(Outcome.LOST, 2),)


def test_blocks_arrive_from_their_binding_until_the_last_has_landed() -> None:
    shipment = reserved()
    assert shipment.num_arriving == 0
    shipment.chunk_ready(FIRST, 4, 2.0)
    shipment.bound(TABLE[: FIRST + 4])
    assert shipment.num_arriving == 4
    arrives(shipment, FIRST, True, 2.5)
    assert shipment.num_arriving == 4, "no sequence runs on them before the others are there"
    assert shipping().num_arriving == 4
    assert fencing().num_arriving == 0


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
    assert shipment.claim(3).verdict is Verdict.LATE
    assert shipment.state is IncomingState.CLOSED


def test_corrupt_is_asked_for_once_more_and_then_as_a_dead_peer() -> None:
    shipment = shipping(2)
    assert arrives(shipment, 3, False, 2.0) == (AskResend(first_block=3, num_blocks=1),)
    assert shipment.claim(2).verdict is Verdict.DUPLICATE, "a spoilt copy of a good block is nothing"
    assert arrives(shipment, 3, False, 3.0) == FENCE
    assert isinstance(shipment.error, BlockCorrupt)
    assert shipment.fenced() == (handover(Outcome.LOST, 1),)


def test_corrupt_once_then_right() -> None:
    shipment = shipping(2, 3, 4)
    shipment.first_token(4, 1.0)
    arrives(shipment, 5, False, 2.0)
    assert arrives(shipment, 5, True, 3.0) == LANDED


def test_duplicates_late_and_foreign_blocks_change_nothing() -> None:
    shipment = shipping(2)
    assert shipment.claim(2).verdict is Verdict.DUPLICATE
    for foreign in (0, 1, FIRST + ROOM, 10**9, -1):
        assert shipment.claim(foreign).verdict is Verdict.DROP
    assert shipment.num_verified == 1
    shipment.peer_lost()
    assert shipment.claim(3).verdict is Verdict.LATE


@pytest.mark.parametrize(
    ("first", "num"), [(2, 0), (2, -1), (1, 2), (0, 4), (7, 1), (2, ROOM + 1), (6, ROOM), (2, 2**31)]
)
def test_a_chunk_that_does_not_fit_is_as_a_dead_peer(first: int, num: int) -> None:
    shipment = shipping(2)
    assert shipment.chunk_ready(first, num, 2.0) == FENCE
    assert isinstance(shipment.error, ContractBroken)


@pytest.mark.parametrize("num_blocks", [-1, 1, 3, ROOM + 1, 2**31])
def test_a_manifest_that_contradicts_is_as_a_dead_peer(num_blocks: int) -> None:
    assert shipping(2).first_token(num_blocks, 2.0) == FENCE


def test_a_manifest_shorter_than_what_arrived_is_as_a_dead_peer() -> None:
    shipment = reserved()
    shipment.bound(TABLE)
    assert arrives(shipment, 6, True, 1.0) == ()
    assert shipment.first_token(3, 2.0) == FENCE


def test_ids_that_change_are_our_own_bug() -> None:
    shipment = shipping()
    with pytest.raises(ValueError, match="other ids"):
        shipment.bound((1, 2, 3))
    assert shipment.bound(TABLE[:3]) == (), "a shorter table than known is an older answer"
    assert shipment.claim(5).block_id == 55


def test_a_sequence_that_the_engine_gave_up_cancels() -> None:
    assert shipping().bound(()) == (Detach(), SendFence(), handover(Outcome.CANCELLED))


def test_what_ends_a_reservation_closes_it() -> None:
    ends: list[tuple[Callable[[IncomingShipment], Effects], Effects]] = [
        (lambda shipment: shipment.refused(), (Detach(), handover(Outcome.REFUSED))),
        (lambda shipment: shipment.cancel(1.0), (*FENCE, handover(Outcome.CANCELLED))),
        (lambda shipment: shipment.peer_lost(), (Detach(), handover(Outcome.LOST))),
        (lambda shipment: shipment.stream_lost(StreamLost("the test says so"), 1.0), (*FENCE, handover(Outcome.LOST))),
        (lambda shipment: shipment.expired(DEADLINE_S), (*FENCE, handover(Outcome.LOST))),
        (lambda shipment: shipment.prefill_failed(), (Detach(), handover(Outcome.LOST))),
    ]
    for end, effects in ends:
        shipment = reserved()
        assert end(shipment) == effects
        assert shipment.state is IncomingState.CLOSED


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


# -------------------------------------------------------------------------------------------------------- claims


def test_a_claim_holds_the_hand_over_back_whatever_ends_the_shipment() -> None:
    ends: list[tuple[Callable[[IncomingShipment], Effects], Effects, HandOver]] = [
        (lambda shipment: shipment.peer_lost(), (Detach(),), handover(Outcome.LOST, 1)),
        (lambda shipment: shipment.prefill_failed(), (Detach(),), handover(Outcome.LOST, 1)),
        (lambda shipment: shipment.first_token(0, 2.0), (Detach(),), handover(Outcome.FINISHED)),
        (lambda shipment: shipment.bound(()), (Detach(), SendFence()), handover(Outcome.CANCELLED)),
        (lambda shipment: shipment.refused(), (Detach(),), handover(Outcome.REFUSED)),
    ]
    for end, said, handed in ends:
        shipment = shipping(2)
        shipment.claim(4)
        assert end(shipment) == said
        assert (shipment.state, shipment.num_quarantined) == (IncomingState.FENCING, 1)
        for nothing in (shipment.fenced(), shipment.expired(10**9), shipment.peer_lost()):
            assert nothing == ()
        assert shipment.settle(4, False, 3.0) == (handed,)
        assert shipment.num_quarantined == 0


def test_a_fence_waits_for_its_answer_and_for_the_last_claim() -> None:
    shipment = shipping(2)
    assert (shipment.claim(3).verdict, shipment.claim(4).verdict) == (Verdict.PLACE, Verdict.PLACE)
    assert shipment.num_quarantined == 0, "still wanted"
    assert shipment.stream_lost(StreamLost("the test says so"), 3.0) == FENCE
    assert shipment.num_quarantined == 2
    assert shipment.settle(4, False, 3.0) == (), "what is spoilt is not asked for any more"
    assert shipment.fenced() == ()
    assert shipment.settle(3, True, 3.0) == (handover(Outcome.LOST, 2),), "what was there in time is kept"


def test_an_open_claim_is_not_granted_again_and_settled_once() -> None:
    shipment = shipping()
    assert shipment.claim(3).verdict is Verdict.PLACE
    assert shipment.claim(3).verdict is Verdict.DUPLICATE
    shipment.settle(3, True, 1.0)
    for index in (3, 4):
        with pytest.raises(ValueError, match="not claimed"):
            shipment.settle(index, True, 1.0)


def test_a_manifest_that_leaves_a_claim_out_is_as_a_dead_peer() -> None:
    shipment = shipping()
    shipment.bound(TABLE)
    shipment.claim(8)
    assert shipment.first_token(4, 2.0) == FENCE


def test_every_loss_has_a_named_cause_and_the_first_stands() -> None:
    mine = EngineFailed("its engine broke")
    ends: list[tuple[Callable[[IncomingShipment], Effects], type[PagewireError]]] = [
        (lambda shipment: shipment.peer_lost(), PrefillLost),
        (lambda shipment: shipment.stream_lost(StreamLost("the test says so"), 1.0), StreamLost),
        (lambda shipment: shipment.expired(DEADLINE_S), TransferTimeout),
        (lambda shipment: shipment.prefill_failed(mine), EngineFailed),
        (lambda shipment: shipment.prefill_failed(), PrefillLost),
        (lambda shipment: shipment.refused(mine), EngineFailed),
    ]
    for end, cause in ends:
        for shipment in (reserved(), shipping(2)):
            assert shipment.error is None
            end(shipment)
            shipment.peer_lost()
            assert isinstance(shipment.error, cause)
    cancelled = shipping(2)
    cancelled.cancel(1.0)
    assert cancelled.error is None


def test_what_a_fetch_brings_lands_without_a_token() -> None:
    shipment = reserved()
    assert shipment.fetch_ready(2, 1.0) == (AskBind(num_blocks=4),)
    shipment.bound(TABLE[:4])
    arrives(shipment, 2, True, 2.0)
    assert arrives(shipment, 3, True, 3.0)[-1] == handover(Outcome.LANDED, 2)
    assert shipment.exposed_s == 0.0
    assert reserved().fetch_ready(0, 1.0) == (Detach(), handover(Outcome.FINISHED))


# ------------------------------------------------------------------------------------------------------- timings


def test_transfer_counts_overlapping_chunks_once_and_gaps_not_at_all() -> None:
    shipment = reserved()
    shipment.bound(TABLE)
    shipment.chunk_ready(2, 2, 1.0)
    shipment.chunk_ready(4, 2, 2.0)
    for index, at_s in ((2, 1.5), (3, 3.0), (4, 3.5), (5, 4.0)):  # [1, 3] and [2, 4]: 3 s together
        arrives(shipment, index, True, at_s)
    shipment.chunk_ready(6, 1, 10.0)
    arrives(shipment, 6, True, 10.5)
    assert shipment.transfer_s == pytest.approx(3.5)


def test_a_block_that_overtook_its_announcement_starts_its_chunk() -> None:
    shipment = reserved()
    shipment.bound(TABLE)
    arrives(shipment, 2, True, 1.0)
    shipment.chunk_ready(2, 2, 2.0)
    assert shipment.transfer_s == pytest.approx(1.0 - 1.0)
    arrives(shipment, 3, True, 4.0)
    assert shipment.transfer_s == pytest.approx(3.0)


def test_what_the_first_token_overtook_is_on_its_way_since_then() -> None:
    shipment = shipping(2, 3, 4, 5)  # from 1 to 2
    shipment.bound(TABLE)
    assert shipment.first_token(6, 5.0) == (AskBind(num_blocks=8),)
    for index, at_s in ((6, 7.0), (7, 8.0)):
        arrives(shipment, index, True, at_s)
    assert shipment.transfer_s == (2.0 - 1.0) + (8.0 - 5.0)


def test_what_the_first_token_announces_are_the_blocks_that_no_chunk_was() -> None:
    shipment = shipping(2)
    shipment.bound(TABLE)
    shipment.first_token(6, 5.0)
    arrives(shipment, 7, True, 6.0)
    assert list(shipment.times.landings()) == [Landing(range(2, 6), 1.0, 2.0), Landing(range(6, 8), 5.0, 6.0)]


def test_a_first_token_before_any_block_exposes_nothing_yet() -> None:
    shipment = shipping()
    shipment.first_token(4, 3.0)
    assert (shipment.exposed_s, shipment.transfer_s) == (0.0, 0.0)


def test_exposed_is_what_came_after_the_first_token() -> None:
    shipment = shipping(2, 3)
    assert shipment.exposed_s == 0.0
    shipment.first_token(4, 3.0)
    arrives(shipment, 4, True, 3.25)
    arrives(shipment, 5, True, 3.75)
    assert shipment.exposed_s == pytest.approx(0.75)
    assert shipment.times.last_verified_s == 3.75


# ----------------------------------------------------------------------------------------------------- layer groups


def grouped(num_groups: int = 3) -> IncomingShipment:
    """Blocks of three parts, or as many: two whole ones announced, then two group by group."""
    shipment = IncomingShipment(
        request_id="r", generation=1, shipment_id=9, first_block=FIRST, max_blocks=ROOM, deadline_s=DEADLINE_S,
        num_groups=num_groups,
    )  # fmt: skip
    assert shipment.chunk_ready(2, 2, 1.0) == (AskBind(num_blocks=4),)
    assert shipment.chunk_ready(4, 2, 2.0, 0) == (AskBind(num_blocks=6),)
    assert shipment.chunk_ready(4, 2, 5.0, 1) == ()
    assert shipment.bound(TABLE[:6]) == ()
    return shipment


def part_arrives(shipment: IncomingShipment, block: int, group: int, now_s: float, is_intact: bool = True) -> Effects:
    claim = shipment.claim(block * 3 + group)
    assert (claim.verdict, claim.block_id) == (Verdict.PLACE, TABLE[block] * 3 + group)
    return shipment.settle(block * 3 + group, is_intact, now_s)


def test_a_block_is_there_when_all_its_parts_are() -> None:
    shipment = grouped()
    for group in (0, 2):
        part_arrives(shipment, 2, group, 3.0)
    assert (shipment.num_verified, shipment.landed_prefix_blocks) == (0, 0)
    part_arrives(shipment, 2, 1, 3.0)
    assert (shipment.num_verified, shipment.landed_prefix_blocks) == (1, 1)
    for block in (3, 4, 5):
        for group in (0, 1):
            part_arrives(shipment, block, group, 6.0)
    part_arrives(shipment, 3, 2, 6.0)
    assert shipment.first_token(4, 7.0) == ()
    assert shipment.chunk_ready(4, 2, 7.0, 2) == ()
    assert part_arrives(shipment, 4, 2, 8.0) == ()
    assert part_arrives(shipment, 5, 2, 8.0) == LANDED


def test_what_is_lost_between_two_groups_is_kept_in_whole_blocks() -> None:
    shipment = grouped()
    for block, group in ((2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (4, 0)):
        part_arrives(shipment, block, group, 3.0)
    claim = shipment.claim(5 * 3)
    assert claim.verdict is Verdict.PLACE
    assert shipment.claim(5 * 3 + 1).verdict is Verdict.PLACE
    assert shipment.stream_lost(StreamLost("the test says so"), 4.0) == FENCE
    assert shipment.num_quarantined == 1, "two parts of one block"
    assert shipment.peer_lost() == ()
    shipment.settle(5 * 3, False, 5.0)
    assert shipment.settle(5 * 3 + 1, False, 5.0) == (handover(Outcome.LOST, 1),)


@pytest.mark.parametrize(("num_groups", "group"), [(3, 3), (3, 2**31), (1, 1)])
def test_a_group_that_there_is_not_is_as_a_dead_peer(num_groups: int, group: int) -> None:
    shipment = IncomingShipment(
        request_id="r", generation=1, shipment_id=9, first_block=FIRST, max_blocks=ROOM, deadline_s=DEADLINE_S,
        num_groups=num_groups,
    )  # fmt: skip
    assert shipment.chunk_ready(2, 2, 1.0, num_groups - 1) == (AskBind(num_blocks=4),)
    assert shipment.chunk_ready(2, 2, 2.0, group) == FENCE
    assert isinstance(shipment.error, ContractBroken)


def test_a_part_is_asked_for_once_more_by_its_group() -> None:
    shipment = grouped()
    resend = (AskResend(first_block=4, num_blocks=1, group=1),)
    assert part_arrives(shipment, 4, 1, 3.0, is_intact=False) == resend
    assert part_arrives(shipment, 4, 0, 3.0, is_intact=False) != FENCE, "each part by itself"
    assert part_arrives(shipment, 4, 1, 3.0, is_intact=False) == FENCE


def test_two_groups_are_asked_for_one_by_one_too() -> None:
    shipment = IncomingShipment(
        request_id="r", generation=1, shipment_id=9, first_block=0, max_blocks=1, deadline_s=DEADLINE_S, num_groups=2
    )
    shipment.chunk_ready(0, 1, 1.0)
    shipment.bound((50,))
    assert shipment.claim(1).block_id == 101
    assert shipment.settle(1, False, 2.0) == (AskResend(first_block=0, num_blocks=1, group=1),)


def test_a_group_is_on_its_way_from_its_own_announcement_on() -> None:
    shipment = grouped()
    for block in (4, 5):
        part_arrives(shipment, block, 0, 3.0)
        part_arrives(shipment, block, 1, 5.5)
    assert shipment.transfer_s == (3.0 - 2.0) + (5.5 - 5.0)
    shipment.first_token(4, 7.0)
    assert shipment.chunk_ready(4, 2, 7.0, 2) == ()
    part_arrives(shipment, 5, 2, 7.25)
    assert shipment.transfer_s == 1.0 + 0.5 + 0.25
    assert shipment.exposed_s == 0.25


# -------------------------------------------------------------------------------------------------- many at once


MANY = (
    range(2, 6), range(2, 7), range(2, 8), range(3, 6, 2), range(4, 5), range(4, 12), range(9), range(3, 12),
    range(6, 12), range(6, 18), range(6, 19),
)  # fmt: skip
BEGINNINGS: dict[str, Callable[[], IncomingShipment]] = {
    "some are here": lambda: shipping(2, 4), "reserved": reserved, "grouped": grouped, "in halves": lambda: grouped(2)
}  # fmt: skip


@pytest.mark.parametrize("indices", MANY)
@pytest.mark.parametrize(
    "state", [*BEGINNINGS, "shipping", "one is claimed", "cancelled", "more is bound than is of the manifest"]
)
def test_many_claims_are_those_of_one_after_another(state: str, indices: range) -> None:
    def shipment() -> IncomingShipment:
        made = BEGINNINGS.get(state, shipping)()
        if state == "one is claimed":
            made.claim(3)
        if state == "cancelled":
            made.cancel(2.0)
        if state == "more is bound than is of the manifest":
            made.first_token(4, 2.0)
            made.bound(TABLE)
        return made

    one_by_one, at_once = shipment(), shipment()
    assert list(at_once.claim_all(indices)) == [one_by_one.claim(index) for index in indices]
    assert [at_once.claim(index) for index in range(24)] == [one_by_one.claim(index) for index in range(24)]


def test_many_that_are_settled_land_once_and_each_spoilt_one_is_asked_for() -> None:
    shipment = shipping()
    shipment.first_token(4, 2.0)
    shipment.claim_all(range(2, 6))
    assert shipment.settle_all([2, 4], False, 3.0) == (
        AskResend(first_block=2, num_blocks=1),
        AskResend(first_block=4, num_blocks=1),
    )
    assert shipment.settle_all([3, 5], True, 3.0) == ()
    shipment.claim_all([2, 4])
    assert shipment.settle_all([2, 4], True, 4.0) == LANDED


def test_many_that_come_spoilt_twice_are_lost_once() -> None:
    shipment = shipping()
    for now_s in (3.0, 4.0):
        shipment.claim_all([3, 4])
        effects = shipment.settle_all([3, 4], False, now_s)
    assert effects == FENCE
    assert isinstance(shipment.error, BlockCorrupt)


def test_none_of_many_is_settled_where_one_was_not_claimed() -> None:
    shipment = shipping()
    shipment.claim(3)
    with pytest.raises(ValueError, match="4 was not claimed"):
        shipment.settle_all([3, 4], True, 3.0)
    assert shipment.settle(3, True, 3.0) == ()
    assert shipment.num_verified == 1
