"""The cheapest cluster of some families that keeps its promises; of equally cheap ones a colocated one, for it is less
to run, and then the one that keeps most.

Families are gone through by what they cost at least (`Demand`); what costs more than one that was found is left out. Of
a family the smallest cluster is tried first; then the fewest pods of either role are halved in on, beside as many of
the other as could be afforded; then its clusters are tried from the cheapest on. Invariant: nothing is left out that
could have been the answer, as long as one more pod never makes a cluster of a monotone family miss its target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pagewire.slo.planning.candidate import Candidate, Family
from pagewire.slo.planning.demand import Demand
from pagewire.slo.planning.judge import Judge, Outcome


def cheapest(families: Sequence[Family], demand: Demand, judge: Judge, *, max_pods: int) -> Outcome | None:
    """Return the best of clusters with `max_pods` at most, None where none meets the target."""
    best: Outcome | None = None
    if not demand.is_possible:
        return None
    for family in sorted(families, key=lambda each: (not each.is_monotone, each.price(*demand.least(each)))):
        found = _Within(family, demand.least(family), judge, max_pods, best).best()
        best = _better(best, found)
    return best


def _better(one: Outcome | None, other: Outcome | None) -> Outcome | None:
    """Return the one that is before the other in `_order`; the first where all is even."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=_order)


def _order(outcome: Outcome) -> tuple[float, bool, float]:
    candidate = outcome.candidate
    return candidate.price, not candidate.family.is_colocated, -outcome.attained.share


class _Within:
    """The search in one family, for what is no dearer than `limit`."""

    def __init__(
        self, family: Family, least: tuple[int, int], judge: Judge, max_pods: int, limit: Outcome | None
    ) -> None:
        self._family = family
        self._least = least
        self._judge = judge
        self._max_pods = max_pods
        self._limit = limit

    def best(self) -> Outcome | None:
        """Return the best one, None where none is good enough."""
        prefill, decode = self._least
        if not self._may_be(self._least):
            return None
        if self._is_met(self._least):
            return self._judge.outcome(self._candidate(prefill, decode))
        if self._family.is_colocated:
            most = self._most(lambda count: (0, count), decode)
            first = self._first(lambda count: (0, count), decode + 1, most)
            return None if first is None else self._judge.outcome(self._candidate(0, first))
        if not self._family.is_monotone:
            return self._in_order(prefill, decode)
        most_prefill = self._most(lambda count: (count, decode), prefill)
        most_decode = self._most(lambda count: (prefill, count), decode)
        least_decode = self._first(lambda count: (most_prefill, count), decode, most_decode)
        if least_decode is None:
            return None
        least_prefill = self._first(lambda count: (count, most_decode), prefill, most_prefill)
        return None if least_prefill is None else self._in_order(least_prefill, least_decode)

    def _in_order(self, prefill: int, decode: int) -> Outcome | None:
        """Try the clusters of as many pods or more, from the cheapest on, and with it those of the same price."""
        best: Outcome | None = None
        for candidate in sorted(self._affordable(prefill, decode), key=lambda each: (each.price, each.num_pods)):
            if best is not None and candidate.price > best.candidate.price:
                break
            outcome = self._judge.outcome(candidate)
            if outcome.is_met:
                best = _better(best, outcome)
        return best

    def _affordable(self, prefill: int, decode: int) -> Iterator[Candidate]:
        for more in range(prefill, self._max_pods):
            for others in range(decode, self._max_pods + 1 - more):
                if self._may_be((more, others)):
                    yield self._candidate(more, others)

    def _candidate(self, prefill: int, decode: int) -> Candidate:
        return Candidate(family=self._family, prefill=prefill, decode=decode)

    def _may_be(self, counts: tuple[int, int]) -> bool:
        if sum(counts) > self._max_pods:
            return False
        if self._limit is None:
            return True
        # As if all of its requests were good, which nobody knows yet.
        return (self._family.price(*counts), not self._family.is_colocated, -1.0) < _order(self._limit)

    def _most(self, counts: Callable[[int], tuple[int, int]], least: int) -> int:
        """Return the most pods that may be, below `least` where not even those may."""
        found = least - 1
        while self._may_be(counts(found + 1)):
            found += 1
        return found

    def _first(self, counts: Callable[[int], tuple[int, int]], least: int, most: int) -> int | None:
        """Return the fewest pods from `least` to `most` that meet the target, None where none do."""
        if most < least or not self._is_met(counts(most)):
            return None
        while least < most:
            middle = (least + most) // 2
            if self._is_met(counts(middle)):
                most = middle
            else:
                least = middle + 1
        return most

    def _is_met(self, counts: tuple[int, int]) -> bool:
        return self._judge.outcome(self._candidate(*counts)).is_met
