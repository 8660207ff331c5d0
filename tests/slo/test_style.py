"""Every line of a picture is told from the others without its colour, by day and by night."""

from __future__ import annotations

from typing import Any

from matplotlib.lines import Line2D

from pagewire.slo.report.style import BOUND, DARK, DASHES, GRID, INK, MISSED, SERIES, SOFT, line


def dash(linestyle: Any) -> tuple[float, tuple[float, ...]]:
    """Return how matplotlib draws it: where it begins, and how long its ink and its gaps are in turn."""
    begin, lengths = vars(Line2D([], [], linestyle=linestyle))["_unscaled_dash_pattern"]
    return begin, tuple(lengths or ())


def test_every_colour_has_another_in_the_dark() -> None:
    light = [INK, SOFT, GRID, MISSED, *SERIES]
    assert [*DARK] == light
    assert len({*light, *DARK.values()}) == 2 * len(light)


def test_lines_differ_in_all_they_have_until_the_looks_are_used_up() -> None:
    looks = [line(place) for place in range(len(SERIES))]
    for name in ("color", "marker"):
        assert len({look[name] for look in looks}) == len(looks)
    assert len({dash(look["linestyle"]) for look in looks}) == len(looks)
    assert [line(place) for place in range(len(SERIES), 2 * len(SERIES))] == looks


def test_what_is_to_be_met_has_the_dash_of_no_line() -> None:
    assert dash(BOUND["linestyle"]) not in {dash(line(place)["linestyle"]) for place in range(len(SERIES))}
    assert BOUND["linewidth"] > 0


def test_every_dash_begins_with_its_ink_and_has_no_ink_or_gap_of_no_length() -> None:
    for linestyle in (BOUND["linestyle"], *DASHES):
        begin, lengths = dash(linestyle)
        assert begin == 0
        assert len(lengths) % 2 == 0
        assert all(length > 0 for length in lengths)
