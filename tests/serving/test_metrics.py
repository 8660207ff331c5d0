"""What a pod shows: its load under our names and vLLM's, and what its processes cost."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pagewire.core.engine_messages import BlockLife, StepDone
from pagewire.core.load import Load
from pagewire.serving.gpu_usage import GpuUsage
from pagewire.serving.metrics import WAIT_FOR_BLOCKS, About, LoadCollector
from pagewire.serving.process_usage import ProcessUsage
from pagewire.serving.sample import Sample, families
from pagewire.serving.step_counts import StepCounts
from pagewire.serving.vllm_metrics import step_histograms

ABOUT = About(pod_id="d0", role="decode", model="m", cache={"block_size": "16"})
LOAD = Load(
    num_running=3,
    num_waiting=2,
    waiting_tokens=500,
    prefill_s_per_token=0.002,
    blocks_total=100,
    blocks_free=40,
    blocks_cached=35,
    blocks_held=25,
    prompt_tokens=90,
    prompt_tokens_cached=30,
    preemptions=4,
)


def waits() -> Iterator[Sample]:
    yield Sample(WAIT_FOR_BLOCKS, {}, 5)


def shown(load: Load = LOAD) -> dict[str, float]:
    steps = StepCounts()
    collector = LoadCollector(ABOUT, lambda: load, dict, waits, steps, pids={}, devices=())
    return {sample.name: sample.value for family in collector.collect() for sample in family.samples}


def test_vllms_names_say_what_ours_say() -> None:
    said = shown()
    assert said["vllm:num_requests_running"] == said["pagewire_num_requests_running"] == 3
    assert said["vllm:num_requests_waiting"] == 2 + 5  # before the engine, too
    assert said["vllm:kv_cache_usage_perc"] == said["vllm:gpu_cache_usage_perc"] == 0.25
    assert said["vllm:prefix_cache_queries_total"] == 90
    assert said["vllm:prefix_cache_hits_total"] == 30
    assert said["vllm:num_preemptions_total"] == 4
    assert said["pagewire_predicted_queue_seconds"] == 1.0


def test_a_pod_without_blocks_uses_none() -> None:
    assert shown(Load())["vllm:kv_cache_usage_perc"] == 0


def test_histograms_of_steps_have_vllms_bounds_and_a_naive_counts_numbers() -> None:
    chance, steps = random.Random(3), StepCounts()
    tokens = [chance.choice((0, 1, 2, 8, 9, 500, 16384, 20000)) for _ in range(300)]
    lives = [
        BlockLife(
            lived_s=chance.uniform(0, 4000),
            idle_s=chance.uniform(0, 100),
            gaps_s=tuple(chance.uniform(0, 5) for _ in range(chance.randrange(4))),
        )
        for _ in range(200)
    ]
    for index, count in enumerate(tokens):
        steps.note(StepDone(num_tokens=count, lives=tuple(lives[index : index + 1])))
    found = {family.name: family for family in step_histograms(steps, {"engine": "d0"})}
    seconds = "0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10 20 30 60 120 300 600 1200 1800"
    expected: dict[str, tuple[str, list[float]]] = {
        "iteration_tokens_total": (
            "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
            [float(count) for count in tokens if count],
        ),
        "kv_block_lifetime_seconds": (seconds, [life.lived_s for life in lives]),
        "kv_block_idle_before_evict_seconds": (seconds, [life.idle_s for life in lives]),
        "kv_block_reuse_gap_seconds": (seconds, [gap_s for life in lives for gap_s in life.gaps_s]),
    }
    assert {f"vllm:{name}" for name in expected} == found.keys()
    for name, (bounds, values) in expected.items():
        samples = found[f"vllm:{name}"].samples
        buckets = {float(each.labels["le"]): each.value for each in samples if each.name.endswith("_bucket")}
        assert buckets == {
            bound: sum(value <= bound for value in values) for bound in (*map(float, bounds.split()), math.inf)
        }
        (total,) = (each.value for each in samples if each.name.endswith("_sum"))
        assert total == pytest.approx(sum(values))


def test_each_metric_is_the_pods_own() -> None:
    collector = LoadCollector(
        ABOUT, lambda: LOAD, lambda: {"x": 1.0}, waits, StepCounts(), pids={"front": os.getpid()}, devices=()
    )
    for family in collector.collect():
        for sample in family.samples:
            labels = sample.labels.items()
            if family.name.startswith("vllm:"):
                assert {"model_name": "m", "engine": "d0", "role": "decode"}.items() <= labels
            else:
                assert {"pod": "d0", "role": "decode"}.items() <= labels


def test_each_gpu_of_a_pod_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(usage: GpuUsage) -> Iterator[Sample]:
        yield Sample("device_utilization", {"device": usage._uuid}, 1.0)

    monkeypatch.setattr(GpuUsage, "samples", shown)
    gpus = ("GPU-a", "GPU-b")
    collector = LoadCollector(ABOUT, lambda: LOAD, dict, waits, StepCounts(), pids={}, devices=gpus)
    (family,) = (family for family in collector.collect() if family.name == "pagewire_device_utilization")
    assert [sample.labels["device"] for sample in family.samples] == list(gpus)


def test_samples_of_a_name_are_one_family() -> None:
    samples = [Sample("a", {"x": "1"}, 1), Sample("b", {}, 2, "text", is_total=True), Sample("a", {"x": "2"}, 3)]
    found = list(families(samples, "p_", {"pod": "d0"}))
    assert [(each.name, each.type, len(each.samples)) for each in found] == [("p_a", "gauge", 2), ("p_b", "counter", 1)]
    assert found[0].samples[1].labels == {"pod": "d0", "x": "2"}


def test_a_process_costs_what_the_kernel_counted() -> None:
    ours = psutil.Process()
    before = ours.cpu_times()
    found = {sample.name: sample for sample in ProcessUsage({"front": os.getpid()}).samples()}
    after = ours.cpu_times()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    busy_s = found["process_cpu_seconds"].value
    assert before.user + before.system - 2 * tick <= busy_s <= after.user + after.system + 2 * tick
    resident = found["process_resident_bytes"].value
    assert resident == pytest.approx(ours.memory_info().rss, rel=0.2)
    assert found["process_resident_bytes"].labels == {"process": "front"}


def test_a_name_with_brackets_is_read_right(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text("7 (a) b) S 1 1 1 0 -1 0 0 0 0 0 250 50 0 0 20 0 1 0")
    (folder / "statm").write_text("10 3 1 1 0 1 0")
    values = {sample.name: sample.value for sample in ProcessUsage({"front": 7}, tmp_path).samples()}
    assert values["process_cpu_seconds"] == 300 / os.sysconf("SC_CLK_TCK")
    assert values["process_resident_bytes"] == 3 * os.sysconf("SC_PAGE_SIZE")


def test_a_process_that_is_gone_shows_nothing(tmp_path: Path) -> None:
    assert list(ProcessUsage({"engine": 7}, tmp_path).samples()) == []
