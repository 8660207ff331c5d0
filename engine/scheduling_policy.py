"""Who goes first: a rank for each sequence, the lowest is the soonest.

    rank = arrived + handicap                 seconds; whoever came first wins a tie

A handicap is by how much later than it did a sequence is taken to have come. Knows no pools and no budgets, reads no
clock. Invariant, which is why nobody starves: handicaps of a policy lie between 0 and its `span_s`, so a sequence that
arrived at t ranks before every one that arrives after t + `span_s`, whatever that is. Those that may ever go before it
have come by then; they are finitely many, each of them ends, and from then on it is the first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from pagewire.core.sequence_spec import MAX_PRIORITY

S_PER_PRIORITY = 5.0  # a request is overtaken by one that is n priorities sooner and comes up to 5 n seconds later
S_PER_TOKEN = 0.001  # and by a prompt that is n tokens shorter and comes up to n milliseconds later,
MOST_TOKENS = 60_000  # beyond which all are equally long


class PolicyName(StrEnum):
    """The policies, by the name that chooses them."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    SRPT = "srpt"


class SchedulingPolicy(Protocol):
    """Ranks sequences. A handicap may fall while a sequence runs; while it waits it stays what it is."""

    @property
    def changes(self) -> bool:
        """False where it stays what it is while a sequence runs, too."""
        ...

    @property
    def span_s(self) -> float:
        """The largest handicap, in seconds; the least is 0."""
        ...

    def handicap_s(self, priority: int, num_left: int) -> float:
        """Return the seconds that a sequence is put back, `num_left` tokens before its next output token."""
        ...


class FirstComeFirstServed:
    """In the order of arrival."""

    changes = False
    span_s = 0.0

    def handicap_s(self, priority: int, num_left: int) -> float:
        """Return 0."""
        return 0.0


class Priority:
    """The lower a request's `priority`, the sooner."""

    changes = False
    span_s = 2 * MAX_PRIORITY * S_PER_PRIORITY

    def handicap_s(self, priority: int, num_left: int) -> float:
        """Return the distance from the best priority."""
        return (min(max(priority, -MAX_PRIORITY), MAX_PRIORITY) + MAX_PRIORITY) * S_PER_PRIORITY


class ShortestRemainingPrefill:
    """The fewer tokens are left to compute before the next output token, the sooner: a decode has one left."""

    changes = True
    span_s = MOST_TOKENS * S_PER_TOKEN

    def handicap_s(self, priority: int, num_left: int) -> float:
        """Return what is left, in seconds."""
        return min(num_left, MOST_TOKENS) * S_PER_TOKEN


_POLICIES: dict[PolicyName, SchedulingPolicy] = {
    PolicyName.FCFS: FirstComeFirstServed(),
    PolicyName.PRIORITY: Priority(),
    PolicyName.SRPT: ShortestRemainingPrefill(),
}


def policy_named(name: str) -> SchedulingPolicy:
    """Return the policy of that name; raises ValueError for any other."""
    return _POLICIES[PolicyName(name)]
