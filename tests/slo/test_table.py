"""A run's figures as people read them."""

from __future__ import annotations

import dataclasses
import math

from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.statistics import distribution_ms
from pagewire.slo.figures.summary import Attainment, Summary, Window
from pagewire.slo.figures.table import failures, table

TOLD = Summary(
    window=Window(from_s=5, until_s=25),
    ended_s=27,
    objectives=parse_objectives("ttft=1.5s,tpot=20ms"),
    requests=10,
    failures={"timeout": 2, "http_500": 1},
    measures={
        "ttft": distribution_ms([0.1, 0.2, 0.3]), "tpot": distribution_ms([0.01]), "gap": None,
        "e2e": distribution_ms([1.0]), "late": distribution_ms([0.0005]),
    },
    attained={"ttft": Attainment(good=9, total=10), "tpot": Attainment(good=8, total=10)},
    all_attained=Attainment(good=7, total=10),
    input_tokens=640,
    looked_up_tokens=640,
    cached_tokens=160,
    output_tokens=110,
    short=0,
)  # fmt: skip


def test_a_table_has_a_row_for_what_was_measured_what_was_met_and_how_much_was_done() -> None:
    assert list(table(TOLD)) == [
        "ms                      mean       p50       p90       p95       p99       max    count",
        "TTFT                   200.0     200.0     280.0     290.0     298.0     300.0        3",
        "TPOT                    10.0      10.0      10.0      10.0      10.0      10.0        1",
        "end to end            1000.0    1000.0    1000.0    1000.0    1000.0    1000.0        1",
        "sent late by             0.5       0.5       0.5       0.5       0.5       0.5        1",
        "",
        "TTFT <= 1500 ms       90.0%  (95% sure: 59.6% to 98.2%; 9 of 10)",
        "TPOT <= 20 ms         80.0%  (95% sure: 49.0% to 94.3%; 8 of 10)",
        "all met               70.0%  (95% sure: 39.7% to 89.2%; 7 of 10)",
        "goodput               0.318 requests/s of 0.5 that came",
        "requests              10 in 20.0 s, answered in 22.0 s, 3 failed",
        "output                110 tokens, 5.0/s",
        "input                 640 tokens, 25.0% cached",
    ]


def test_what_was_not_asked_or_is_not_known_is_left_out() -> None:
    bare = dataclasses.replace(TOLD, objectives=parse_objectives(""), attained={}, cached_tokens=None)
    lines = list(table(bare))
    assert [line.split("  ")[0] for line in lines[5:]] == ["", "answered", "goodput", "requests", "output", "input"]
    assert lines[-1] == "input                 640 tokens"


def test_where_there_is_no_rate_the_table_says_none() -> None:
    moment = Window(from_s=0, until_s=math.nextafter(0, 1))
    lines = list(table(dataclasses.replace(TOLD, window=moment, ended_s=moment.until_s)))
    assert lines[-4:-1] == [
        "goodput               - requests/s of - that came",
        "requests              10 in 0.0 s, answered in 0.0 s, 3 failed",
        "output                110 tokens, -/s",
    ]


def test_each_cause_of_failures_has_a_line_with_what_was_said_of_one() -> None:
    assert list(failures(TOLD, {"timeout": "nothing came for 5 s"})) == [
        "2 requests failed: timeout: nothing came for 5 s",
        "1 requests failed: http_500",
    ]
