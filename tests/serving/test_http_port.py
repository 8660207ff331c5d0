"""A pod's HTTP port: what each page says, and when."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.core import Metric

from pagewire.core.load import Load
from pagewire.serving import http_port
from pagewire.serving.doors import Doors
from pagewire.serving.metrics import About, LoadCollector
from pagewire.serving.sample import Sample
from pagewire.serving.step_counts import StepCounts


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def collector(load: Load) -> LoadCollector:
    def nothing() -> Iterator[Sample]:
        return iter(())

    about = About(pod_id="prefill-0", role="prefill", model="m", cache={})
    return LoadCollector(about, lambda: load, dict, nothing, StepCounts(), pids={}, device="")


async def test_health_follows_what_grpc_says_and_live_does_not() -> None:
    doors = await Doors.open("127.0.0.1", 0, 0)
    base = f"http://{doors.metrics_address}"
    try:
        assert await asyncio.to_thread(get, f"{base}/health") == (503, '{"status": "not_serving"}')
        assert await asyncio.to_thread(get, f"{base}/live") == (200, '{"status": "live"}')
        await doors.serving(True)
        assert await asyncio.to_thread(get, f"{base}/health") == (200, '{"status": "serving"}')
        await doors.serving(False)
        assert (await asyncio.to_thread(get, f"{base}/health"))[0] == 503
        assert (await asyncio.to_thread(get, f"{base}/live"))[0] == 200
        assert (await asyncio.to_thread(get, f"{base}/"))[0] == 404
    finally:
        await doors.close()


async def test_vllms_names_keep_their_colon_whatever_format_is_asked_for() -> None:
    """Prometheus asks for OpenMetrics, in which the client library knows no colon."""
    doors = await Doors.open("127.0.0.1", 0, 0)
    try:
        doors.lead_to((), collector(Load()))
        url = f"http://{doors.metrics_address}/metrics"
        for accept in ("application/openmetrics-text;version=1.0.0", "text/plain;version=0.0.4", "*/*"):
            _, text = await asyncio.to_thread(get, url, Accept=accept)
            assert "\nvllm:prefix_cache_queries_total{" in text
    finally:
        await doors.close()


async def test_metrics_tell_the_queue_in_seconds() -> None:
    doors = await Doors.open("127.0.0.1", 0, 0)
    try:
        doors.lead_to((), collector(Load(waiting_tokens=300, prefill_s_per_token=0.25)))
        status, text = await asyncio.to_thread(get, f"http://{doors.metrics_address}/metrics")
    finally:
        await doors.close()
    assert status == 200
    assert 'pagewire_predicted_queue_seconds{pod="prefill-0",role="prefill"} 75.0' in text


async def test_a_loop_that_does_not_turn_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "TURN_S", 0.2)
    told: list[tuple[int, str]] = []
    port = http_port.HttpPort.open("127.0.0.1", 0, _Nothing(), lambda: True)
    try:
        asking = threading.Thread(target=lambda: told.append(get(f"http://127.0.0.1:{port.port}/live")))
        asking.start()
        asking.join()  # in the loop's own thread: it turns no more until the answer is there
        assert [(status, json.loads(text)["status"]) for status, text in told] == [(503, "stuck")]
    finally:
        port.close()


async def test_a_port_that_is_taken_is_said() -> None:
    port = http_port.HttpPort.open("127.0.0.1", 0, _Nothing(), lambda: True)
    try:
        with pytest.raises(OSError, match="in use"):
            http_port.HttpPort.open("127.0.0.1", port.port, _Nothing(), lambda: True)
    finally:
        port.close()


class _Nothing:
    def collect(self) -> Iterator[Metric]:
        return iter(())
