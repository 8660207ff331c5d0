"""What a pod has yet to tell the index, against a model of the index that may fail and forget at any moment."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_tree import ROOT

from pagewire.core.block_hash import BlockHash
from pagewire.core.index_member import member
from pagewire.serving import ledger as ledger_file
from pagewire.serving.block_index import INDEX_TTL_S
from pagewire.serving.breaker import Breaker
from pagewire.serving.ledger import LATE_S, RENEW_S, Batch, Ledger

LIMIT = 3


def name(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "little"))


class Index:
    """What Redis would hold, with the time of each entry's last word."""

    def __init__(self) -> None:
        self.entries: set[tuple[BlockHash, bytes]] = set()
        self.told_s: dict[BlockHash, float] = {}

    def write(self, batch: Batch, now_s: float) -> None:
        for block_hash, tier in batch.tiers.items():
            for used in batch.used:
                if used != tier:
                    self.entries.discard((block_hash, member(batch.index_id, used)))
            if tier is not None:
                self.entries.add((block_hash, member(batch.index_id, tier)))
                self.told_s[block_hash] = now_s


def drain(ledger: Ledger, index: Index, now_s: float) -> None:
    while (batch := ledger.next_batch(LIMIT, now_s)) is not None or ledger.due_s(now_s) == 0.0:
        if batch is not None:
            assert len(batch.tiers) <= LIMIT
            index.write(batch, now_s)
            ledger.written(batch)


STEP = st.one_of(
    st.tuples(st.just("store"), st.integers(0, 11), st.sampled_from([0, 1])),
    st.tuples(st.just("evict"), st.integers(0, 11), st.just(0)),
    st.tuples(st.sampled_from(["write", "lose", "half", "flush", "again"]), st.just(0), st.just(0)),
    st.tuples(st.just("miss"), st.integers(0, LIMIT), st.sampled_from([0, 1])),
)


@given(steps=st.lists(STEP, max_size=60))
def test_once_all_is_written_the_entries_are_what_is_held(steps: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_file, "MAX_NEWS", 5)
        ids = itertools.count(1)
        ledger, index = Ledger(lambda: next(ids), 0.0), Index()
        held: dict[BlockHash, int] = {}
        now_s = 0.0
        for what, number, tier in steps:
            now_s += LATE_S / 2
            if what == "store":
                held[name(number)] = tier
                ledger.stored(name(number), tier)
            elif what == "evict":
                held.pop(name(number), None)
                ledger.evicted(name(number))
            elif what == "flush":
                index.entries.clear()
                ledger.announce()
            elif what == "again":
                ledger.announce()
            elif (batch := ledger.next_batch(LIMIT, now_s)) is not None and what == "miss":
                missed = list(batch.tiers)[:number]  # by a server that is away, and takes nothing, or did not say
                arrived = {each: to for each, to in batch.tiers.items() if tier or each not in missed}
                index.write(dataclasses.replace(batch, tiers=arrived), now_s)
                ledger.missed(batch, missed, now_s)
            elif batch is not None:
                if what != "lose":  # nothing arrives
                    index.write(batch, 0.0)
                if what == "write":  # and is known to have arrived
                    ledger.written(batch)
                else:
                    ledger.announce()
            assert len(ledger._news) <= 5
            assert len(ledger._late) <= 5 + len(held)
        drain(ledger, index, now_s + LATE_S)
        own = {entry for entry in index.entries if int(entry[1]) // 2 == ledger.index_id}
        assert own == {(block_hash, member(ledger.index_id, tier)) for block_hash, tier in held.items()}
        assert ledger.num_held == len(held)


def test_news_beyond_the_bound_take_another_name_so_that_no_removal_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "MAX_NEWS", 4)
    ids = itertools.count(1)
    ledger, index = Ledger(lambda: next(ids), 0.0), Index()
    for number in range(3):
        ledger.stored(name(number), 0)
    drain(ledger, index, 0.0)
    ledger.evicted(name(0))  # what is lost below
    for number in range(10, 14):
        ledger.stored(name(number), 0)
    assert ledger.index_id == 2
    drain(ledger, index, 0.0)
    under_new = {block_hash for block_hash, who in index.entries if who == member(2, 0)}
    assert under_new == {name(number) for number in (1, 2, 10, 11, 12, 13)}


def test_what_is_missed_is_tried_apart_and_keeps_nothing_else_waiting() -> None:
    ledger = Ledger(lambda: 1, 0.0)
    for number in range(4):
        ledger.stored(name(number), 0)
    first = ledger.next_batch(2, 0.0)
    assert first is not None
    ledger.missed(first, [name(0)], 0.0)
    second = ledger.next_batch(2, 0.0)
    assert second is not None
    assert second.tiers == {name(2): 0, name(3): 0}
    ledger.written(second)
    assert ledger.next_batch(2, 0.0) is None
    assert ledger.due_s(0.25) == LATE_S - 0.25
    late = ledger.next_batch(2, LATE_S)
    assert late is not None
    assert late.tiers == {name(0): 0}
    ledger.missed(late, [name(0)], LATE_S)
    assert ledger.due_s(LATE_S) == LATE_S
    ledger.evicted(name(0))  # the newer word goes in its place
    last = ledger.next_batch(2, 2 * LATE_S)
    assert last is not None
    assert last.tiers == {name(0): None}
    ledger.missed(last, [name(0)], 2 * LATE_S)
    late = ledger.next_batch(2, 3 * LATE_S)
    assert late is not None
    ledger.written(late)  # whoever has it is back, and may have forgotten the rest
    again = ledger.next_batch(3, 3 * LATE_S)
    assert again is not None
    assert again.tiers == {name(number): 0 for number in (1, 2, 3)}


def test_everything_is_renewed_before_it_expires_and_at_an_even_pace() -> None:
    ledger, index = Ledger(lambda: 1, 0.0), Index()
    now_s, most = 0.0, 0
    for number in range(300):
        ledger.stored(name(number), 0)
    drain(ledger, index, now_s)
    while now_s < 4 * INDEX_TTL_S:
        now_s += ledger.due_s(now_s)
        writes = 0
        while (batch := ledger.next_batch(LIMIT, now_s)) is not None:
            index.write(batch, now_s)
            writes += 1
        most = max(most, writes)
        assert min(index.told_s.values()) > now_s - INDEX_TTL_S
        assert ledger.due_s(now_s) > 0
    assert most == 1
    assert 2 * RENEW_S < INDEX_TTL_S


def test_a_block_that_is_stored_during_a_walk_is_renewed_in_time_too() -> None:
    ledger, index = Ledger(lambda: 1, 0.0), Index()
    now_s, stored = 0.0, 0
    while now_s < 3 * INDEX_TTL_S:
        if stored < 200:
            ledger.stored(name(stored), 0)
            stored += 1
        drain(ledger, index, now_s)
        assert min(index.told_s.values()) > now_s - INDEX_TTL_S
        now_s += 17.0


def test_what_is_no_hash_is_refused_and_leaves_nothing() -> None:
    ledger = Ledger(lambda: 1, 0.0)
    for wrong in (b"", b"x" * 15, b"x" * 32):
        with pytest.raises(ValueError, match="block hash"):
            ledger.stored(BlockHash(wrong), 0)
    assert ledger.num_held == 0
    assert ledger.next_batch(LIMIT, 0.0) is None


def test_a_breaker_opens_after_some_failures_and_tries_now_and_then() -> None:
    breaker = Breaker(failures=3, first_s=1.0, longest_s=4.0)
    for _ in range(2):
        assert breaker.allows(0.0)
        breaker.failed(0.0)
    breaker.succeeded()
    for _ in range(3):
        assert breaker.allows(0.0)
        breaker.failed(0.0)
    assert breaker.is_open
    asked, now_s = [], 0.0
    while now_s < 20.0:
        if breaker.allows(now_s):
            asked.append(now_s)
            assert not breaker.allows(now_s)  # one at a time
            breaker.failed(now_s)
        now_s += 0.5
    assert asked == [1.0, 3.0, 7.0, 11.0, 15.0, 19.0]
    assert breaker.allows(30.0)
    breaker.succeeded()
    assert not breaker.is_open
    assert all(breaker.allows(30.0) for _ in range(10))
    with pytest.raises(ValueError):
        Breaker(failures=0)


def test_there_is_nothing_to_write_before_the_first_walk_but_news() -> None:
    ledger = Ledger(lambda: 1, 100.0)
    assert (ledger.num_held, ledger.all_held(), set(ledger.used)) == (0, [], {0})
    assert [ledger.due_s(now_s) for now_s in (100.0, 99.0 + RENEW_S, 100.0 + RENEW_S, 105.0 + RENEW_S)] == [
        RENEW_S, 1.0, 0.0, 0.0,
    ]  # fmt: skip
    ledger.announce()
    assert ledger.due_s(100.0) == RENEW_S, "there is nothing to tell once more"
    ledger.stored(name(0), 1)
    assert ledger.due_s(100.0) == 0.0
    batch = ledger.next_batch(LIMIT, 100.0)
    assert batch == Batch(index_id=1, tiers={name(0): 1}, used=frozenset({0, 1}), is_renewal=False)
    ledger.written(batch)
    assert (ledger.due_s(100.0), ledger.next_batch(LIMIT, 100.0)) == (RENEW_S, None)
    ledger.announce()
    assert ledger.due_s(100.0) == 0.0
    assert ledger.next_batch(LIMIT, 100.0) == dataclasses.replace(batch, is_renewal=True)
    assert (ledger.due_s(100.0), ledger.next_batch(LIMIT, 100.0)) == (RENEW_S, None)
    assert ledger.all_held() == [name(0)]


@pytest.mark.parametrize("announced", [False, True])
def test_a_walk_tells_the_oldest_first_in_even_steps_and_begins_anew_after_its_time(announced: bool) -> None:
    ledger, index = Ledger(lambda: 1, 0.0), Index()
    for number in range(7):
        ledger.stored(name(number), 0)
    drain(ledger, index, 0.0)
    if announced:
        ledger.announce()
        drain(ledger, index, 0.0)
    told, now_s = [], 0.0
    for _ in range(6):
        now_s += ledger.due_s(now_s)
        batch = ledger.next_batch(LIMIT, now_s)
        assert batch is not None
        assert batch.is_renewal
        told.append((now_s, {*batch.tiers}))
        assert ledger.next_batch(LIMIT, now_s) is None, "one at a time"
    parts = [{name(0), name(1), name(2)}, {name(3), name(4), name(5)}, {name(6)}]
    starts_s = [RENEW_S * walk + RENEW_S * 3 * part / 7 for walk in (1, 2) for part in range(3)]
    assert [when_s for when_s, _ in told] == pytest.approx(starts_s)
    assert [names for _, names in told] == parts * 2


@pytest.mark.parametrize("tier", [0, 1])
def test_news_are_over_once_they_themselves_are_written(tier: int) -> None:
    ledger = Ledger(lambda: 1, 0.0)
    ledger.stored(name(0), tier)
    first, again = ledger.next_batch(LIMIT, 0.0), ledger.next_batch(LIMIT, 0.0)
    assert first is not None
    assert first == again, "they stay until they are"
    ledger.written(first)
    ledger.written(first)
    assert ledger.next_batch(LIMIT, 0.0) is None
    ledger.announce()
    renewal = ledger.next_batch(LIMIT, 0.0)
    assert renewal is not None
    ledger.evicted(name(0))
    ledger.stored(name(0), tier)
    ledger.written(renewal)
    assert ledger.next_batch(LIMIT, 0.0) == first, "what was on its way before is not it"


def test_what_is_written_under_an_old_name_is_no_news_of_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "MAX_NEWS", 2)
    ids = itertools.count(1)
    ledger, index = Ledger(lambda: next(ids), 0.0), Index()
    ledger.evicted(name(0))
    late = ledger.next_batch(LIMIT, 0.0)
    assert late is not None
    ledger.stored(name(0), 0)
    for number in (1, 2):
        ledger.stored(name(number), 0)
    assert ledger.index_id == 2
    drain(ledger, index, 0.0)
    assert (name(0), member(2, 0)) in index.entries
    ledger.evicted(name(0))
    ledger.written(late)
    drain(ledger, index, 0.0)
    assert (name(0), member(2, 0)) not in index.entries


def test_as_many_news_as_may_wait_may_change_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "MAX_NEWS", 2)
    ids = itertools.count(1)
    ledger = Ledger(lambda: next(ids), 0.0)
    for number, tier in ((0, 0), (1, 0), (0, 1), (1, 1)):
        ledger.stored(name(number), tier)
    batch = ledger.next_batch(LIMIT, 0.0)
    assert batch == Batch(index_id=1, tiers={name(0): 1, name(1): 1}, used=frozenset({0, 1}), is_renewal=False)
    ledger.evicted(name(2))
    assert ledger.index_id == 2


def test_so_many_changes_wait_as_the_documentation_says() -> None:
    assert f"more than {ledger_file.MAX_NEWS:,} changes waiting" in (ROOT / "docs" / "prefix-index.md").read_text()


def test_all_that_is_held_is_told_once_more_as_often_as_the_documentation_says() -> None:
    assert f"every {RENEW_S / 60:g} minutes" in (ROOT / "docs" / "prefix-index.md").read_text()


def test_a_breaker_opens_and_tries_as_the_documentation_says() -> None:
    told = "five failures in a row, then only tried again after 0.5 s, doubling up to 8 s"
    assert told in (ROOT / "docs" / "operations.md").read_text()
    breaker = Breaker()
    for _ in range(5):
        assert not breaker.is_open
        breaker.failed(0.0)
    now_s = 0.0
    for pause_s in (0.5, 1.0, 2.0, 4.0, 8.0, 8.0):
        assert breaker.allows(now_s + pause_s - 0.1) is False
        now_s += pause_s
        assert breaker.allows(now_s) is True
        breaker.failed(now_s)


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_a_breaker_is_open_from_so_many_failures_in_a_row_until_an_answer(failures: int) -> None:
    breaker = Breaker(failures=failures, first_s=1.0, longest_s=1.0)
    for _ in range(3):
        for _ in range(failures):
            assert not breaker.is_open
            assert breaker.allows(7.0) is True
            breaker.failed(7.0)
        assert breaker.is_open
        assert [breaker.allows(now_s) for now_s in (7.0, 7.9, 8.0, 8.9)] == [False, False, True, False]
        breaker.succeeded()
        assert breaker.allows(8.0) is True


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_what_was_on_its_way_when_a_breaker_opened_lengthens_no_pause(failures: int) -> None:
    breaker = Breaker(failures=failures, first_s=1.0, longest_s=8.0)
    for _ in range(failures):
        breaker.failed(0.0)
    for _ in range(10):
        breaker.failed(0.1)
    assert [breaker.allows(now_s) for now_s in (0.9, 1.0)] == [False, True]
    breaker.failed(1.0)
    breaker.failed(1.1)
    assert [breaker.allows(now_s) for now_s in (2.9, 3.0)] == [False, True]
    breaker.succeeded()
    for _ in range(failures):
        breaker.failed(5.0)
    assert [breaker.allows(now_s) for now_s in (5.9, 6.0)] == [False, True], "the first pause again"


def test_a_question_that_nobody_waits_for_says_nothing() -> None:
    breaker = Breaker(failures=2, first_s=1.0, longest_s=8.0)
    for _ in range(10):
        breaker.given_up(0.0)
    assert not breaker.is_open
    for _ in range(2):
        breaker.failed(0.0)
    breaker.given_up(0.5)  # it went out before
    assert [breaker.allows(now_s) for now_s in (0.5, 1.0, 1.5)] == [False, True, False]
    breaker.given_up(1.5)
    breaker.failed(1.5)  # this one went out before too
    assert [breaker.allows(now_s) for now_s in (1.5, 1.6)] == [True, False], "the next one tries instead"
    breaker.failed(1.6)
    assert [breaker.allows(now_s) for now_s in (3.5, 3.6)] == [False, True]


@pytest.mark.parametrize(
    ("failures", "first_s", "longest_s"), [(0, 1.0, 2.0), (1, 0.0, 2.0), (1, -0.5, 2.0), (1, 2.0, 1.9)]
)
def test_what_is_no_breaker_is_refused(failures: int, first_s: float, longest_s: float) -> None:
    with pytest.raises(ValueError, match="no breaker"):
        Breaker(failures=failures, first_s=first_s, longest_s=longest_s)


def missed(ledger: Ledger, now_s: float, *, limit: int = LIMIT) -> Batch:
    """Take the next batch, of which nothing is taken."""
    batch = ledger.next_batch(limit, now_s)
    assert batch is not None
    ledger.missed(batch, list(batch.tiers), now_s)
    return batch


def test_what_is_late_is_a_renewal_and_no_newer_word_of_the_same() -> None:
    ledger = Ledger(lambda: 1, 0.0)
    ledger.stored(name(0), 0)
    first = missed(ledger, 0.0)
    late = ledger.next_batch(LIMIT, LATE_S)
    assert late == dataclasses.replace(first, is_renewal=True)
    ledger.evicted(name(0))
    ledger.stored(name(0), 0)
    ledger.written(late)
    assert ledger.next_batch(LIMIT, LATE_S) == first, "what was on its way before is not it"


def test_what_was_tried_last_waits_behind_what_has_not_been_tried_for_longer() -> None:
    ledger = Ledger(lambda: 1, 0.0)
    for number in range(3):
        ledger.stored(name(number), 0)
    missed(ledger, 0.0)
    order = [each for turn in range(1, 6) for each in missed(ledger, turn * LATE_S, limit=1).tiers]
    assert order == [name(number) for number in (0, 1, 2, 0, 1)]


def test_what_is_missed_under_an_old_name_is_not_late_under_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "MAX_NEWS", 1)
    ids = itertools.count(1)
    ledger = Ledger(lambda: next(ids), 0.0)
    ledger.stored(name(0), 0)
    old = ledger.next_batch(LIMIT, 0.0)
    assert old is not None
    ledger.stored(name(1), 0)
    assert ledger.index_id == 2
    ledger.stored(name(0), 0)
    assert ledger.index_id == 3
    ledger.missed(old, [name(0)], 0.0)
    news = ledger.next_batch(LIMIT, 0.0)
    assert news == Batch(index_id=3, tiers={name(0): 0}, used=frozenset({0}), is_renewal=False)


@pytest.mark.parametrize("num_held", [0, 2])
def test_more_that_is_late_than_is_held_and_may_be_news_takes_another_name(
    num_held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_file, "MAX_NEWS", 3)
    ids = itertools.count(1)
    ledger = Ledger(lambda: next(ids), 0.0)
    for number in range(num_held):
        ledger.stored(name(number), 0)
        drain(ledger, Index(), 0.0)
    for number in range(10, 13 + num_held):
        assert ledger.index_id == 1
        ledger.evicted(name(number))
        missed(ledger, 0.0)
    ledger.evicted(name(20))
    assert ledger.index_id == 2
    told: dict[BlockHash, int | None] = {}
    while (batch := ledger.next_batch(LIMIT, LATE_S)) is not None:
        told |= batch.tiers
        ledger.written(batch)
    assert told == {name(20): None, **{name(number): 0 for number in range(num_held)}}, "nothing late is left"
