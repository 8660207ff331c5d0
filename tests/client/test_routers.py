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


def test_a_lost_router_rests_and_no_longer() -> None:
    routers = Routers(2, rest_s=5.0)
    routers.lost(0, 10.0)
    routers.lost(1, 11.0)
    assert [routers.has_other(now_s, {1}) for now_s in (14.9, 15.0)] == [False, True]
    assert [routers.choose(now_s) for now_s in (14.9, 15.0, 15.9, 16.0)] == [0, 0, 0, 0]
    routers.lost(0, 16.0)
    assert routers.choose(16.0) == 1


def test_losing_another_one_leaves_the_current_router() -> None:
    routers = Routers(3)
    assert routers.choose(0.0, {0}) == 1, "the next one"
    routers.lost(1, 0.0)
    assert routers.choose(0.0) == 0
    routers.lost(0, 0.0)
    assert routers.choose(0.0) == 2, "the one after it rests"
    routers.answered(1)
    assert routers.choose(0.0) == 1
    routers.answered(2)  # it was not lost
    assert routers.choose(0.0) == 1


def test_where_all_rest_one_that_a_call_did_not_leave_is_the_first_to_be_tried() -> None:
    routers = Routers(3, rest_s=5.0)
    for place, at_s in ((2, 1.0), (0, 2.0), (1, 3.0)):
        routers.lost(place, at_s)
    assert routers.choose(4.0) == 2
    assert routers.choose(4.0, {2}) == 0
    assert routers.choose(4.0, {0, 2}) == 1
    assert routers.choose(4.0, {0, 1, 2}) == 2
