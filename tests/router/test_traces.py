"""What a router shows of requests, whatever becomes of them, and whatever callers say of traces of their own."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Iterator

import pytest
from fake_pod import FakePod
from otlp_receiver import Got, OtlpReceiver
from patience import comes_true_later
from router_rig import StartRouter

from pagewire.client import AsyncClient
from pagewire.core.errors import Overloaded
from pagewire.core.trace_context import TraceContext
from pagewire.protos import inference_pb2 as pb

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


async def came(receiver: OtlpReceiver, number: int) -> list[Got]:
    """Return the spans of that many requests."""

    def are_there(spans: list[Got]) -> bool:
        return len([span for span in spans if "gen_ai.operation.name" in span.attributes]) == number

    return await asyncio.to_thread(receiver.wait, are_there)


async def test_each_attempt_is_a_span_and_its_pod_is_told_which(start: StartRouter, receiver: OtlpReceiver) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    first.refusal = Overloaded("full")
    async with start(first, second, policy="least_loaded", otlp_endpoint=receiver.endpoint) as router:
        router.http.headers["traceparent"] = CALLER
        router.http.headers["x-correlation-id"] = "session-7"
        assert (await router.complete("hello", max_tokens=4, temperature=0.5)).status_code == 200
        spans = await came(receiver, 1)

        async def is_counted() -> bool:
            return await router.metric("pagewire_router_trace_spans_exported_total") == len(spans)

        assert await comes_true_later(is_counted, within_s=20)  # once their receiver's answer is there
    assert {span.trace_id for span in spans} == {TRACE_ID}
    (server,) = [span for span in spans if span.parent_id == SPAN_ID]
    assert not server.is_error
    assert server.attributes["gen_ai.request.temperature"] == 0.5
    assert server.attributes["pagewire.correlation_id"] == "session-7"
    assert server.attributes["gen_ai.usage.output_tokens"] == 4
    parts = [span for span in spans if span.parent_id == server.span_id]
    attempts = sorted((span for span in parts if span.name == "attempt"), key=lambda span: span.start_s)
    assert len([span for span in parts if span.name == "place"]) == 2
    assert [span.attributes["pagewire.decode_pod"] for span in attempts] == ["d0", "d1"]
    assert [(span.is_error, span.attributes.get("error.type")) for span in attempts] == [
        (True, Overloaded.cause),
        (False, None),
    ]
    told = [pod.submits[0].traceparent for pod in (first, second)]
    assert told == [TraceContext(TRACE_ID, span.span_id, True).header for span in attempts]


async def test_what_is_refused_is_shown_and_says_why(start: StartRouter, receiver: OtlpReceiver) -> None:
    async with start(FakePod("d0"), otlp_endpoint=receiver.endpoint) as router:
        for fields in ({"max_tokens": 10**6}, {"seed": 2**80}, {"model": "m" * 100_000}):
            assert (await router.complete("hello", **fields)).status_code in (400, 404)
        assert (await router.complete("hello")).status_code == 200
        seen = await came(receiver, 3)  # of a model that nobody serves there is no request
        assert await router.metric("pagewire_router_trace_spans_dropped_total") == 0
    failed = [span for span in seen if span.is_error]
    assert [span.attributes["error.type"] for span in failed] == ["context_length_exceeded", "invalid_request"]
    assert {span.name for span in failed} == {"text_completion"}
    assert max(len(str(value)) for span in seen for value in span.attributes.values()) <= 256


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("traceparent", "")],
        [("traceparent", "00-" + "x" * 60_000)],
        [("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-00")],
        [("traceparent", CALLER), ("traceparent", CALLER)],
        [("traceparent", f"00-{'0' * 32}-{SPAN_ID}-01"), ("tracestate", "a=b")],
    ],
)
async def test_no_trace_is_made_of_what_is_no_header(
    start: StartRouter, receiver: OtlpReceiver, headers: list[tuple[str, str]]
) -> None:
    pod = FakePod("d0")
    async with start(pod, otlp_endpoint=receiver.endpoint, trace_ratio=0.0) as router:
        body = {"prompt": "hello", "max_tokens": 4}
        assert (await router.http.post("/v1/completions", json=body, headers=headers)).status_code == 200
        assert pod.submits[0].traceparent == ""
        traced = await router.http.post("/v1/completions", json=body, headers={"traceparent": CALLER})
        assert traced.status_code == 200
        spans = await came(receiver, 1)  # the untraced one ended before
    assert {span.trace_id for span in spans} == {TRACE_ID}


async def test_by_grpc_the_trace_comes_with_the_metadata(start: StartRouter, receiver: OtlpReceiver) -> None:
    async with start(FakePod("d0"), otlp_endpoint=receiver.endpoint, trace_ratio=0.0) as router:
        request = pb.GenerateRequest(text="hello")
        request.sampling.max_tokens = 2
        for metadata in ((("traceparent", CALLER),), (("traceparent", CALLER + "-x"),), (("traceparent", "00"),)):
            async for _ in router.rpc.Generate(request, metadata=metadata):
                pass
        spans = await came(receiver, 1)
    assert {span.trace_id for span in spans} == {TRACE_ID}


async def test_the_sdk_passes_on_the_trace_that_its_caller_is_in(
    start: StartRouter, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace  # noqa: PLC0415 - what the caller's own program would have done

    current = trace.NonRecordingSpan(
        trace.SpanContext(int(TRACE_ID, 16), int(SPAN_ID, 16), False, trace.TraceFlags(trace.TraceFlags.SAMPLED))
    )
    given = f"00-{'3' * 32}-{SPAN_ID}-01"
    async with start(FakePod("d0"), otlp_endpoint=receiver.endpoint, trace_ratio=0.0) as router:
        async with AsyncClient(router.addresses["grpc"]) as client:
            with trace.use_span(current):
                await client.generate("hello", max_tokens=2)
                await client.generate("hello", max_tokens=2, traceparent=given)
                await client.generate("hello", max_tokens=2, traceparent="")
            monkeypatch.setitem(sys.modules, "opentelemetry.trace", types.ModuleType("absent"))
            monkeypatch.delitem(sys.modules, "opentelemetry.trace")
            await client.generate("hello", max_tokens=2)
        spans = await came(receiver, 2)
    assert {span.trace_id for span in spans} == {TRACE_ID, "3" * 32}


async def test_without_an_endpoint_pods_are_told_nothing_and_nothing_of_tracing_runs(start: StartRouter) -> None:
    pod = FakePod("d0")
    called: set[str] = set()

    def note(frame: types.FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(FILES):
            called.add(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    async with start(pod) as router:
        router.http.headers["traceparent"] = CALLER
        sys.setprofile(note)
        try:
            assert (await router.complete("hello", max_tokens=8)).status_code == 200
        finally:
            sys.setprofile(None)
    assert pod.submits[0].traceparent == ""
    assert called == set()


FILES = (
    "core/span.py",
    "core/trace_context.py",
    "serving/tracing.py",
    "serving/span_export.py",
    "router/request_trace.py",
)
