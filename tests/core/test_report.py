"""What a report says no pod had to compute: of the pod that prefilled, and of nobody that was lost."""

from __future__ import annotations

import dataclasses

import pytest

from pagewire.core.report import Report


@pytest.mark.parametrize(("placement", "cached", "fetched"), [("local", 3, 4), ("remote", 1, 2), ("resumed", 1, 2)])
def test_what_was_cached_and_fetched_is_told_of_the_pod_that_prefilled(
    placement: str, cached: int, fetched: int
) -> None:
    report = Report(
        placement=placement,
        prefill_cached_tokens=1,
        prefill_fetched_tokens=2,
        decode_cached_tokens=3,
        decode_fetched_tokens=4,
    )
    assert (report.cached_tokens, report.fetched_tokens) == (cached, fetched)
    lost = dataclasses.replace(report, causes=("prefill_lost",))
    assert (lost.cached_tokens, lost.fetched_tokens) == (cached, 0)
