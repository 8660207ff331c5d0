"""From records to figures: what is good, what counts, and that nothing that failed is left out."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from pagewire.slo.figures.objectives import parse_objectives, parse_seconds
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.statistics import wilson
from pagewire.slo.figures.summary import Window
from pagewire.slo.figures.tally import Tally, summarize


def answered(
    due_s: float, *, ttft_s: float = 0.1, gap_s: float = 0.01, tokens: int = 11, sent_s: float | None = None
) -> Record:
    first_s = due_s + ttft_s
    return Record(
        arrival=0, turn=0, intended_s=due_s, sent_s=due_s if sent_s is None else sent_s, first_s=first_s,
        last_s=first_s + gap_s * (tokens - 1), gaps_s=(gap_s,) * (tokens - 1), input_tokens=64, output_tokens=tokens,
        wanted_tokens=11,
    )  # fmt: skip


def failed(due_s: float, error: str = "http_500") -> Record:
    return Record(
        arrival=0, turn=0, intended_s=due_s, sent_s=due_s, first_s=None, last_s=None, gaps_s=(), input_tokens=64,
        output_tokens=0, wanted_tokens=11, error=error,
    )  # fmt: skip


def test_the_measures_of_an_answer() -> None:
    record = answered(5.0, ttft_s=0.4, gap_s=0.02, tokens=5, sent_s=5.3)
    assert record.late_s == pytest.approx(0.3)
    assert record.ttft_s == pytest.approx(0.4)  # from when it was due, not from when it was sent
    assert record.e2e_s == pytest.approx(0.48)
    assert record.tpot_s == pytest.approx(0.02)


def test_one_token_has_no_tpot_and_meets_any() -> None:
    record = answered(0.0, tokens=1)
    assert record.tpot_s is None
    assert parse_objectives("tpot=1ms").is_good(record)


def test_a_request_is_good_when_it_meets_all() -> None:
    slo = parse_objectives("ttft=150ms,tpot=20ms")
    assert slo.is_good(answered(0.0))
    assert not slo.is_good(answered(0.0, ttft_s=0.2))
    assert not slo.is_good(answered(0.0, gap_s=0.03))
    assert not slo.is_good(failed(0.0))
    assert slo.meets(failed(0.0), "ttft") is False


def test_failed_requests_count_as_not_good() -> None:
    told = summarize(
        [answered(1.0), answered(2.0, ttft_s=9.0), failed(3.0), failed(4.0, "timeout")],
        Window(from_s=0, until_s=20),
        parse_objectives("ttft=1s,tpot=1s"),
    )
    assert (told.all_attained.good, told.all_attained.total) == (1, 4)
    assert told.attained["tpot"].good == 2
    assert told.goodput_per_s == pytest.approx(0.05)
    assert told.failures == {"http_500": 1, "timeout": 1}
    assert told.measures["ttft"] is not None
    assert told.measures["ttft"].count == 2


def test_no_more_is_told_to_be_served_than_a_server_can() -> None:
    """One that makes 10 tokens a second, and is asked for 100 within 2 s, is told by what it made, not by the 2 s."""
    records = [answered(0.02 * k, ttft_s=k + 1 - 0.02 * k - 1e-9, gap_s=0.0, tokens=10) for k in range(100)]
    for window in (Window(from_s=0, until_s=2.0), Window(from_s=0, until_s=1.0)):
        told = summarize(records, window, parse_objectives("e2e=60m"))
        assert told.offered_per_s == pytest.approx(50)
        assert told.goodput_per_s == pytest.approx(1)
        assert told.output_tokens_per_s == pytest.approx(10)
    whole = summarize(records, Window(from_s=0, until_s=200.0), parse_objectives("e2e=60m"))
    assert (whole.goodput_per_s, whole.ended_s) == (0.5, 200.0)


def test_without_objectives_an_answer_is_good() -> None:
    told = summarize([answered(1.0), failed(2.0)], Window(from_s=0, until_s=10), parse_objectives(""))
    assert (told.all_attained.good, told.all_attained.total) == (1, 2)


def test_only_what_was_due_in_the_window_counts() -> None:
    records = [answered(0.5), answered(1.0), answered(2.9, ttft_s=60.0), answered(3.0)]
    told = summarize(records, Window(from_s=1.0, until_s=3.0), parse_objectives(""))
    assert told.requests == 2
    assert told.offered_per_s == 1.0
    assert told.measures["ttft"] is not None
    assert told.measures["ttft"].max == pytest.approx(60_000)


def test_an_answer_that_stopped_early_is_counted_as_short() -> None:
    told = summarize([answered(1.0, tokens=3), answered(1.0)], Window(from_s=0, until_s=10), parse_objectives(""))
    assert told.short == 1


def test_no_request_in_the_window_is_an_error() -> None:
    with pytest.raises(ValueError, match="no request was due"):
        summarize([answered(5.0)], Window(from_s=0, until_s=5.0), parse_objectives(""))
    with pytest.raises(ValueError, match="is empty"):
        Window(from_s=5, until_s=5)


def test_objectives_read_and_write_themselves() -> None:
    slo = parse_objectives("ttft=500ms, tpot=0.05s ,e2e=1m")
    assert slo.bounds_s == {"ttft": 0.5, "tpot": 0.05, "e2e": 60.0}
    assert parse_objectives(str(slo)) == slo
    assert str(parse_objectives("e2e=30m,ttft=1.2345678s")) == "e2e=1800000ms,ttft=1234.5678ms"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tbt=5ms", "'tbt' is no objective"),
        ("ttft", "''"),
        ("ttft=5", "'5'"),
        ("ttft=1s,ttft=2s", "twice"),
        ("ttft=-1s", "'-1s'"),
    ],
)
def test_what_is_no_objective_is_an_error(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_objectives(text)


def test_a_bound_that_is_just_met_is_met() -> None:
    record = answered(0.0, ttft_s=0.25, gap_s=0.5, tokens=3)
    assert parse_objectives("ttft=250ms,tpot=500ms,e2e=1250ms").is_good(record)
    assert not parse_objectives("ttft=249ms").is_good(record)
    assert not parse_objectives("ttft=1s,e2e=1249ms").is_good(record)
    assert str(parse_objectives("ttft=0.1s,e2e=1s")) == "ttft=100ms,e2e=1000ms"


@pytest.mark.parametrize(
    ("changed", "figures"),
    [
        ({}, (0.5, 2.5, 0.5, 1.0)),
        ({"output_tokens": 2}, (0.5, 2.5, 2.0, 1.0)),
        ({"output_tokens": 1}, (0.5, 2.5, None, 1.0)),
        ({"error": "timeout"}, (0.5, None, None, 1.0)),  # what came of it came, and is no whole answer
        ({"first_s": None, "last_s": None}, (None, None, None, 1.0)),
        ({"last_s": None}, (0.5, None, None, 1.0)),
    ],
)
def test_each_measure_is_told_where_there_is_one(changed: dict[str, Any], figures: tuple[float | None, ...]) -> None:
    record = Record(
        arrival=0, turn=0, intended_s=4.0, sent_s=5.0, first_s=4.5, last_s=6.5, gaps_s=(), input_tokens=1,
        output_tokens=5, wanted_tokens=5,
    )  # fmt: skip
    told = dataclasses.replace(record, **changed)
    assert tuple(told.value_s(name) for name in ("ttft", "e2e", "tpot", "late")) == figures
    assert told.is_answered == ("error" not in changed and "first_s" not in changed)
    assert parse_objectives("e2e=1m,tpot=1m").is_good(told) == told.is_answered


def test_a_window_holds_its_beginning_and_not_its_end() -> None:
    window = Window(from_s=0.5, until_s=2.5)
    assert [window.holds(at_s) for at_s in (0.4, 0.5, 2.4, 2.5)] == [False, True, True, False]
    assert window.length_s == 2.0
    for from_s, until_s in ((-0.5, 1.0), (1.0, 1.0), (2.0, 1.0)):
        with pytest.raises(ValueError, match="is empty"):
            Window(from_s=from_s, until_s=until_s)


def test_a_summary_counts_tokens_gaps_and_what_was_cached_where_a_server_says() -> None:
    records = [answered(2.0, tokens=3, gap_s=0.25), answered(3.0), failed(9.5)]
    window, slo = Window(from_s=0, until_s=20), parse_objectives("ttft=1s")
    told = summarize(records, window, slo)
    assert (told.input_tokens, told.output_tokens, told.cached_tokens, told.short) == (192, 14, None, 1)
    gaps = told.measures["gap"]
    assert gaps is not None
    assert (gaps.count, gaps.max) == (12, 250)
    assert (told.offered_per_s, told.goodput_per_s, told.output_tokens_per_s) == (0.15, 0.1, 0.7)
    cached = [
        dataclasses.replace(each, cached_tokens=tokens) for each, tokens in zip(records, (16, 0, None), strict=True)
    ]
    assert summarize(cached, window, slo).cached_tokens == 16
    assert summarize(cached[1:], window, slo).cached_tokens == 0
    assert (summarize(cached, window, slo).cached_share, summarize(records, window, slo).cached_share) == (0.125, None)
    assert summarize(cached, window, slo).as_json()["cached_share"] == 0.125
    for length in (0, 1):
        short = dataclasses.replace(cached[0], input_tokens=length, cached_tokens=length)
        assert summarize([short], window, slo).cached_share == length
    assert summarize(cached[::-1], window, slo) == summarize(cached, window, slo)
    mute = dataclasses.replace(records[0], first_s=None, last_s=None, gaps_s=(), output_tokens=0)
    assert summarize([mute], window, slo).failures == {"no_tokens": 1}
    assert summarize([mute], window, slo).short == 0


def test_a_window_without_an_end_ends_behind_the_last_that_came() -> None:
    tally = Tally(0.0, math.inf, parse_objectives(""))
    for due_s in (3.0, 8.0, 5.0):
        tally.add(answered(due_s))
    window = tally.summary().window
    assert window.from_s == 0.0
    assert window.holds(8.0)
    assert window.until_s == pytest.approx(8.0)
    ended = Tally(1.0, 10.0, parse_objectives(""))
    for due_s in (0.5, 1.0, 10.0):
        ended.add(answered(due_s))
    assert (ended.summary().window, ended.summary().requests) == (Window(from_s=1.0, until_s=10.0), 1)


@pytest.mark.parametrize("is_closed", [False, True])
def test_where_all_are_due_at_once_or_as_others_are_answered_it_ends_with_the_last_answer(is_closed: bool) -> None:
    tally = Tally(0.0, math.inf, parse_objectives(""), is_closed=is_closed)
    due = (0.0, 4.0, 3.0) if is_closed else (2.0, 2.0)
    records = [answered(due_s) for due_s in due]
    for each in records:
        tally.add(each)
    window = tally.summary().window
    assert window.until_s == pytest.approx(max(each.last_s or 0.0 for each in records))
    assert window.until_s > max(due)
    alone = Tally(0.0, math.inf, parse_objectives(""), is_closed=is_closed)
    alone.add(answered(0.0))
    assert 0 < (alone.summary().goodput_per_s or 0.0) < 100
    mute = Tally(0.0, math.inf, parse_objectives(""), is_closed=is_closed)
    mute.add(dataclasses.replace(failed(1.0), sent_s=1.5))
    assert mute.summary().window.until_s == pytest.approx(1.5)


def test_a_closed_loop_is_not_over_before_its_last_request_failed() -> None:
    """Four requests of one user of which the last hung for 8 s: three good ones in 8.4 s, not in the 0.4 s before."""
    tally = Tally(0.0, math.inf, parse_objectives(""), is_closed=True)
    for due_s in (0.0, 0.125, 0.25):
        tally.add(answered(due_s, ttft_s=0.125, tokens=1))
    tally.add(dataclasses.replace(failed(0.375, "timeout"), ended_s=8.375))
    told = tally.summary()
    assert told.window.until_s == told.ended_s == pytest.approx(8.375)
    assert told.goodput_per_s == pytest.approx(3 / 8.375)
    assert told.offered_per_s == pytest.approx(4 / 8.375)


def test_what_failed_behind_an_open_window_makes_the_time_to_the_last_answer_longer() -> None:
    records = [answered(1.0), dataclasses.replace(failed(9.0), ended_s=20.0)]
    told = summarize(records, Window(from_s=0, until_s=10), parse_objectives(""))
    assert (told.ended_s, told.offered_per_s, told.goodput_per_s) == (20.0, 0.2, 0.05)


@pytest.mark.parametrize("at_s", [0.0, 1.5])
def test_a_window_of_no_length_has_no_rates(at_s: float) -> None:
    tally = Tally(at_s, math.inf, parse_objectives(""))
    tally.add(dataclasses.replace(failed(at_s), ended_s=at_s))
    told = tally.summary()
    assert told.window.holds(at_s)
    assert (told.offered_per_s, told.goodput_per_s, told.output_tokens_per_s) == (None, None, None)
    json.dumps(told.as_json(), allow_nan=False)
    # The same is answered, or fails, a while later: then time passed.
    tally.add(dataclasses.replace(failed(at_s), ended_s=at_s + 2.0))
    assert tally.summary().offered_per_s == pytest.approx(1.0)
    # A window that ended as it began, and a request that took its time.
    moment = Window(from_s=at_s, until_s=math.nextafter(at_s, math.inf))
    told = summarize([dataclasses.replace(answered(at_s), ended_s=at_s + 2.0)], moment, parse_objectives(""))
    assert (told.offered_per_s, told.goodput_per_s) == (None, 0.5)


def test_where_nothing_was_cut_off_it_ends_as_if_it_had_no_end() -> None:
    def until_s(*records: Record, is_closed: bool = False) -> float:
        tally = Tally(0.0, 60.0, parse_objectives(""), is_closed=is_closed)
        for each in records:
            tally.add(each)
        assert tally.summary().window.until_s == 60.0
        return tally.summary(is_cut=False).window.until_s

    first, last = answered(0.2), answered(0.4)
    assert until_s(first, last) == math.nextafter(0.4, math.inf)
    assert until_s(first, last, is_closed=True) == pytest.approx(last.last_s)
    assert until_s(first) == pytest.approx(first.last_s)
    assert until_s(dataclasses.replace(failed(0.1), sent_s=0.2)) == pytest.approx(0.2)


def test_as_json_a_summary_has_every_figure() -> None:
    told = summarize(
        [answered(1.0, ttft_s=0.5), answered(2.0, ttft_s=2.0), failed(3.0)], Window(from_s=0, until_s=10),
        parse_objectives("ttft=1500ms"),
    ).as_json()  # fmt: skip
    assert (told["window"], told["ended_s"]) == ({"from_s": 0, "until_s": 10}, 10)
    assert told["slo_ms"] == {"ttft": 1500.0}
    counts = {name: told[name] for name in ("requests", "failed", "failures", "short_answers", "input_tokens")}
    assert counts == {
        "requests": 3, "failed": 1, "failures": {"http_500": 1}, "short_answers": 0, "input_tokens": 192,
    }  # fmt: skip
    assert (told["offered_per_s"], told["goodput_per_s"], told["output_tokens_per_s"]) == (0.3, 0.1, 2.2)
    sure = wilson(1, 3)
    share = {"good": 1, "total": 3, "share": 1 / 3, "low": sure.low, "high": sure.high, "confidence": 0.95}
    assert told["attainment"] == share
    assert told["attainment_by_objective"] == {"ttft": share}
    assert told["ttft_ms"]["max"] == pytest.approx(2000)
    assert told["gap_ms"]["count"] == 20
    alone = summarize([failed(3.0)], Window(from_s=0, until_s=10), parse_objectives("")).as_json()
    assert (alone["ttft_ms"], alone["cached_tokens"], alone["output_tokens"]) == (None, None, 0)


def test_spans() -> None:
    assert [parse_seconds(text) for text in ("500ms", "1.5s", "2m", "20us")] == [0.5, 1.5, 120.0, pytest.approx(2e-5)]
