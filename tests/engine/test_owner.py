"""Who owns cached blocks: one object for each tag, with the share that its latest request said."""

from __future__ import annotations

import pytest

from pagewire.core.cache_quota import CacheQuota
from pagewire.engine.owner import Owner, Owners


@pytest.mark.parametrize(("share", "capacity", "limit"), [(0.25, 8, 2), (0.3, 9, 2), (1.0, 7, 7), (0.0, 7, 0)])
def test_a_share_is_rounded_down_to_whole_places(share: float, capacity: int, limit: int) -> None:
    assert Owner(b"a", share).limit(capacity) == limit


def test_a_tag_has_one_owner_with_the_share_that_was_said_last() -> None:
    owners = Owners()
    first, other = owners.of(CacheQuota(tag=b"a", share=0.5)), owners.of(CacheQuota(tag=b"b", share=0.5))
    assert first is not None
    assert first is not other
    assert (first.tag, first.share, len(owners)) == (b"a", 0.5, 2)
    assert owners.of(CacheQuota(tag=b"a", share=0.25)) is first
    assert (first.share, len(owners)) == (0.25, 2)


def test_whoever_has_no_quota_has_no_owner() -> None:
    owners = Owners()
    assert owners.of(None) is None
    assert len(owners) == 0


def test_an_owner_that_nothing_names_is_forgotten() -> None:
    owners = Owners()
    kept = owners.of(CacheQuota(tag=b"kept", share=0.5))
    for number in range(9):
        owners.of(CacheQuota(tag=b"%d" % number, share=0.5))
    assert len(owners) == 1
    assert owners.of(CacheQuota(tag=b"kept", share=0.5)) is kept
