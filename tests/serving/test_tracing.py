"""Who is traced, what a collector gets of it, and what happens where there is none: nothing that anybody waits for."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis_rig
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from otlp_receiver import OtlpReceiver

from pagewire.core.span import Attribute, Mark, Span, SpanKind
from pagewire.core.trace_context import TraceContext
from pagewire.serving import span_export
from pagewire.serving.span_export import SpanExport
from pagewire.serving.tracing import Process, Tracing, endpoint_of, open_exporter

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ABOVE = TraceContext(TRACE, SPAN, True)
PROCESS = Process("pagewire-test", "one")


class Kept:
    """An exporter that keeps what it is given."""

    exported = dropped = 0

    def __init__(self) -> None:
        self.kept: list[tuple[Process, Span, TraceContext]] = []

    def put(self, process: Process, span: Span, above: TraceContext) -> None:
        self.kept.append((process, span, above))

    def close(self) -> None: ...


def tree(num_parts: int = 1) -> Span:
    now_s = time.monotonic()
    part = Span(name="part", start_s=now_s - 0.5, end_s=now_s - 0.25)
    return Span(name="all", start_s=now_s - 1, end_s=now_s, parts=(part,) * num_parts)


# ------------------------------------------------------------------------------------------------------- who is traced


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_caller_with_a_trace_decides_for_itself(ratio: float) -> None:
    tracing = Tracing(Kept(), PROCESS, ratio=ratio)
    assert tracing.begin(ABOVE.header) == ABOVE
    assert tracing.begin(f"00-{TRACE}-{SPAN}-00") is None


@pytest.mark.parametrize("header", ["", "00-rubbish", f"00-{TRACE}-{SPAN}-01-more"])
def test_others_are_traced_by_the_ratio(header: str) -> None:
    assert Tracing(Kept(), PROCESS, ratio=0.0).begin(header) is None
    begun = [Tracing(Kept(), PROCESS, ratio=1.0).begin(header) for _ in range(2)]
    assert [each.span_id for each in begun if each is not None] == ["", ""]
    assert begun[0] != begun[1]


def test_processes_that_are_asked_apart_decide_alike() -> None:
    """A router decides; what its pods read of its word is the same, whatever ratio they would have."""
    router = Tracing(Kept(), PROCESS, ratio=0.3)
    begun = [router.begin("") for _ in range(2000)]
    traced = [each for each in begun if each is not None]
    assert 0.2 < len(traced) / len(begun) < 0.4
    for each in traced:
        told = each.below(SPAN).header
        assert Tracing(Kept(), PROCESS, ratio=0.0).begin(told) == Tracing(Kept(), PROCESS, ratio=1.0).begin(told)
        assert Tracing(Kept(), PROCESS).begin(told) == TraceContext(each.trace_id, SPAN, True)


# ------------------------------------------------------------------------------------------------------ where they go


@pytest.mark.parametrize(
    ("told", "environ", "endpoint"),
    [
        ("", {}, ""),
        ("collector:4317", {}, "http://collector:4317"),
        ("https://collector:4317", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://other:1"}, "https://collector:4317"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"}, "http://collector:4317"),
        (
            "",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://any:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:2"},
            "http://traces:2",
        ),
        ("collector:4317", {"OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_the_collector_is_the_one_that_was_named(told: str, environ: dict[str, str], endpoint: str) -> None:
    assert endpoint_of(told, environ) == endpoint


def test_another_protocol_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="http/protobuf"):
        endpoint_of("collector:4318", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})


def test_where_all_is_encrypted_traces_go_in_the_clear_by_word_alone() -> None:
    with pytest.raises(ValueError, match="https://collector:4317"):
        endpoint_of("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"}, is_encrypted=True)
    for told in ("http://localhost:4317", "https://collector:4317", ""):
        assert endpoint_of(told, {}, is_encrypted=True) == told


@pytest.mark.parametrize("endpoint", ["ftp://collector:4317", "http://"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        open_exporter(endpoint)


IMPORT_ALL = (
    "import json, sys, pagewire.router.main, pagewire.cli.collector, pagewire.serving.tracing as tracing\n"
    "import pagewire.decode_service.service, pagewire.prefill_service.service\n"
    "assert tracing.open_exporter('') is None\n"
    "names = [name for name in sys.modules if name.startswith('opentelemetry') or name.endswith('span_export')]\n"
    "print(json.dumps(names))"
)


def test_without_an_endpoint_nothing_of_ours_imports_opentelemetry() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", IMPORT_ALL], capture_output=True, text=True, check=True)
    # redis-py looks for OpenTelemetry's metrics by itself, where they are installed.
    ours = ("sdk.trace.export", "exporter", "span_export")
    assert [name for name in json.loads(done.stdout) if any(each in name for each in ours)] == []


def test_without_the_extra_all_runs_untraced() -> None:
    code = f"import sys; sys.modules['opentelemetry'] = None\n{IMPORT_ALL}"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '["opentelemetry"]'  # the name that stands for "not installed"


def test_without_the_extra_it_is_said_what_is_missing() -> None:
    code = (
        "import sys\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "from pagewire.serving.tracing import open_exporter\n"
        "try:\n    open_exporter('http://collector:4317')\n"
        "except ValueError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert "pagewire[trace]" in done.stdout


# --------------------------------------------------------------------------------------------------- what is exported


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


def test_a_tree_arrives_as_it_was_with_the_ids_that_others_were_told(receiver: OtlpReceiver) -> None:
    now_s, wall_s = time.monotonic(), time.time()
    told = "1234567890abcdef"
    call = Span(name="call", start_s=now_s - 2, end_s=now_s - 1, kind=SpanKind.CLIENT, span_id=told, error="pod_lost")
    marks = (Mark(name="first_token", at_s=now_s - 1.5, attributes={"n": 3}),)
    attributes: dict[str, Attribute] = {"text": "a", "number": 2, "share": 0.5, "is": True, "list": ("b", "c")}
    root = Span(name="all", start_s=now_s - 3, end_s=now_s, parts=(call,), marks=marks, attributes=attributes)
    export = SpanExport(receiver.endpoint)
    Tracing(export, PROCESS).record(root, ABOVE)
    Tracing(export, Process("pagewire-other", "two")).record(call, TraceContext("2" * 32, "", True))
    spans = {(span.service, span.name): span for span in receiver.wait(lambda spans: len(spans) == 3)}
    export.close()
    top, below = spans["pagewire-test", "all"], spans["pagewire-test", "call"]
    assert (top.trace_id, top.parent_id, top.instance) == (TRACE, SPAN, "one")
    assert (below.trace_id, below.parent_id, below.span_id) == (TRACE, top.span_id, told)
    assert top.attributes == attributes
    assert below.is_error
    assert below.attributes["error.type"] == "pod_lost"
    assert below.kind == 3  # CLIENT in the protocol
    assert top.start_s == pytest.approx(wall_s - 3, abs=1.0)
    assert top.end_s - top.start_s == pytest.approx(3, abs=1e-6)
    ((name, at_s, said),) = top.events
    assert (name, said) == ("first_token", {"n": 3})
    assert at_s - top.start_s == pytest.approx(1.5, abs=1e-6)
    alone = spans["pagewire-other", "call"]
    assert (alone.trace_id, alone.parent_id, alone.instance) == ("2" * 32, "", "two")
    assert (export.exported, export.dropped) == (3, 0)


def test_what_waits_is_sent_at_the_end(receiver: OtlpReceiver) -> None:
    export = SpanExport(receiver.endpoint)
    for _ in range(50):
        export.put(PROCESS, tree(), ABOVE)
    export.close()
    assert len(receiver.spans) == export.exported == 100


@pytest.mark.parametrize("shows", [True, False], ids=["with a certificate", "without"])
def test_a_collector_is_met_by_mutual_tls(shows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, cert, key = redis_rig.certificates(tmp_path)
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), cert.read_bytes())], ca.read_bytes(), require_client_auth=True
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(ca))
    if shows:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(cert))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(key))
    with OtlpReceiver(credentials) as receiver:
        assert receiver.endpoint.startswith("https:")
        export = SpanExport(receiver.endpoint)
        export.put(PROCESS, tree(), ABOVE)
        export.close()
        assert len(receiver.spans) == export.exported == (2 if shows else 0)


def test_certificates_for_a_collector_are_renewed_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, strangers = (redis_rig.certificates(tmp_path / whose) for whose in ("ours", "strangers"))
    names = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
    files = [tmp_path / name.lower() for name in names]
    for name, file in zip(names, files, strict=True):
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", str(file))

    def put(whose: redis_rig.Certificates) -> None:
        for file, source in zip(files, whose, strict=True):
            file.write_bytes(source.read_bytes())

    put(strangers)
    ca, cert, key = (each.read_bytes() for each in ours)
    with OtlpReceiver(grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)) as receiver:
        export = SpanExport(receiver.endpoint)

        def sends() -> tuple[int, int]:
            before = export.exported, export.dropped
            export.put(PROCESS, tree(), ABOVE)
            until_s = time.monotonic() + 30
            while (now := (export.exported, export.dropped)) == before:
                assert time.monotonic() < until_s
                time.sleep(0.01)
            return now[0] - before[0], now[1] - before[1]

        assert sends() == (0, 2), "it is not believed, and believes nobody of theirs"
        put(ours)
        assert sends() == (2, 0)
        files[2].write_bytes(strangers[2].read_bytes())
        assert sends() == (2, 0), "the certificate's key is not there yet: the pair from before stays"
        put(strangers)
        assert sends() == (0, 2), "what was open is not gone on with"
        export.close()


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"CERTIFICATE": "no such file"}, "no such file"),
        ({"TRACES_CERTIFICATE": "rubbish", "CERTIFICATE": "ca"}, "rubbish"),
        ({"CLIENT_CERTIFICATE": "cert"}, "go together"),
        ({"CLIENT_CERTIFICATE": "cert", "CLIENT_KEY": "other"}, "other"),
    ],
)
def test_certificates_for_a_collector_that_are_none_end_the_start(
    files: dict[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_rig.certificates(tmp_path)
    (tmp_path / "rubbish").write_text("rubbish")
    redis_rig.certificates(tmp_path / "strangers")[2].rename(tmp_path / "other")
    for name, file in files.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", str(tmp_path / file))
    with pytest.raises(ValueError, match=why):
        open_exporter("https://collector:4317")


class _Stuck(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector that takes a batch and does not answer until it may."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = threading.Event(), threading.Event()

    def Export(self, _request: Any, context: grpc.ServicerContext) -> Any:
        self.is_asked.set()
        self.may_answer.wait(30)
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")


def test_a_stuck_collector_costs_spans_that_are_counted_and_nothing_else() -> None:
    stuck = _Stuck()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(stuck, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    export = SpanExport(f"http://127.0.0.1:{port}")
    try:
        export.put(PROCESS, tree(), ABOVE)
        assert stuck.is_asked.wait(10)
        size = len(tree(9))
        num_trees = 3 * span_export.MAX_WAITING // size
        for _ in range(num_trees):  # none of them waits: the collector answers when this is over
            export.put(PROCESS, tree(9), ABOVE)
        assert export.dropped >= num_trees * size - span_export.MAX_WAITING
        assert export.exported == 0
    finally:
        stuck.may_answer.set()
        export.close()
        server.stop(0).wait()
    assert export.exported == 0


class _Moody(OtlpReceiver):
    """A collector that takes nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.takes = False

    def Export(self, request: Any, context: Any) -> Any:
        if not self.takes:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not in the mood")
        return super().Export(request, context)


def test_a_collector_that_takes_nothing_is_told_of_once_and_once_it_takes_something_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def until(is_so: Callable[[], bool]) -> None:
        until_s = time.monotonic() + 20
        while not is_so():
            assert time.monotonic() < until_s
            time.sleep(0.01)

    with _Moody() as moody:
        export = SpanExport(moody.endpoint)
        try:
            for _ in range(2):
                caplog.clear()
                moody.takes, dropped, exported = False, export.dropped, export.exported
                for num_batches in (1, 2, 3):
                    export.put(PROCESS, tree(), ABOVE)
                    until(lambda most=dropped + 2 * num_batches: export.dropped == most)  # type: ignore[misc]
                (lost,) = caplog.messages
                assert lost.startswith(f"spans do not reach the collector at {moody.endpoint}")
                assert "not in the mood" in lost
                moody.takes = True
                for num_batches in (1, 2):
                    export.put(PROCESS, tree(), ABOVE)
                    until(lambda most=exported + 2 * num_batches: export.exported == most)  # type: ignore[misc]
                assert caplog.messages[1:] == [
                    f"spans reach the collector at {moody.endpoint} again; 6 were dropped meanwhile"
                ]
        finally:
            export.close()


def test_a_collector_that_is_not_there_is_given_up_soon() -> None:
    export = SpanExport("http://127.0.0.1:9")
    export.put(PROCESS, tree(), ABOVE)
    export.close()
    until_s = time.monotonic() + 20
    while not export.dropped:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert (export.exported, export.dropped) == (0, 2)
