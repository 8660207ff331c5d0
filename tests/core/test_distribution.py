"""A distribution against its definition: of each bound, how many values were not above it."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.distribution import Distribution

VALUES = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 2.5, 3.0]), st.integers(1, 3)))
BOUNDS = st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.5]), unique=True).map(sorted)


@given(BOUNDS, VALUES)
def test_a_bucket_has_what_is_not_above_its_bound(bounds: list[float], values: list[tuple[float, int]]) -> None:
    distribution = Distribution(bounds)
    for value, times in values:
        if times == 1:
            distribution.observe(value)
        else:
            distribution.observe(value, times)
    every = [value for value, times in values for _ in range(times)]
    assert distribution.buckets() == [(bound, sum(value <= bound for value in every)) for bound in (*bounds, inf)]
    assert (distribution.count, distribution.total) == (len(every), sum(every))
    assert distribution.bounds == tuple(bounds)
