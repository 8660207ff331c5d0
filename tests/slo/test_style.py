"""Every line of a picture is told from the others without its colour, by day and by night."""

from __future__ import annotations

from matplotlib.lines import Line2D

from pagewire.slo.report.style import BOUND, DARK, GRID, INK, MISSED, SERIES, SOFT, line


def dash(linestyle: object) -> str:
    """Return how matplotlib draws it: where it begins, and how long ink and gaps are."""
    return str(vars(Line2D([], [], linestyle=linestyle))["_unscaled_dash_pattern"])  # type: ignore[arg-type]


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
