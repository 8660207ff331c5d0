"""A pod's HTTP port: what each page says, and when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Certificates
from prometheus_client.core import Metric
from router_rig import client_context

from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.serving import http_port
from pagewire.serving.doors import Doors
from pagewire.serving.metrics import About, LoadCollector
from pagewire.serving.pod_config import PodConfig
from pagewire.serving.sample import Sample
from pagewire.serving.step_counts import StepCounts

TLS_FILES = {"cert": "pod.pem", "key": "pod.key", "ca": "ca.pem"}


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
    return LoadCollector(about, lambda: load, dict, nothing, StepCounts(), pids={}, devices=())


async def test_health_follows_what_grpc_says_and_live_does_not() -> None:
    doors = await Doors.open("127.0.0.1", 0, 0)
    base = f"http://{doors.metrics_address}"
    try:
        assert await asyncio.to_thread(get, f"{base}/health") == (503, '{"status": "not_serving"}')
        assert await asyncio.to_thread(get, f"{base}/live") == (200, '{"status": "live"}')
        doors.serving(True)
        assert await asyncio.to_thread(get, f"{base}/health") == (200, '{"status": "serving"}')
        doors.serving(False)
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


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.write(tmp_path_factory.mktemp("certificates"))


async def test_over_tls_it_opens_to_whom_it_should_and_shows_renewed_files(
    certificates: Certificates, tmp_path: Path
) -> None:
    cert, key = tmp_path / "pod.pem", tmp_path / "pod.key"

    def put(name: str) -> None:
        cert.write_bytes(certificates.path(f"{name}.pem").read_bytes())
        key.write_bytes(certificates.path(f"{name}.key").read_bytes())

    put("expired")
    files = {"tls_cert": str(cert), "tls_key": str(key), "tls_ca": str(certificates.path("ca.pem"))}
    bare = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    shown = client_context(certificates.tls("client"))
    assert isinstance(shown, ssl.SSLContext)
    anybody, of_the_cluster = {bare: True, shown: True}, {bare: False, shown: True}
    for how, opens in (("auto", anybody), ("on", anybody), ("mutual", of_the_cluster)):
        put("expired")
        config = PodConfig(model="m", role=Role.DECODE, cluster_secret="s", metrics_tls=how, **files)  # type: ignore[arg-type]
        port = http_port.HttpPort.open("127.0.0.1", 0, _Nothing(), lambda: True, tls=config.metrics_context())

        def asked(context: ssl.SSLContext | None, port: http_port.HttpPort = port) -> int:
            url = f"{'https' if context else 'http'}://127.0.0.1:{port.port}/health"
            with urllib.request.urlopen(url, timeout=10, context=context) as answer:
                return int(answer.status)

        try:
            with pytest.raises(urllib.error.URLError, match="expired"):
                await asyncio.to_thread(asked, shown)
            put("pod")
            for context, is_open in opens.items():
                if is_open:
                    assert await asyncio.to_thread(asked, context) == 200
                else:
                    with pytest.raises(OSError, match=r"CERTIFICATE_REQUIRED|certificate required|reset|closed|EOF"):
                        await asyncio.to_thread(asked, context)
            with pytest.raises(OSError):
                await asyncio.to_thread(asked, None)
        finally:
            port.close()


async def test_callers_who_say_nothing_take_no_more_than_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "MAX_CALLERS", 3)
    monkeypatch.setattr(http_port, "SILENCE_S", 0.5)
    monkeypatch.setattr(http_port._Silent, "timeout", 0.5)
    port = http_port.HttpPort.open("127.0.0.1", 0, _Nothing(), lambda: True)
    silent = [socket.create_connection(("127.0.0.1", port.port)) for _ in range(10)]
    try:
        for each in silent[::2]:
            each.sendall(b"GET /metr")  # the rest never comes
        for each in silent:  # hung up on: at once, or when they were silent for too long
            each.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
        assert (await asyncio.to_thread(get, f"http://127.0.0.1:{port.port}/health"))[0] == 200
    finally:
        for each in silent:
            each.close()
        port.close()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_who_trickles_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, certificates: Certificates, is_tls: bool
) -> None:
    """A byte now and then, and there is no silence; what shakes hands slowly `ssl` itself gives up."""
    monkeypatch.setattr(http_port, "CALL_S", 0.4)
    paths = {f"tls_{name}": str(certificates.path(file)) for name, file in TLS_FILES.items()}
    config = PodConfig(model="m", role=Role.DECODE, cluster_secret="s", **(paths if is_tls else {}))  # type: ignore[arg-type]
    port = http_port.HttpPort.open("127.0.0.1", 0, _Nothing(), lambda: True, tls=config.metrics_context())
    context = ssl.create_default_context(cafile=certificates.path("ca.pem"))

    def trickle() -> None:
        with contextlib.ExitStack() as ends:
            caller = ends.enter_context(socket.create_connection(("127.0.0.1", port.port)))
            if is_tls:
                caller = ends.enter_context(context.wrap_socket(caller, server_hostname="localhost"))
            caller.sendall(b"GET /")
            caller.settimeout(0.02)
            for _ in range(1000):
                with contextlib.suppress(TimeoutError):
                    assert caller.recv(1) == b"", "it is answered"
                    return
                caller.sendall(b"x")
            pytest.fail("it is still listened to")

    try:
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # that is an end too
            await asyncio.to_thread(trickle)
    finally:
        port.close()


class _Nothing:
    def collect(self) -> Iterator[Metric]:
        return iter(())
