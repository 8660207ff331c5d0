"""One request's trace through a cluster of real processes, as a real OTLP receiver gets it: one tree, nothing loose.

Router, decode pod and prefill pod each send their own part; what joins them is what their frames carried. All run on
one machine, whose wall clock they share: so a part lies within what it is part of but for `TOLERANCE_S`, since each
process reads that clock for itself when it sends, and a frame takes its time.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from live_cluster import LiveCluster
from otlp_receiver import Got, OtlpReceiver
from patience import came_true
from tiny_model import VOCAB_SIZE, build

from pagewire.client import Client

pytestmark = pytest.mark.cluster

TOLERANCE_S = 0.05
FLAGS = ("--dtype", "float32", "--kv-memory", "16MiB", "--block-size", "16", "--chunk-size", "40")
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
MAX_TOKENS = 40
PROMPT = 150  # tokens: four chunks
BLOCKS = 10  # of 16 tokens, the last one partly filled


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("traces") / "llama", "llama")


@pytest.fixture(scope="module")
def cluster(folder: Path, receiver: OtlpReceiver) -> Iterator[LiveCluster]:
    traced = ("--otlp-endpoint", receiver.endpoint, "--trace-ratio", "0", "--prefill-mode", "remote")
    cluster = LiveCluster(folder, *FLAGS, *traced)
    yield cluster
    assert cluster.stop() == 0


def prompt(seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB_SIZE) for _ in range(PROMPT)]


def tree_of(spans: list[Got], trace_id: str) -> dict[str, list[Got]]:
    """Return the spans of a trace by their parent, having checked that they are one tree, nested in time and place."""
    ours = [span for span in spans if span.trace_id == trace_id]
    by_id = {span.span_id: span for span in ours}
    assert len(by_id) == len(ours), "two spans of one id"
    tree: dict[str, list[Got]] = {}
    for span in sorted(ours, key=lambda span: span.start_s):
        tree.setdefault(span.parent_id, []).append(span)
        assert span.start_s <= span.end_s, span
        for name, at_s, _ in span.events:
            assert span.start_s - TOLERANCE_S <= at_s <= span.end_s + TOLERANCE_S, (name, span)
        if span.parent_id in by_id:
            above = by_id[span.parent_id]
            assert above.start_s - TOLERANCE_S <= span.start_s, (above, span)
            assert span.end_s <= above.end_s + TOLERANCE_S, (above, span)
    loose = {parent for parent in tree if parent not in by_id}
    assert len(loose) == 1, loose
    return tree


def named(spans: list[Got], name: str) -> list[Got]:
    return [span for span in spans if span.name == name]


def test_a_request_is_one_tree_from_its_header_to_its_last_block(cluster: LiveCluster, receiver: OtlpReceiver) -> None:
    body = {"prompt": prompt(1), "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(
        f"{cluster.http}/v1/completions", json=body, headers={"traceparent": CLIENT}, trust_env=False, timeout=60
    )
    assert answer.status_code == 200, answer.text
    services = {"pagewire-router", "pagewire-decode", "pagewire-prefill"}
    spans = receiver.wait(lambda spans: {span.service for span in spans if span.trace_id == TRACE_ID} == services)
    tree = tree_of(spans, TRACE_ID)

    (server,) = tree[SPAN_ID]
    assert server.service == "pagewire-router"
    assert server.name == f"text_completion {cluster.model_name}"
    told = server.attributes
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.provider.name"] == "pagewire"
    assert told["gen_ai.usage.input_tokens"] == PROMPT
    assert told["gen_ai.usage.output_tokens"] == MAX_TOKENS
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    assert [name for name, _, _ in server.events] == ["first_token", "last_token"]
    assert [span.name for span in tree[server.span_id]] == ["tokenize", "look_up", "place", "attempt"]

    (attempt,) = named(tree[server.span_id], "attempt")
    assert attempt.attributes["pagewire.decode_pod"] == "decode-0"
    assert attempt.attributes["pagewire.prefill_pods"] == ("prefill-0",)
    (decode,) = tree[attempt.span_id]
    assert (decode.service, decode.instance, decode.name) == ("pagewire-decode", "decode-0", "decode")
    assert [name for name, _, _ in decode.events] == ["first_token", "joined"]
    assert [span.name for span in tree[decode.span_id]] == ["reserve", "shipment", "decode_steps"]

    _, shipment, steps = tree[decode.span_id]
    assert shipment.attributes["pagewire.outcome"] == "landed"
    assert shipment.attributes["pagewire.source"] == "prefill-0"
    assert shipment.attributes["pagewire.blocks"] == BLOCKS
    assert shipment.attributes["pagewire.bytes"] > 0
    assert shipment.attributes["pagewire.transport"] in ("shm", "tcp", "grpc")
    assert 0 <= shipment.attributes["pagewire.hidden_share"] <= 1
    writes = named(tree[shipment.span_id], "write_blocks")
    whole = [span for span in writes if "pagewire.layer_group" not in span.attributes]
    assert sum(span.attributes["pagewire.bytes"] for span in writes) >= shipment.attributes["pagewire.bytes"]
    assert whole[0].attributes["pagewire.first_block"] == 0

    (prefill,) = named(tree[shipment.span_id], "prefill")
    assert (prefill.service, prefill.instance) == ("pagewire-prefill", "prefill-0")
    assert [name for name, _, _ in prefill.events] == ["first_token"]
    queue, *chunks = tree[prefill.span_id]
    assert queue.name == "queue"
    assert [span.name for span in chunks] == ["chunk"] * 4
    assert sum(span.attributes["pagewire.tokens"] for span in chunks) == PROMPT
    assert queue.end_s <= chunks[0].start_s + TOLERANCE_S
    for earlier, later in itertools.pairwise(chunks):
        assert earlier.end_s <= later.start_s + TOLERANCE_S

    assert steps.attributes["pagewire.tokens"] == MAX_TOKENS - 1  # the first one came from the prefill pod
    assert steps.attributes["pagewire.steps"] == MAX_TOKENS - 1
    marks = [attributes["pagewire.tokens"] for name, _, attributes in steps.events if name == "step"]
    assert marks == [1, 16, 32]
    assert chunks[-1].end_s <= steps.start_s + TOLERANCE_S


def test_who_is_not_asked_for_is_not_traced(cluster: LiveCluster, receiver: OtlpReceiver) -> None:
    unsampled = "1" * 32
    for headers in ({}, {"traceparent": f"00-{unsampled}-{SPAN_ID}-00"}, {"traceparent": "00-rubbish"}):
        body = {"prompt": prompt(2), "max_tokens": 2, "ignore_eos": True}
        answer = httpx.post(f"{cluster.http}/v1/completions", json=body, headers=headers, trust_env=False, timeout=60)
        assert answer.status_code == 200
    marked = "2" * 32
    with Client(cluster.grpc) as client:
        client.generate(prompt(3), max_tokens=2, ignore_eos=True, traceparent=f"00-{marked}-{SPAN_ID}-01")
    services = {"pagewire-router", "pagewire-decode", "pagewire-prefill"}
    spans = receiver.wait(lambda spans: {span.service for span in spans if span.trace_id == marked} == services)
    assert tree_of(spans, marked)[SPAN_ID][0].name.startswith("text_completion")
    assert {span.trace_id for span in spans} <= {TRACE_ID, marked}


def test_a_colocated_pod_shows_its_own_chunks_and_every_request_may_be_traced(folder: Path) -> None:
    with OtlpReceiver() as receiver:
        # As a container is told: by OpenTelemetry's own variable, without a scheme.
        cluster = LiveCluster(
            folder, *FLAGS, "--colocated", "1", OTEL_EXPORTER_OTLP_ENDPOINT=f"127.0.0.1:{receiver.port}"
        )
        cluster.complete(prompt(4), 20, ignore_eos=True)
        spans = receiver.wait(
            lambda spans: {span.service for span in spans} == {"pagewire-router", "pagewire-colocated"}
        )
        (trace_id,) = {span.trace_id for span in spans}
        tree = tree_of(spans, trace_id)
        (server,) = tree[""]
        (attempt,) = named(tree[server.span_id], "attempt")
        (decode,) = tree[attempt.span_id]
        names = [span.name for span in tree[decode.span_id]]
        assert names[:3] == ["reserve", "queue", "chunk"]
        assert sorted(names[3:]) == ["chunk"] * (len(names) - 4) + ["decode_steps"]  # the last chunk's step samples too
        chunks = named(tree[decode.span_id], "chunk")
        assert sum(span.attributes["pagewire.tokens"] for span in chunks) == PROMPT
        assert named(tree[decode.span_id], "decode_steps")[0].attributes["pagewire.steps"] == 20
        (pod,) = cluster.pods()
        num_spans = len([span for span in spans if span.service == "pagewire-colocated"])
        # It counts once the collector has answered, which is after we have them.
        assert came_true(lambda: cluster.metrics(pod)["trace_spans_exported_total"] == num_spans)
        assert cluster.stop() == 0


def test_a_collector_that_is_not_there_costs_spans_and_nothing_else(folder: Path) -> None:
    cluster = LiveCluster(folder, *FLAGS, "--colocated", "1", "--otlp-endpoint", "http://127.0.0.1:9")
    answers = [cluster.complete(prompt(seed), 4, ignore_eos=True) for seed in range(3)]
    assert [len(answer.tokens) for answer in answers] == [4, 4, 4]
    assert cluster.router_metrics()["router_trace_spans_exported_total"] == 0
    assert cluster.stop() == 0
