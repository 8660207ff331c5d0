"""What a sweep found, as JSON and as a table."""

from __future__ import annotations

from pagewire.slo.figures.summary import Attainment
from pagewire.slo.sweeps.configuration import PODS, Configuration
from pagewire.slo.sweeps.finding import Finding, Probe, table

ALL, NONE = Attainment(good=1000, total=1000), Attainment(good=0, total=1000)
CARRIES = Finding(
    configuration=Configuration(settings={PODS: "1P:2D"}),
    probes=(
        Probe(rate=10.5, repeat=0, attained=ALL, folder="a"),
        Probe(rate=12.0, repeat=1, attained=NONE, folder="b"),
    ),
)
BROKE = Finding(configuration=Configuration(settings={PODS: "2 colocated"}), probes=(), error="no memory\nTraceback")


def test_a_table_has_a_row_for_each_and_says_below_it_what_failed() -> None:
    assert list(table([CARRIES, BROKE], [0.9, 0.999])) == [
        "             90%                 0.999",
        "1P:2D        10.5/s              unresolved: 0 to 12/s",
        "2 colocated  nothing was probed  nothing was probed",
        "2 colocated failed: no memory",
    ]


def test_a_target_that_is_a_whole_percentage_is_told_as_one() -> None:
    (heads, row) = table([CARRIES], [0.95, 0.5, 0.995])
    assert heads.split() == ["95%", "50%", "0.995"]
    assert row.startswith("1P:2D  10.5/s")


def test_as_json_it_holds_its_settings_its_rates_and_each_probe() -> None:
    told = CARRIES.as_json([0.9])
    assert (told["name"], told["settings"], told["error"]) == ("1P:2D", {PODS: "1P:2D"}, "")
    (rate,) = told["rates"]
    assert (rate["target"], rate["met"], rate["missed"], rate["told"]) == (0.9, 10.5, 12.0, "10.5/s")
    assert [(each["rate"], each["repeat"], each["folder"]) for each in told["probes"]] == [
        (10.5, 0, "a"),
        (12.0, 1, "b"),
    ]
    assert [each["good"] for each in told["probes"]] == [1000, 0]
