"""Settings to workloads: the format is found, times are as asked, what contradicts itself is refused by name."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pagewire.core.config import ConfigError, load
from pagewire.slo.workloads.samples import FILES, sample
from pagewire.slo.workloads.workload import Workload
from pagewire.slo.workloads.workload_config import WorkloadConfig
from pagewire.slo.workloads.workload_source import rate_of, workload_of


def workload(**told: Any) -> Workload:
    return workload_of(load(WorkloadConfig, environ={}, flags=told).value)


def rate(of: Workload) -> float:
    times = [arrival.at_s for arrival in of]
    return (len(times) - 1) / (times[-1] - times[0])


def test_made_up_by_default() -> None:
    arrivals = [*workload()]
    assert len(arrivals) == 100
    assert {arrival.turns[0].input_tokens for arrival in arrivals} == {512}
    assert arrivals == [*workload()]
    assert arrivals != [*workload(seed="1")]


@pytest.mark.parametrize("name", FILES)
def test_the_format_is_found(name: str, tmp_path: Path) -> None:
    copy = tmp_path / sample(name).name
    copy.write_bytes(sample(name).read_bytes())
    found, named = [*workload(trace=str(copy))], [*workload(trace=f"sample:{name}", trace_format=name)]
    assert found == named
    assert len(found) > 30


def test_an_unknown_ending_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="say its format"):
        workload(trace=str(tmp_path / "trace.txt"))
    with pytest.raises(OSError, match=r"none\.jsonl"):
        workload(trace=str(tmp_path / "none.jsonl"))


def test_a_malformed_recording_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 1, timestamp: missing"):
        workload(trace=str(tmp_path / "bad.jsonl"))
    texts = {"trace": "sample:sharegpt", "length_scale": "2", "duration_s": "5"}  # found out as it is gone through
    with pytest.raises(ConfigError, match="not made longer"):
        workload(**texts)


def test_times_are_as_asked() -> None:
    recorded = workload(trace="sample:mooncake")
    assert rate(workload(trace="sample:mooncake", rate="20")) == pytest.approx(20.0, rel=0.01)
    constant = [each.at_s for each in workload(trace="sample:mooncake", rate="20", arrivals="constant")]
    assert constant[:3] == [0.0, 0.05, 0.1]
    assert [each.turns for each in workload(trace="sample:mooncake", arrivals="gamma")] == [
        each.turns for each in recorded
    ]
    # Conversations have no times: they get those of a process.
    assert rate(workload(trace="sample:sharegpt", rate="5")) == pytest.approx(5.0, rel=0.5)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, 1.0),
        ({"rate": "3"}, 3.0),
        ({"concurrency": "2"}, 0.0),
        ({"trace": "sample:azure"}, 0.0),
        ({"trace": "sample:azure", "rate": "3"}, 3.0),
        ({"trace": "sample:azure", "arrivals": "constant"}, 1.0),
        ({"trace": "sample:sharegpt"}, 1.0),
        ({"trace": "sample:sharegpt", "concurrency": "2"}, 0.0),
    ],
)
def test_the_rate_is_told_where_none_was_said(told: dict[str, str], expected: float) -> None:
    assert rate_of(load(WorkloadConfig, environ={}, flags=told).value) == expected


def test_how_much_is_as_asked() -> None:
    assert len([*workload(requests="7")]) == 7
    assert len([*workload(trace="sample:azure", requests="7")]) == 7
    brief = [*workload(trace="sample:azure", duration_s="10")]
    assert 0 < len(brief) < 100
    assert brief[-1].at_s < 10
    assert max(each.at_s for each in workload(duration_s="50", rate="10")) > 45


def test_lengths_are_scaled() -> None:
    small, whole = workload(trace="sample:mooncake", length_scale="0.125"), workload(trace="sample:mooncake")
    assert small.piece_tokens == 64
    for new, old in zip(small, whole, strict=True):
        assert new.turns[0].pieces == old.turns[0].pieces
        assert new.turns[0].input_tokens == pytest.approx(old.turns[0].input_tokens / 8, abs=1)


def test_a_closed_loop() -> None:
    loop = workload(concurrency="4", duration_s="10")
    assert loop.concurrency == 4
    assert len([*islice(loop, 1000)]) == 1000  # its time ends it, not its number


def test_shapes_are_as_asked() -> None:
    told = {
        "input": "160",
        "prefix_share": "0.5",
        "prefix_branches": "2",
        "turns": "2",
        "later_input": "8",
        "output": "3-5",
    }
    arrivals = [*workload(**told)]
    assert {len(each.turns) for each in arrivals} == {2}
    assert {each.turns[1].input_tokens for each in arrivals} == {8}
    assert {each.turns[0].output_tokens for each in arrivals} == {3, 4, 5}
    assert len({each.turns[0].pieces[:5] for each in arrivals}) == 2


def test_a_baseline_keeps_the_settings_of_what_it_is_held_against() -> None:
    told = {"prefix_share": "0", "prefix_branches": "2", "turns": "1", "later_input": "8", "think_s": "7"}
    assert [*workload(**told)] == [*workload()]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"rate": "-1"}, "rate is -1"),
        ({"rate": "nan"}, "rate is nan"),
        *(({name: "inf"}, f"{name} is inf") for name in ("rate", "duration_s", "warmup_s", "think_s", "length_scale")),
        ({"arrivals": "gamma", "burst_cv": "1e-200"}, "variation of 1e-200 is none"),
        ({"arrivals": "gamma", "burst_cv": "1e200"}, "variation of 1e\\+200 is none"),
        ({"length_scale": "0"}, "length_scale"),
        ({"arrivals": "recorded"}, "no trace"),
        ({"concurrency": "2", "rate": "1"}, "closed loop"),
        ({"concurrency": "2", "arrivals": "poisson"}, "closed loop"),
        ({"trace": "sample:mooncake", "input": "9"}, "input is of requests that are made up"),
        ({"trace": "sample:mooncake", "output": "9"}, "output is of requests that are made up"),
        ({"trace": "sample:azure", "prefix_share": "0.9"}, "prefix_share is of requests that are made up"),
        ({"trace": "sample:sharegpt", "turns": "5"}, "turns is of requests that are made up"),
        ({"trace": "sample:mooncake", "think_s": "7"}, "think_s is of recordings without times: mooncake has its own"),
        ({"trace_format": "azure"}, "trace_format is of a trace"),
        ({"burst_cv": "9"}, "burst_cv is of gamma arrivals, and arrivals is auto"),
        ({"trace": "sample:mooncake", "burst_cv": "9"}, "burst_cv is of gamma arrivals"),
        ({"duration_s": "5", "warmup_s": "5"}, "warmup_s is 5"),
        ({"input": "0"}, "no length"),
        ({"prefix_share": "1"}, "share of 1"),
        ({"prefix_share": "0.5", "input": "128", "prefix_depth": "8"}, "over 8 levels, is 0 tokens"),
        ({"prefix_share": "0.99", "input": "25"}, "of a mean prompt of 25 tokens, over 1 levels, is 32 tokens"),
        ({"prefix_share": "0.97", "input": "32"}, "is 32 tokens in whole pieces of 16"),
        ({"trace": "sample:nobody"}, "there is no sample"),
        ({"trace": "sample:sharegpt", "rate": "1", "arrivals": "recorded"}, "says no times"),
    ],
)
def test_what_contradicts_itself_is_refused(told: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        workload(**told)
