"""From records to figures: what is good, what counts, and that nothing that failed is left out."""

from __future__ import annotations

import pytest

from pagewire.slo.objectives import parse_objectives, parse_seconds
from pagewire.slo.record import Record
from pagewire.slo.summary import Window
from pagewire.slo.tally import summarize


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
    assert slo.scaled(2.0).is_good(answered(0.0, ttft_s=0.2, gap_s=0.03))


def test_failed_requests_count_as_not_good() -> None:
    told = summarize(
        [answered(1.0), answered(2.0, ttft_s=9.0), failed(3.0), failed(4.0, "timeout")],
        Window(from_s=0, until_s=10),
        parse_objectives("ttft=1s,tpot=1s"),
    )
    assert (told.all_attained.good, told.all_attained.total) == (1, 4)
    assert told.attained["tpot"].good == 2
    assert told.goodput_per_s == pytest.approx(0.1)
    assert told.failures == {"http_500": 1, "timeout": 1}
    assert told.measures["ttft"] is not None
    assert told.measures["ttft"].count == 2


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


def test_spans() -> None:
    assert [parse_seconds(text) for text in ("500ms", "1.5s", "2m", "20us")] == [0.5, 1.5, 120.0, pytest.approx(2e-5)]
