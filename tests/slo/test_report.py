"""The numbers behind each figure are those that their definitions give, and the page holds them and asks nobody."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from made_up_runs import SLO, failed, made_up_trial, record, sweep
from PIL import Image

from pagewire.slo.figures.experiment import Experiment, Trial, trial
from pagewire.slo.figures.experiment_files import kind_of
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.statistics import wilson
from pagewire.slo.figures.summary import Window
from pagewire.slo.figures.ttft_parts import BEFORE
from pagewire.slo.report.attainment import attainment, curves
from pagewire.slo.report.breakdown import STACK, breakdown, stacks
from pagewire.slo.report.distributions import STEPS, cdf, distributions
from pagewire.slo.report.figure import extremes, percent
from pagewire.slo.report.ratios import ratio_cells, ratios
from pagewire.slo.report.report import report
from pagewire.slo.report.shown import looked_into, shown
from pagewire.slo.report.style import DASHES, HATCHES, MARKERS, SERIES
from pagewire.slo.report.trade_off import Spot, front, spots_by_rate, trade_off
from pagewire.slo.report.worst import moments_s, worst, worst_requests
from pagewire.slo.sweeps.goodput import TARGETS, goodput, rate_points

VOID = {"meta", "link", "br", "hr", "img", "input"}


@pytest.fixture(scope="module")
def swept() -> Experiment:
    return sweep((1, 2, 4, 8))


def alone(each: Trial) -> Experiment:
    return Experiment(title="One", trials=(each,))


# ------------------------------------------------------------------------------------------------------ attainment


def test_the_points_of_the_curve_are_the_good_records_by_wilson(swept: Experiment) -> None:
    slo, seen = parse_objectives(SLO), attainment(swept)
    assert seen is not None
    expected = []
    for series in swept.series():
        for each in series.trials:
            due = [one for one in each.records if each.summary.window.holds(one.intended_s)]
            good = sum(slo.is_good(one) for one in due)
            told = wilson(good, len(due))
            shares = (percent(good / len(due)), percent(told.low), percent(told.high))
            expected.append((series.name, f"{each.rate_per_s:g}", good, len(due), *shares))
    assert [tuple(row) for row in seen.rows] == expected
    for series, points in curves(swept):
        assert f"{series.name} {goodput(points, TARGETS[0])}" in seen.says


def test_one_rate_makes_no_curve() -> None:
    assert attainment(alone(made_up_trial(2, 5.0))) is None


# --------------------------------------------------------------------------------------------------- distributions


@pytest.mark.parametrize("measure", ["ttft", "tpot"])
def test_a_cdf_at_the_bound_is_the_attainment_of_that_objective(swept: Experiment, measure: str) -> None:
    for each in swept.trials:
        bound_ms = 1e3 * each.summary.objectives.bounds_s[measure]
        within = [share for value, share in cdf(each, measure) if value <= bound_ms]
        assert within[-1] == pytest.approx(each.summary.attained[measure].share)


def test_what_failed_never_comes_and_one_token_has_no_tpot() -> None:
    records = [record(0, 1.0, 0.2, (0.1,)), record(1, 2.0, 0.1, ()), failed(2, 3.0), record(3, 4.0, 0.3, (0.3, 0.1))]
    made = trial(records, Window(from_s=0, until_s=9), parse_objectives(SLO), labels={})
    assert cdf(made, "ttft") == [
        (0, 0),
        (pytest.approx(100), 0.25),
        (pytest.approx(200), 0.5),
        (pytest.approx(300), 0.75),
    ]
    assert cdf(made, "tpot") == [(0, 0.25), (pytest.approx(100), 0.5), (pytest.approx(200), 0.75)]


def test_a_long_cdf_keeps_its_ends_and_lies_on_the_whole_one() -> None:
    made = made_up_trial(5, 9.0, count=3000)
    curve, values = cdf(made, "ttft"), sorted(1e3 * (each.ttft_s or 0) for each in made.counted if each.is_answered)
    assert len(curve) == STEPS + 1
    assert (curve[1][0], curve[-1]) == (values[0], (values[-1], len(values) / len(made.counted)))
    for value, share in curve[1:]:
        assert share == pytest.approx(np.searchsorted(values, value, side="right") / len(made.counted))


def test_without_an_answer_there_is_no_cdf() -> None:
    lost = trial([failed(0, 1.0)], Window(from_s=0, until_s=2), parse_objectives(SLO), labels={})
    assert distributions(alone(lost), [lost]) is None
    assert worst_requests(lost, "lost") is None


# ----------------------------------------------------------------------------------------------- trade-off, ratios


def test_the_front_holds_what_no_other_beats() -> None:
    draw = np.random.default_rng(3)
    spots = [
        Spot(series=str(k), rate_per_s=1, ttft_ms=float(x), tpot_ms=float(y))
        for k, (x, y) in enumerate(draw.integers(0, 12, (60, 2)))
    ]
    kept = front(spots)
    assert [spot.ttft_ms for spot in kept] == sorted(spot.ttft_ms for spot in kept)
    for spot in spots:
        beaten = any(
            (other.ttft_ms <= spot.ttft_ms and other.tpot_ms < spot.tpot_ms)
            or (other.ttft_ms < spot.ttft_ms and other.tpot_ms <= spot.tpot_ms)
            for other in spots
        )
        assert (spot in kept) != beaten


def test_runs_are_held_against_those_of_their_rate_alone(swept: Experiment) -> None:
    found = spots_by_rate(swept)
    assert list(found) == [1, 2, 4, 8]
    for rate, spots in found.items():
        assert {spot.rate_per_s for spot in spots} == {rate}
        assert any(spot.is_front for spot in spots)
    measured = {each.summary.measures["ttft"].p95 for each in swept.trials}  # type: ignore[union-attr]
    assert {spot.ttft_ms for spots in found.values() for spot in spots} == measured
    assert trade_off(Experiment(title="t", trials=swept.trials[:4])) is None  # one series


def test_each_cell_of_the_map_is_the_goodput_of_its_best_series(swept: Experiment) -> None:
    again = [made_up_trial(rate, 40.0, seed=rate, prefill=1, decode=1, chunk_size=512) for rate in (1, 8)]
    cells = ratio_cells(Experiment(title="t", trials=(*swept.trials, *again)))
    assert set(cells) == {(1, 1), (1, 2), (2, 1), (2, 2)}  # no colocated one
    assert cells[1, 1][1].labels["chunk_size"] == 512
    for (prefill, decode), (told, _) in list(cells.items())[1:]:
        trials = [
            each
            for each in swept.trials
            if (each.labels.get("prefill"), each.labels.get("decode")) == (prefill, decode)
        ]
        assert told == goodput(rate_points(trials), 0.9)
    assert ratios(Experiment(title="t", trials=swept.trials[:4])) is None  # one composition


# ------------------------------------------------------------------------------------------------ breakdown, worst


def test_the_parts_up_to_the_first_token_add_up_to_ttft(swept: Experiment) -> None:
    made = swept.trials[2]
    everyone, slowest = stacks("x", made)
    told = [each for each in made.counted if each.is_answered]
    assert everyone.count == len(told)
    assert everyone.ttft_ms == pytest.approx(1e3 * np.mean([each.ttft_s for each in told]))  # type: ignore[arg-type]
    for part in BEFORE:
        assert everyone.parts_ms[part] == pytest.approx(
            1e3 * np.mean([(each.ttft_parts_s or {})[part] for each in told])
        )
    for one in (everyone, slowest):
        assert sum(one.parts_ms[part] for part in STACK) == pytest.approx(one.ttft_ms)
        assert one.parts_ms["elsewhere"] >= 0
    assert slowest.count == 10  # of 199 or so
    assert slowest.ttft_ms > everyone.ttft_ms


def test_without_timelines_nothing_is_broken_down() -> None:
    made = made_up_trial(2, 5.0, parts=False)
    assert breakdown(alone(made), [made]) is None


def test_the_worst_are_furthest_from_the_objective_they_missed_most() -> None:
    records = [record(0, 0.0, 0.4, (0.03,)), record(1, 1.0, 0.1, (0.2,)), record(2, 2.0, 1.0, (0.05,)), failed(3, 3.0)]
    made = trial(records, Window(from_s=0, until_s=9), parse_objectives(SLO), labels={})
    assert [(each.record.arrival, each.measure) for each in worst(made)] == [(1, "tpot"), (2, "ttft"), (0, "ttft")]
    assert [each.factor for each in worst(made)] == pytest.approx([4.0, 2.0, 0.8])
    assert len(worst(made, most=2)) == 2
    unbounded = trial(records, Window(from_s=0, until_s=9), parse_objectives(""), labels={})
    assert [each.record.arrival for each in worst(unbounded)] == [2, 0, 1]


def test_the_moments_of_an_answer_end_with_it() -> None:
    one = record(0, 5.0, 0.4, (0.1, 0.3))
    assert moments_s(one) == pytest.approx([0.4, 0.5, 0.8])
    assert moments_s(failed(0, 1.0)) == []


# ----------------------------------------------------------------------------------------------------- what is shown


def test_of_many_runs_one_of_each_series_at_a_rate_they_share(swept: Experiment) -> None:
    found = shown(swept)
    assert [each.rate_per_s for each in found] == [8] * 5
    assert len({each.variant for each in found}) == 5
    one_series = Experiment(title="t", trials=tuple(made_up_trial(rate, 9.0, count=30) for rate in range(1, 12)))
    assert [each.rate_per_s for each in shown(one_series)] == [1, 3, 5, 7, 9, 11]
    assert looked_into(swept) == [min(swept.trials, key=lambda each: each.summary.all_attained.share)]


def test_runs_that_differ_in_nothing_have_names_of_their_own() -> None:
    repeated = Experiment(title="t", trials=tuple(made_up_trial(rate, 9.0, count=30) for rate in (1, 2, 2)))
    assert [repeated.name_of(each) for each in repeated.trials] == ["1/s", "2/s, run 1", "2/s, run 2"]


def test_of_many_values_the_ends_are_said() -> None:
    assert extremes({"a": 0.5, "b": 0.25}, percent) == "a 50.0 %, b 25.0 %"
    assert extremes({"a": 0.5, "b": 0.25, "c": 1.0, "d": 0.3}, percent) == "from 25.0 % (b) to 100.0 % (c)"


def test_no_two_lines_look_alike_without_colour() -> None:
    assert len(SERIES) == len({*MARKERS}) == len({*map(str, DASHES)})
    assert len({*HATCHES}) == len(HATCHES)


# ------------------------------------------------------------------------------------------------------ verdict


def said(*trials: Trial) -> str:
    return " ".join(report(Experiment(title="t", trials=trials)).verdict)


def test_a_target_within_the_interval_cannot_be_told() -> None:
    quick = [record(k, k, 0.1, (0.01,)) for k in range(100)]
    for late, verdict in ((0, "95 % is met"), (7, "95 % is not to be told"), (40, "90 % is missed")):
        records = [
            dataclasses.replace(each, first_s=each.intended_s + 9) if each.arrival < late else each for each in quick
        ]
        made = trial(records, Window(from_s=0, until_s=100), parse_objectives("ttft=500ms"), labels={})
        assert verdict in said(made)


def test_without_objectives_it_says_so() -> None:
    assert said(made_up_trial(2, 5.0, slo="")).startswith("No objective was set")


def test_two_runs_that_do_not_differ() -> None:
    one = made_up_trial(2, 9.0, name="before")
    assert "No difference between before and after can be told." in said(one, dataclasses.replace(one, name="after"))


def test_runs_that_differ_in_what_was_cached_are_told_to() -> None:
    """The second of two runs of one seed finds the prompts of the first where the server keeps them."""

    def cached(name: str, tokens: int | None, refused: int = 0) -> Trial:
        records = [failed(k, k) for k in range(refused)]
        records += [record(k, k, 0.1, (0.01,), cached_tokens=tokens) for k in range(refused, 100)]
        window = Window(from_s=0, until_s=100)
        return trial(records, window, parse_objectives("ttft=1s"), labels={}, name=name)

    told = "had 0.0 % of first's prompt tokens in its prefix cache and 75.0 % of again's: that alone may be why"
    assert told in said(cached("first", 0), cached("again", 48))
    assert "prefix cache" not in said(cached("first", 0), cached("again", 6))
    assert "prefix cache" not in said(cached("first", None), cached("again", 48))
    assert "prefix cache" not in said(cached("first", 48), cached("again", 48, refused=50))


@pytest.mark.parametrize(
    ("apart", "together", "verdict"),
    [
        (16.0, 9.0, "Disaggregation wins here, "),
        (9.0, 16.0, "Disaggregation loses here, 0."),
        (12.0, 12.0, "No difference between disaggregated and colocated can be told"),
        (90.0, 10.0, "Disaggregation wins here: "),  # which never fell: no factor is known
        (10.0, 90.0, "Disaggregation loses here: "),
        (90.0, 90.0, "Whether disaggregation wins cannot be told from these rates"),
    ],
)
def test_disaggregated_against_colocated(apart: float, together: float, verdict: str) -> None:
    rates = (0.3, 0.6, 1, 2, 3, 4, 6, 8, 10, 12)
    systems: list[tuple[dict[str, Any], float]] = [({"prefill": 1, "decode": 1}, apart), ({"colocated": 2}, together)]
    trials = [
        made_up_trial(rate, capacity, count=600, seed=place, parts=False, **labels)
        for labels, capacity in systems
        for place, rate in enumerate(rates)
    ]
    assert verdict in said(*trials)


def test_a_closed_loops_own_throughput_is_no_rate_that_it_was_asked() -> None:
    """What closed loops carry falls as it is told to be good, so their runs beside each other look like a curve."""

    def asked(prefill: int, **workload: int) -> list[Trial]:
        made = [made_up_trial(rate, 6.0, seed=rate, parts=False, prefill=prefill, decode=1) for rate in (1, 4, 8)]
        return [dataclasses.replace(each, workload=kind_of(workload)) for each in made]

    loops = Experiment(title="t", trials=(*asked(1, concurrency=8), *asked(2, concurrency=8)))
    assert (attainment(loops), ratios(loops), trade_off(loops), curves(loops)) == (None, None, None, [])
    assert said(*loops.trials).startswith(
        "No goodput is told of closed loops, which are asked at no rate: 6 of 6 runs."
    )
    assert "carries" not in said(*loops.trials)
    mixed = Experiment(title="t", trials=(*loops.trials, *asked(1, rate=4)))
    assert [series.name for series, _ in curves(mixed)] == ["1P:1D, loop open"]
    assert "6 of 9 runs." in said(*mixed.trials)
    assert "1P:1D, loop open carries" in said(*mixed.trials)
    assert "closed loops" not in said(*asked(1, rate=4))


def test_only_runs_that_are_there_are_compared(swept: Experiment) -> None:
    names = swept.name_of(swept.trials[0]), swept.name_of(swept.trials[4])
    assert report(swept, compared=names).figures[0].slug == "differences"
    with pytest.raises(ValueError, match="'none' is no run"):
        report(swept, compared=(names[0], "none"))


def test_what_was_asked_other_things_is_held_against_none() -> None:
    """A colocated cluster at short prompts and one apart at long ones say nothing of each other."""
    rates = (1, 2, 4, 8, 12)

    def asked(prompt: str, capacity: float, slo: str = SLO, **labels: Any) -> list[Trial]:
        made = [made_up_trial(rate, capacity, seed=rate, parts=False, slo=slo, **labels) for rate in rates]
        workloads = [{"rate": rate, "input": prompt} for rate in rates]
        return [
            dataclasses.replace(each, workload=kind_of(workload))
            for each, workload in zip(made, workloads, strict=True)
        ]

    short, long = asked("64", 9.0, colocated=2), asked("2048", 16.0, prefill=1, decode=1)
    told = said(*short, *long)
    assert "not all asked the same: input 64; input 2048." in told
    assert "Disaggregation" not in told
    assert "2 colocated, input 64 carries" in told
    mixed = Experiment(title="t", trials=(*short, *long))
    assert trade_off(mixed) is None
    # Beside its like it is held against that one alone, and what is drawn says of which runs it is.
    apart = asked("64", 16.0, prefill=1, decode=1)
    assert "Disaggregation wins here" in said(*short, *long, *apart)
    drawn = trade_off(Experiment(title="t", trials=(*short, *long, *apart)))
    assert drawn is not None
    assert drawn.notes[-1] == "Of these runs alone: input 64."
    # The same workload under another SLO is another question as well.
    strict = asked("64", 16.0, "ttft=50ms", prefill=1, decode=1)
    assert "Disaggregation" not in said(*short, *strict)
    assert "slo ttft=50ms" in said(*short, *strict)


# --------------------------------------------------------------------------------------------------------- the page


class Reader(HTMLParser):
    """Reads a page strictly: every element ends where it should; keeps texts, ids and what is referred to."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.ids: list[str] = []
        self.refers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "srcset", "data", "action") or name.endswith(":href"):
                self.refers.append(value or "")
            self.refers += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def html(swept: Experiment) -> str:
    return report(swept).html()


def test_the_page_names_nothing_outside_itself(html: str) -> None:
    reader = read(html)
    assert len(reader.ids) == len({*reader.ids})
    assert [ref for ref in reader.refers if not ref.startswith("#")] == []
    assert {ref.removeprefix("#") for ref in reader.refers} <= {*reader.ids}
    assert not re.search(r"https?:|//\w|@import|<script|<link", html)


def test_the_page_holds_every_number_behind_its_figures(swept: Experiment, html: str) -> None:
    texts = {*read(html).texts}
    made = report(swept)
    assert [figure.slug for figure in made.figures] == [
        "attainment", "ratios", "trade-off", "distributions", "breakdown", "worst",
    ]  # fmt: skip
    for figure in made.figures:
        assert {figure.title, figure.says, figure.definition, *figure.columns} <= texts
        assert {str(cell) for row in figure.rows for cell in row if cell not in ("", None)} <= texts
    assert {*made.verdict, "pagewire slo sweep", "pagewire slo run --rate 2", "cpu none, cores 2"} <= texts


def test_the_page_says_by_what_time_good_requests_are_told_per_second() -> None:
    """A window of 10 s whose last answer came 20 s into the run: 10 good ones of two tokens are 0.5 a second, not 1."""
    records = [record(k, k, 0.5 if k < 9 else 10.0, (1.0,)) for k in range(10)]
    window, slo = Window(from_s=0, until_s=10), parse_objectives("ttft=1m")
    texts = read(report(alone(trial(records, window, slo, labels={}))).html()).texts
    columns = texts[texts.index("Every run") + 1 :]
    row = columns[columns.index("tokens out /s") + 1 :]
    told = dict(zip(columns, row, strict=False))
    assert (told["rate /s"], told["window s"], told["good /s"]) == ("1", "0 to 10", "0.5")
    assert told["tokens out /s"] == "1.0"
    (words,) = (each for each in texts if "per second" in each and each.startswith("Objectives"))
    assert "until it was over and the last of its requests as well" in words
    assert "length of the window" not in words


def test_what_a_run_said_is_text_and_no_markup() -> None:
    odd = "<b>&\"' $x_1$"
    made = made_up_trial(2, 5.0, name=odd)
    text = report(Experiment(title=odd, trials=(made,), about={"command": odd})).html()
    assert "<b>" not in text
    assert read(text).texts.count(odd) >= 3


def test_pictures_take_their_colours_from_the_page(html: str) -> None:
    drawn = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawn) == 6
    named = {*re.findall(r"var\((--c-\w+)\)", html)}
    for name in named:
        assert html.count(f"{name}:") == 2  # by day and by night
    for picture in drawn:
        assert set(re.findall(r"#[0-9a-f]{6}\b", picture)) <= {"#000000"}
        assert 'role="img"' in picture
        assert "<title" in picture


def test_a_page_is_the_same_each_time(swept: Experiment, html: str) -> None:
    assert report(swept).html() == html


def test_figures_are_written_as_files(tmp_path: Path) -> None:
    made = report(alone(made_up_trial(2, 5.0)))
    written = made.write_figures(tmp_path / "figures")
    assert sorted(path.name for path in written) == sorted(
        f"{slug}.{kind}" for slug in ("distributions", "breakdown", "worst") for kind in ("png", "svg")
    )
    for path in written:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            with Image.open(path) as picture:
                assert picture.width == 1120
