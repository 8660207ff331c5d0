"""Which router is next, on values."""

from __future__ import annotations

import pytest

from pagewire.client.routers import Routers


def test_a_client_stays_with_its_router_until_it_is_lost_and_comes_back_after_the_rest() -> None:
    routers = Routers(3, rest_s=5.0)
    assert [routers.choose(now_s) for now_s in (0.0, 1.0)] == [0, 0]
    routers.lost(0, 1.0)
    assert [routers.choose(now_s) for now_s in (1.0, 7.0)] == [1, 1]
    routers.lost(1, 7.0)
    routers.lost(2, 7.5)
    assert routers.choose(8.0) == 0
    routers.lost(0, 8.0)
    assert routers.choose(8.0) == 1  # all rest: the one that was lost the longest ago
    routers.answered(1)
    assert routers.choose(8.0) == 1


def test_what_a_call_left_is_avoided_as_long_as_there_is_another() -> None:
    routers = Routers(2)
    assert routers.choose(0.0, {0}) == 1
    assert routers.has_other(0.0, {0})
    assert routers.choose(0.0, {0, 1}) == 0
    assert not routers.has_other(0.0, {0, 1})
    routers.lost(1, 0.0)
    assert not routers.has_other(1.0, {0})


def test_a_client_needs_a_router() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Routers(0)
