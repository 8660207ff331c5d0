"""A taker's inbox, message by message: who is asked, what waits, in which order, what is counted and credited."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pagewire.core.errors import ContractBroken
from pagewire.kvtransfer.effects import Claim, Verdict
from pagewire.kvtransfer.inbox import Claimed, Inbox
from pagewire.kvtransfer.transport import ShipmentKey, TransferCounters
from pagewire.kvtransfer.wire import Credit, Ready, Sums

BYTES = 10
WINDOW_BYTES = 200
A, B = ShipmentKey(7, 1), ShipmentKey(7, 2)


class Taker:
    """A sink that answers as it is told: by default it places index i in block 100 + i."""

    def __init__(self, **verdicts: Verdict) -> None:
        self.verdicts = {int(name[1:]): verdict for name, verdict in verdicts.items()}
        self.asked: list[tuple[int, int, int]] = []
        self.settled: list[tuple[int, int, int, bool]] = []

    def claim(self, shipment_id: int, generation: int, indices: Sequence[int]) -> Sequence[Claim]:
        self.asked += [(shipment_id, generation, index) for index in indices]
        verdicts = [self.verdicts.get(index, Verdict.PLACE) for index in indices]
        return [
            Claim(verdict, 100 + index if verdict is Verdict.PLACE else -1)
            for index, verdict in zip(indices, verdicts, strict=True)
        ]

    def settle(self, shipment_id: int, generation: int, indices: Sequence[int], is_intact: bool) -> None:
        self.settled += [(shipment_id, generation, index, is_intact) for index in indices]


class Stream:
    """An inbox, and all that it reported."""

    def __init__(self, **sinks: Taker) -> None:
        self.counters = TransferCounters()
        self.credits: list[Credit] = []
        self.disposed: list[Ready] = []
        self.inbox = Inbox(BYTES, WINDOW_BYTES, self.counters, self.credits.append, self.disposed.append)
        for name, sink in sinks.items():
            self.inbox.register({"a": A, "b": B}[name], sink)


def message(key: ShipmentKey, first: int, num: int, *, stride: int = 1, sums_follow: bool = False) -> Ready:
    checksums = () if sums_follow else tuple(range(40, 40 + num))
    return Ready(key, first, checksums, tuple(range(num)), stride=stride, sums_follow=sums_follow)


def named(claimed: Claimed | None) -> list[tuple[int, int, int]]:
    """Position, index and id of each block."""
    if claimed is None:
        return []
    indices = claimed.parcel.ready.indices_at(claimed.positions)
    return list(zip(claimed.positions, indices, claimed.block_ids, strict=True))


def claimed_by(stream: Stream, max_blocks: int = 9) -> Claimed:
    """What there is to place."""
    claimed = stream.inbox.claim(max_blocks)
    assert claimed is not None
    return claimed


def test_a_message_is_claimed_in_order_settled_and_credited_once() -> None:
    sink = Taker()
    stream = Stream(a=sink)
    ready = message(A, 4, 3, stride=5)
    stream.inbox.accept(ready)
    assert stream.counters == TransferCounters(bytes=3 * BYTES, blocks=3, messages=1)
    first, last = claimed_by(stream, 2), claimed_by(stream, 2)
    assert [named(claimed) for claimed in (first, last)] == [[(0, 4, 104), (1, 9, 109)], [(2, 14, 114)]]
    assert sink.asked == [(7, 1, 4), (7, 1, 9), (7, 1, 14)]
    assert {(claimed.parcel.ready, claimed.parcel.checksums, claimed.sink) for claimed in (first, last)} == {
        (ready, (40, 41, 42), sink)
    }
    stream.inbox.settle(first, spoilt=[0])
    assert (stream.credits, stream.disposed) == ([], [])
    stream.inbox.settle(last)
    assert sink.settled == [(7, 1, 9, True), (7, 1, 4, False), (7, 1, 14, True)]
    assert (stream.credits, stream.disposed) == ([Credit(A, 30)], [ready])
    assert stream.counters == TransferCounters(bytes=30, blocks=3, messages=1, placed_bytes=20, corrupt=1)
    assert stream.inbox.claim(8) is None


def test_claims_are_of_one_message_and_no_more_than_asked_for() -> None:
    stream = Stream(a=Taker(), b=Taker())
    stream.inbox.accept(message(A, 0, 3))
    stream.inbox.accept(message(B, 5, 2))
    taken = [named(stream.inbox.claim(2)) for _ in range(4)]
    assert taken == [[(0, 0, 100), (1, 1, 101)], [(2, 2, 102)], [(0, 5, 105), (1, 6, 106)], []]


def test_what_nobody_wants_is_counted_by_why_and_credited() -> None:
    stream = Stream(a=Taker(_0=Verdict.LATE, _1=Verdict.DUPLICATE, _2=Verdict.DROP, _3=Verdict.DUPLICATE))
    stream.inbox.accept(message(A, 0, 4))
    stream.inbox.accept(message(B, 0, 2))  # of nobody
    assert stream.inbox.claim(1) is None
    assert stream.counters == TransferCounters(bytes=60, blocks=6, messages=2, late=1, duplicate=2, dropped=3)
    assert stream.credits == [Credit(A, 40), Credit(B, 20)]


@pytest.mark.parametrize("num_answers", [1, 3])
def test_a_sink_that_does_not_answer_for_each_block_is_a_bug_that_is_told(num_answers: int) -> None:
    sink = Taker()
    stream = Stream(a=sink)
    sink.claim = lambda *_: [Claim(Verdict.PLACE, 100)] * num_answers  # type: ignore[method-assign]
    stream.inbox.accept(message(A, 0, 2))
    with pytest.raises(ValueError, match=r"shorter|longer"):
        stream.inbox.claim(2)


def test_a_message_is_over_only_with_the_last_of_its_blocks_however_they_end() -> None:
    stream = Stream(a=Taker(_1=Verdict.LATE, _2=Verdict.WAIT))
    stream.inbox.accept(message(A, 0, 3))
    block = claimed_by(stream)
    stream.inbox.settle(block)
    assert stream.credits == [], "one block waits for its id"
    stream.inbox.unregister(A)
    assert stream.credits == [Credit(A, 30)]


def test_what_waits_has_its_turn_again_in_the_order_in_which_it_came() -> None:
    waiting, free = Taker(**{f"_{index}": Verdict.WAIT for index in range(8)}), Taker()
    stream = Stream(a=waiting, b=free)
    for first, num in ((0, 3), (3, 2), (5, 3)):
        stream.inbox.accept(message(A, first, num))
    assert stream.inbox.claim(9) is None
    assert (stream.inbox.num_waiting, stream.credits) == (8, [])
    stream.inbox.accept(message(B, 0, 1))
    del waiting.verdicts[3], waiting.verdicts[0], waiting.verdicts[2]
    stream.inbox.retry(A)
    stream.inbox.retry(B)
    taken = [named(stream.inbox.claim(9)) for _ in range(4)]
    assert taken == [[(0, 0, 100), (2, 2, 102)], [(0, 3, 103)], [(0, 0, 100)], []], (
        "message by message, then the others"
    )
    assert stream.inbox.num_waiting == 5
    waiting.verdicts.clear()
    stream.inbox.retry(A)
    taken = [named(stream.inbox.claim(9)) for _ in range(4)]
    assert taken == [[(1, 1, 101)], [(1, 4, 104)], [(0, 5, 105), (1, 6, 106), (2, 7, 107)], []]
    assert stream.inbox.num_waiting == 0


def test_a_key_is_registered_once_and_its_end_drops_what_waits_and_what_comes() -> None:
    sink = Taker(_1=Verdict.WAIT, _2=Verdict.WAIT)
    stream = Stream(a=sink, b=Taker())
    assert stream.inbox.keys() == (A, B)
    with pytest.raises(ValueError, match="is registered"):
        stream.inbox.register(A, Taker())
    stream.inbox.accept(message(A, 0, 3))
    block = claimed_by(stream)
    stream.inbox.unregister(A)
    stream.inbox.unregister(A)
    assert (stream.inbox.keys(), stream.inbox.num_waiting, stream.counters.dropped) == ((B,), 0, 2)
    stream.inbox.accept(message(A, 0, 1))
    assert stream.inbox.claim(9) is None
    assert stream.counters.dropped == 3
    stream.inbox.settle(block)
    assert sink.settled == [(7, 1, 0, True)], "what was claimed is settled all the same"
    assert stream.credits == [Credit(A, 10), Credit(A, 30)]


def test_a_lost_stream_is_forgotten_without_credit_and_its_claims_are_given_up() -> None:
    sink, other = Taker(_1=Verdict.WAIT), Taker()
    stream = Stream(a=sink, b=other)
    stream.inbox.accept(message(A, 0, 2, sums_follow=True))
    block = claimed_by(stream)
    stream.inbox.accept(message(B, 0, 1))
    before = (stream.counters.corrupt, stream.counters.dropped)
    assert stream.inbox.clear() == (A, B)
    assert (stream.inbox.keys(), stream.inbox.num_waiting, stream.inbox.claim(9)) == ((), 0, None)
    stream.inbox.give_up(block)
    assert sink.settled == [(7, 1, 0, False)]
    assert (stream.counters.corrupt, stream.counters.dropped) == before
    assert (stream.credits, stream.disposed) == ([], [])
    stream.inbox.register(A, sink)
    stream.inbox.retry(A)
    assert stream.inbox.claim(9) is None, "nothing is carried over"
    stream.inbox.summed(Sums(A, range(0, 2), (1, 2)))
    assert block.parcel.checksums is None


# ------------------------------------------------------------------------------------------- checksums that follow


def test_checksums_that_follow_are_those_of_the_message_with_the_same_blocks() -> None:
    stream = Stream(a=Taker(), b=Taker())
    for key, first, stride in ((A, 0, 1), (A, 2, 1), (A, 0, 2), (B, 0, 1)):
        stream.inbox.accept(message(key, first, 2, stride=stride, sums_follow=True))
    parcels = [claimed_by(stream).parcel for _ in range(4)]
    assert [parcel.checksums for parcel in parcels] == [None] * 4
    stream.inbox.summed(Sums(A, range(0, 4, 2), (5, 6)))
    assert [parcel.checksums for parcel in parcels] == [None, None, (5, 6), None]
    stream.inbox.summed(Sums(B, range(0, 2), (7, 8)))
    stream.inbox.summed(Sums(A, range(0, 2), (9, 9)))
    assert [parcel.checksums for parcel in parcels] == [(9, 9), None, (5, 6), (7, 8)]


def test_a_message_that_came_twice_waits_for_one_set_of_checksums_and_what_was_told_stands() -> None:
    stream = Stream(a=Taker())
    twice = message(A, 0, 1, sums_follow=True)
    stream.inbox.accept(twice)
    stream.inbox.accept(twice)
    first, second = (claimed_by(stream).parcel for _ in range(2))
    stream.inbox.summed(Sums(A, range(0, 1), (5,)))
    assert (first.checksums, second.checksums) == ((5,), (5,))
    stream.inbox.accept(twice)
    stream.inbox.summed(Sums(A, range(0, 1), (6,)))
    assert (first.checksums, claimed_by(stream).parcel.checksums) == ((5,), (6,))


def test_checksums_of_a_message_that_is_over_are_nothing() -> None:
    stream = Stream(a=Taker())
    stream.inbox.accept(message(A, 0, 1, sums_follow=True))
    block = claimed_by(stream)
    stream.inbox.settle(block)
    stream.inbox.summed(Sums(A, range(5, 6), (1,)))  # of none that came: looks through those that wait
    stream.inbox.summed(Sums(A, range(0, 1), (2,)))
    assert block.parcel.checksums is None, "nobody holds it any more"


def test_what_nobody_wants_is_not_kept_for_its_checksums() -> None:
    stream = Stream()
    for number in range(50):
        stream.inbox.accept(message(A, number, 1, sums_follow=True))
        assert stream.inbox.claim(8) is None
    assert stream.inbox._unsummed == []
    stream.inbox.summed(Sums(A, range(0, 1), (40,)))  # of one that is over


def test_what_is_kept_is_bounded_whatever_the_source_does() -> None:
    """By two windows: one may have come twice. What is disposed of makes room, and so does what is given up."""
    stream = Stream(a=Taker(**{f"i{index}": Verdict.WAIT for index in range(100)}))
    with pytest.raises(ContractBroken, match="21 blocks at once in a window of 200"):
        stream.inbox.accept(message(A, 0, 21))
    for number in range(4):
        stream.inbox.accept(message(A, 10 * number, 10))
    with pytest.raises(ContractBroken, match="410 bytes"):
        stream.inbox.accept(message(B, 0, 1))
    stream.inbox.claim(8)  # nobody wants them
    stream.inbox.unregister(A)
    assert [credit.num_bytes for credit in stream.credits] == [100, 100, 100, 100]
    for _ in range(2):
        stream.inbox.accept(message(B, 0, 20))
        stream.inbox.accept(message(B, 20, 20))
        stream.inbox.clear()
    for number in range(4):
        stream.inbox.accept(message(B, 10 * number, 10))
    with pytest.raises(ContractBroken, match="410 bytes"):
        stream.inbox.accept(message(B, 0, 1))
