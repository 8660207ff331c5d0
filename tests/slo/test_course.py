"""A run of steps whose pace changes under way, against the same arithmetic by hand."""

from __future__ import annotations

import pytest

from pagewire.slo.simulation.course import Course


def test_a_change_of_pace_moves_what_is_not_over() -> None:
    course = Course(10.0, [1.0, 2.0, 3.0], 1.0)
    assert course.ends_s == [11.0, 13.0, 16.0]
    course.change(2.0, 12.0)  # in the middle of the second step
    assert course.ends_s == [11.0, 14.0, 20.0]
    course.change(1.0, 14.0)  # at the very end of it
    assert course.ends_s == [11.0, 14.0, 17.0]
    assert course.took_s(0, 3) == [1.0, 3.0, 3.0]
    assert course.took_s(1, 2) == [3.0]


def test_steps_that_are_over_keep_their_moments() -> None:
    course = Course(0.0, [1.0], 1.5)
    course.change(3.0, 1.5)
    assert course.ends_s == [1.5]
    assert [course.num_over(now_s) for now_s in (0.0, 1.4, 1.5)] == [0, 0, 1]


def test_what_is_cut_off_does_not_come_back() -> None:
    course = Course(0.0, [1.0, 1.0, 1.0], 1.0)
    course.num_done = 1
    course.cut_short()
    course.change(2.0, 1.5)
    assert course.ends_s == pytest.approx([1.0, 2.5])


def test_a_course_begins_with_nothing_accounted_for() -> None:
    course = Course(3.0, [1.0, 2.0], 2.0)
    assert (course.begun_s, course.works_s, course.slowdown, course.num_done) == (3.0, [1.0, 2.0], 2.0, 0)
    assert course.ends_s == [5.0, 9.0]
    assert course.took_s(0, 2) == [2.0, 4.0]
    course.cut_short()
    assert (course.works_s, course.ends_s) == ([1.0], [5.0])


def test_a_pace_of_part_of_a_step_is_that_of_its_rest_only() -> None:
    course = Course(0.0, [1.5, 1.5], 1.0)
    course.change(1.25, 0.5)
    assert course.ends_s == [1.75, 3.625]
    course.change(2.5, 1.0)  # of the first step 0.6 is done
    assert course.ends_s == [2.5, 6.25]
    assert course.slowdown == 2.5
