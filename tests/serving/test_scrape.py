"""Counters as another process reads them from what a pod shows."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.core import CollectorRegistry

from pagewire.core.load import Load
from pagewire.serving.metrics import About, LoadCollector
from pagewire.serving.sample import Sample
from pagewire.serving.scrape import counters, risen
from pagewire.serving.step_counts import StepCounts

ABOUT = About(pod_id="d0", role="decode", model="m", cache={"block_size": "16"})


def gauges() -> Iterator[Sample]:
    yield Sample("link_rtt_seconds", {"peer": "p0"}, 5.0)
    yield Sample("process_seconds", {"process": "engine"}, 7.0, is_total=True)


def text(load: Load) -> str:
    registry = CollectorRegistry()
    registry.register(LoadCollector(ABOUT, lambda: load, dict, gauges, StepCounts(), pids={}, devices=()))
    return generate_latest(registry).decode()


def test_what_a_pod_counted_is_read_back_and_told_apart_by_its_own_labels_alone() -> None:
    found = counters(text(Load(output_tokens=3, blocks_total=9, prompt_tokens_cached=1 << 60)))
    assert found["pagewire_generation_tokens_total"] == 3
    assert found["pagewire_prompt_tokens_cached_total"] == 1 << 60
    assert found["pagewire_process_seconds_total/engine"] == 7
    assert all(name.startswith("pagewire_") and "_total" in name for name in found)
    assert not [name for name in found if "blocks_total" in name or "rtt" in name], "gauges are no counters"


def test_what_rose_is_told_and_nothing_else() -> None:
    before, after = (counters(text(Load(output_tokens=n, prompt_tokens=5))) for n in (3, 10))
    assert risen(before, after) == {"pagewire_generation_tokens_total": 7}
    assert risen({}, {"new": 2.0}) == {"new": 2.0}


def test_only_what_a_pod_counts_under_its_own_name_is_read() -> None:
    page = """
# TYPE pagewire_tokens_total counter
pagewire_tokens_total{pod="d0",role="decode"} 3
pagewire_tokens_created{pod="d0",role="decode"} 1700000000
# TYPE pagewire_ends_total counter
pagewire_ends_total{pod="d0",role="decode",reason="stop",by="us"} 4
# TYPE pagewire_blocks_total gauge
pagewire_blocks_total{pod="d0",role="decode"} 9
# TYPE python_gc_total counter
python_gc_total 7
"""
    assert counters(page) == {"pagewire_tokens_total": 3.0, "pagewire_ends_total/stop/us": 4.0}


def test_what_was_not_there_before_rose_from_0() -> None:
    before = {"a": 1.0, "b": 2.0, "begun anew": 5.0}
    assert risen(before, {"a": 1.0, "b": 4.0, "c": 0.5, "d": 0.0, "begun anew": 3.0}) == {"b": 2.0, "c": 0.5}
