"""Leases: every grant ends exactly once, and never before its time."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pagewire.kvtransfer.lease import LeaseTable

PEERS = st.sampled_from(["D1", "D2"])
GRACE_S = 1.0


def test_a_lease_outlasts_the_peers_view_and_is_renewed_by_signs_of_life() -> None:
    leases: LeaseTable[str] = LeaseTable(grace_s=1.0)
    leases.grant("a", "D1", 5.0, now_s=0.0)
    leases.grant("b", "D2", 5.0, now_s=0.0)
    assert "a" in leases
    assert "c" not in leases
    assert leases.expired(5.9) == ()
    leases.renew("D1", 5.0)
    assert leases.expired(6.0) == ("b",)
    assert leases.expired(10.9) == ()
    assert leases.expired(11.0) == ("a",)
    assert len(leases) == 0


def test_a_lease_is_bounded_positive_and_granted_once() -> None:
    leases: LeaseTable[str] = LeaseTable(grace_s=0.0, max_lease_s=10.0)
    leases.grant("a", "D1", 1e9, now_s=0.0)
    assert leases.expired(10.0) == ("a",)
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="a lease of"):
            leases.grant("b", "D1", bad, now_s=0.0)
    leases.grant("b", "D1", 1.0, now_s=0.0)
    with pytest.raises(ValueError, match="has a lease"):
        leases.grant("b", "D2", 1.0, now_s=0.0)


class LeaseLife(RuleBasedStateMachine):
    """Random grants, renewals, releases and time, against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.next_key = 0
        self.table: LeaseTable[int] = LeaseTable(grace_s=GRACE_S)
        self.live: dict[int, tuple[str, float, float]] = {}  # key -> peer, length, end
        self.ended: list[int] = []

    @rule(peer=PEERS, lease_s=st.floats(0.1, 20))
    def grant(self, peer: str, lease_s: float) -> None:
        self.table.grant(self.next_key, peer, lease_s, self.now_s)
        self.live[self.next_key] = (peer, lease_s + GRACE_S, self.now_s + (lease_s + GRACE_S))
        self.next_key += 1

    @rule(peer=PEERS)
    def renew(self, peer: str) -> None:
        self.table.renew(peer, self.now_s)
        self.live = {
            key: (owner, length, self.now_s + length if owner == peer else end)
            for key, (owner, length, end) in self.live.items()
        }

    @rule(seconds=st.floats(0, 10))
    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def expire(self) -> None:
        due = {key for key, (_, _, end) in self.live.items() if end <= self.now_s}
        ended = self.table.expired(self.now_s)
        assert set(ended) == due
        self.end(ended)

    @rule(key=st.integers(0, 30))
    def release(self, key: int) -> None:
        was_live = key in self.live
        assert self.table.release(key) == was_live
        if was_live:
            self.end((key,))

    def end(self, keys: tuple[int, ...]) -> None:
        self.ended.extend(keys)
        for key in keys:
            del self.live[key]

    @invariant()
    def every_grant_is_live_or_ended_once(self) -> None:
        assert len(self.table) == len(self.live)
        assert sorted([*self.ended, *self.live]) == list(range(self.next_key))


TestLeaseLife = LeaseLife.TestCase
