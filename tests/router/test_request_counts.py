"""What requests came to, as numbers: against Prometheus' own histogram, and against what was told."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import histogram_bounds
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from pagewire.core.distribution import Distribution
from pagewire.core.errors import Cancelled, EngineFailed, InvalidRequest, Overloaded, PagewireError
from pagewire.core.report import Report
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.router import request_counts
from pagewire.router.events import Ending, Finished, Usage
from pagewire.router.prediction import NO_TARGETS, Targets
from pagewire.router.refusals import Reason, Refused
from pagewire.router.request_counts import MAX_LABEL_CHARS, MAX_PLACEMENTS, RequestCounts
from pagewire.router.request_times import request_times

BOUNDS = (0.5, 1.0, 2.5)
WORDS_OF_SLO = ("met", "missed")
WORDS = ("OF_TENANTS", "ENDINGS", "MET_OR_MISSED", "MAX_PLACEMENTS", "MAX_LABEL_CHARS")


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 2.5, 3.0]), st.integers(1, 3))))
def test_a_distribution_counts_as_prometheus_does(values: list[tuple[float, int]]) -> None:
    ours, theirs = Distribution(BOUNDS), Histogram("h", "h", buckets=BOUNDS, registry=CollectorRegistry())
    for value, times in values:
        ours.observe(value, times)
        for _ in range(times):
            theirs.observe(value)
    (family,) = theirs.collect()
    samples = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    assert [count for _, count in ours.buckets()] == [samples["h_bucket", le] for le in ("0.5", "1.0", "2.5", "+Inf")]
    assert ours.total == samples["h_sum", None]
    assert ours.count == samples["h_count", None]


def test_the_bounds_of_every_distribution_ascend() -> None:
    told = {name: bounds for name, bounds in vars(request_counts).items() if name.isupper() and name not in WORDS}
    assert {"TTFT_S", "GAP_S", "PART_S", "TRANSFER_S", "TOKENS", "ANSWERS", "OTEL_DURATION_S"} <= set(told)
    for name, bounds in told.items():
        assert all(low < high for low, high in pairwise((0, *bounds))), name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("TTFT_S", "TTFT_S"),
        ("GAP_S", "TOKEN_S"),
        ("PART_S", "PART_S"),
        ("TOKENS", "TOKENS"),
        ("ANSWERS", "ANSWERS"),
        ("OTEL_DURATION_S", "OTEL_DURATION_S"),
        ("OTEL_TTFT_S", "OTEL_TTFT_S"),
        ("OTEL_TPOT_S", "OTEL_TPOT_S"),
        ("OTEL_TOKENS", "OTEL_TOKENS"),
    ],
)
def test_what_others_named_has_their_bounds(ours: str, theirs: str) -> None:
    assert getattr(request_counts, ours) == tuple(map(float, getattr(histogram_bounds, theirs).split()))


def timeline(process: str, **at_s: float) -> Timeline:
    return Timeline(process=process, stamps=tuple(Stamp(Phase(phase), at) for phase, at in at_s.items()))


ROUTER = timeline("r", received=10.0, tokenized=10.5, placed=11.0, submitted=11.0, first_token=14.0, last_token=20.0)
DECODE = timeline("d", accepted=1.0, reserved=1.25, joined=2.0, first_step=4.0)
PREFILL = timeline("p", run_received=7.0, prefix_fetched=7.5, prefill_begun=9.0, last_chunk_computed=10.0)


def test_times_of_a_prompt_that_was_built_elsewhere_are_of_one_clock_each() -> None:
    times = request_times((ROUTER, DECODE, PREFILL))
    assert times.ttft_s == 4.0
    assert times.queue_s == 0.5 + 0.25 + 1.5  # the router, the pool, the prefill pod without its fetch
    assert times.prefill_s == 0.5 + 1.0
    assert times.decode_s == 6.0
    assert times.e2e_s == 10.0


def test_times_of_a_prompt_that_was_built_where_it_decodes() -> None:
    times = request_times((ROUTER, DECODE))
    assert (times.queue_s, times.prefill_s) == (0.75, 2.0)


def test_what_was_not_stamped_is_not_made_up() -> None:
    times = request_times((timeline("r", received=1.0),))
    assert (times.ttft_s, times.queue_s, times.prefill_s, times.decode_s, times.e2e_s) == (None,) * 5
    assert request_times((timeline("r", first_token=1.0, last_token=2.0),)).e2e_s is None
    assert request_times((timeline("r", received=1.0, first_token=2.0),)).e2e_s is None


@pytest.mark.parametrize(
    ("timelines", "queue_s", "prefill_s"),
    [
        ((ROUTER,), 0.5, None),
        ((ROUTER, timeline("d")), 0.5, None),
        ((ROUTER, timeline("d"), timeline("p")), 0.5, None),
        ((ROUTER, DECODE, timeline("p")), 0.75, None),
        ((timeline("r"), DECODE), None, 2.0),
        ((timeline("r"), DECODE, PREFILL), None, 1.5),
        # Nothing was fetched: all from the arrival was waiting.
        ((ROUTER, timeline("d"), timeline("p", run_received=7.0, prefill_begun=9.0)), 2.5, None),
        ((ROUTER, timeline("d"), timeline("p", prefill_begun=9.0, last_chunk_computed=10.0)), 0.5, 1.0),
        # A fetch that ended after the turn came: nothing was waited for.
        ((ROUTER, timeline("d"), timeline("p", run_received=7.0, prefix_fetched=9.0, prefill_begun=8.0)), 0.5, None),
    ],
)
def test_what_one_process_did_not_stamp_leaves_what_the_others_did(
    timelines: tuple[Timeline, ...], queue_s: float | None, prefill_s: float | None
) -> None:
    times = request_times(timelines)
    assert (times.queue_s, times.prefill_s) == (queue_s, prefill_s)


STAMPED = (ROUTER, DECODE, PREFILL)


def finished(
    *reasons: FinishReason,
    tokens: int = 4,
    report: Report | None = None,
    timelines: tuple[Timeline, ...] = STAMPED,
) -> Finished:
    return Finished(
        endings=tuple(Ending(finish_reason=reason) for reason in reasons),
        usage=Usage(prompt_tokens=7, completion_tokens=tokens * len(reasons), cached_tokens=0),
        prompt=(1,) * 7,
        attempts=1,
        predicted_cached_tokens=0,
        timelines=timelines,
        report=report,
        longest=tokens,
    )


SAMPLING = SamplingParams(max_tokens=16, n=2)


def read_s(told: Distribution, share: float) -> float:
    """Return a quantile as Prometheus' histogram_quantile reads it: in proportion between two bounds."""
    rank, low, below = share * told.count, 0.0, 0
    for high, count in told.buckets():
        if count >= rank:
            return low + (high - low) * (rank - below) / (count - below)
        low, below = high, count
    raise AssertionError("the last bucket has all")


@pytest.mark.parametrize("took_s", [0.0008, 0.002, 0.007, 0.02, 0.06, 0.15, 0.4, 3.0, 100.0])
def test_what_a_dashboard_reads_of_parts_is_near_what_they_took(took_s: float) -> None:
    """All took as long, so every quantile should read as that: no bound is more than five times the one before."""
    router = timeline("r", received=0.0, tokenized=0.0, placed=took_s, first_token=took_s, last_token=2 * took_s)
    prefill = timeline("p", run_received=0.0, prefill_begun=0.0, last_chunk_computed=took_s)
    counts = RequestCounts(NO_TARGETS)
    for _ in range(20):
        counts.finished(finished(timelines=(router, timeline("d"), prefill)), SAMPLING, "text_completion")
    parts = {"queue": 1, "prefill": 1, "decode": 1, "inference": 2, "e2e": 2}
    for name, times in parts.items():
        told: Distribution = getattr(counts, f"{name}_s")
        assert told.total == pytest.approx(20 * times * took_s)
        for share in (0.5, 0.95, 0.99):
            assert 1 / 5 <= read_s(told, share) / (times * took_s) <= 5, (name, share)


def test_each_answer_has_its_ending() -> None:
    counts = RequestCounts(NO_TARGETS)
    counts.finished(finished(FinishReason.STOP, FinishReason.LENGTH), SAMPLING, "chat")
    counts.failed(Cancelled("gone"), "chat", 1.0)
    counts.failed(EngineFailed("broken"), "chat", 2.0)
    counts.failed(EngineFailed("broken"), "chat", 2.0)
    assert counts.endings == {"stop": 1, "length": 1, "abort": 1, "error": 2}
    assert counts.otel_duration_s["chat", ""].total == 10.0
    assert counts.otel_duration_s["chat", EngineFailed.cause].total == 4.0


def test_what_a_pod_calls_a_placement_is_held_to_bounds() -> None:
    """A pod that was taken over may say anything: its words would be series for ever."""
    counts = RequestCounts(NO_TARGETS)
    for number in range(100):
        report = Report(placement=f"{number} is no placement" + "x" * 1000, transport="y" * 1000)
        counts.finished(finished(FinishReason.STOP, report=report), SAMPLING, "chat")
    assert len(counts.placements) == MAX_PLACEMENTS + 1
    assert counts.placements["other", "other"] == 100 - MAX_PLACEMENTS
    assert max(len(label) for labels in counts.placements for label in labels) == MAX_LABEL_CHARS


def test_a_finished_request_is_counted_by_its_sizes_and_its_times() -> None:
    counts = RequestCounts(NO_TARGETS)
    counts.finished(finished(FinishReason.STOP, FinishReason.LENGTH), SAMPLING, "chat")
    sizes = counts.prompt, counts.output, counts.longest, counts.max_tokens, counts.answers
    assert [(each.count, each.total) for each in sizes] == [(1, 7), (1, 8), (1, 4), (1, 16), (1, 2)]
    assert (counts.otel_tokens["chat", "input"].total, counts.otel_tokens["chat", "output"].total) == (7, 8)
    times = (
        (counts.ttft_s, 4.0), (counts.otel_ttft_s["chat"], 4.0), (counts.e2e_s, 10.0),
        (counts.otel_duration_s["chat", ""], 10.0), (counts.queue_s, 2.25), (counts.prefill_s, 1.5),
        (counts.decode_s, 6.0), (counts.inference_s, 7.5), (counts.tpot_s, 2.0), (counts.otel_tpot_s["chat"], 2.0),
    )  # fmt: skip
    assert [(each.count, each.total) for each, _ in times] == [(1, seconds) for _, seconds in times]
    assert counts.gap_s.count == 0, "gaps are told by whoever sees them"
    assert list(counts.gap_s.buckets()) == list(RequestCounts(NO_TARGETS).tpot_s.buckets())


@pytest.mark.parametrize(
    ("timelines", "tokens", "inference", "tpot"),
    [
        (STAMPED, 1, [7.5], []),  # after a single token comes no other
        (STAMPED, 2, [7.5], [6.0]),
        (STAMPED, 3, [7.5], [3.0]),
        ((ROUTER,), 2, [], [6.0]),
        ((timeline("r"), DECODE), 2, [], []),
        ((timeline("r"),), 2, [], []),
    ],
)
def test_what_a_request_did_not_tell_is_not_counted(
    timelines: tuple[Timeline, ...], tokens: int, inference: list[float], tpot: list[float]
) -> None:
    counts = RequestCounts(Targets(ttft_s=100.0, tpot_s=100.0))
    counts.finished(finished(FinishReason.STOP, tokens=tokens, timelines=timelines), SAMPLING, "chat")
    assert (counts.inference_s.count, counts.inference_s.total) == (len(inference), sum(inference))
    assert (counts.tpot_s.count, counts.tpot_s.total) == (len(tpot), sum(tpot))
    assert counts.slo["tpot", "met"] == len(tpot)
    assert counts.slo["ttft", "met"] == (1 if ROUTER in timelines else 0)
    assert (counts.slo["tpot", "missed"], counts.slo["ttft", "missed"]) == (0, 0)


def test_only_what_travelled_has_a_transfer() -> None:
    counts = RequestCounts(NO_TARGETS)
    shipped = Report(placement="remote", transport="shm", transfer_s=0.5, exposed_s=0.25)
    counts.finished(finished(FinishReason.STOP, report=shipped), SAMPLING, "chat")
    counts.finished(finished(FinishReason.STOP, report=Report(placement="local")), SAMPLING, "chat")
    assert counts.placements == {("remote", "shm"): 1, ("local", ""): 1}
    assert (counts.exposed_s.count, counts.exposed_s.total, counts.transfer_s.total) == (1, 0.25, 0.5)


@pytest.mark.parametrize(
    ("error", "is_missed"),
    [
        (EngineFailed("broken"), True),
        (Overloaded("full"), True),
        (Refused(Reason.QUEUE_FULL, "full", retry_after_s=1.0), True),
        (Refused(Reason.TENANT_TOKENS, "yours", retry_after_s=1.0), False),
        (InvalidRequest("what?"), False),
        (Cancelled("gone"), False),
    ],
)
def test_a_caller_does_not_spend_our_error_budget(error: PagewireError, is_missed: bool) -> None:
    counts = RequestCounts(NO_TARGETS)
    counts.failed(error, "chat", 1.0)
    assert counts.slo == {("availability", "met"): 0, ("availability", "missed"): int(is_missed)}


def test_a_promise_is_kept_or_not() -> None:
    counts = RequestCounts(Targets(ttft_s=4.0, gap_s=0.0, tpot_s=1.5))
    counts.finished(finished(FinishReason.STOP), SAMPLING, "chat")
    assert counts.slo["ttft", "met"] == 1
    assert counts.slo["tpot", "missed"] == 1
    assert counts.slo["availability", "met"] == 1


def test_only_what_was_promised_is_kept_or_not() -> None:
    counts = RequestCounts(NO_TARGETS)
    counts.finished(finished(FinishReason.STOP), SAMPLING, "chat")
    assert counts.slo == {("availability", "met"): 1, ("availability", "missed"): 0}
    short = RequestCounts(Targets(ttft_s=0.5))
    assert short.slo == dict.fromkeys(((name, word) for name in ("availability", "ttft") for word in WORDS_OF_SLO), 0)
    short.finished(finished(FinishReason.STOP), SAMPLING, "chat")
    assert (short.slo["ttft", "met"], short.slo["ttft", "missed"]) == (0, 1)


@dataclass(eq=False)
class Running:
    num_prompt: int
    num_output: int
    has_begun: bool


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.booleans()), max_size=6))
def test_a_token_is_counted_once_whether_its_request_runs_or_not(requests: list[tuple[int, int, bool]]) -> None:
    counts = RequestCounts(NO_TARGETS)
    running = [Running(*each) for each in requests]
    for each in running:
        counts.enter(each)
    expected = sum(p for p, _, begun in requests if begun), sum(out for _, out, _ in requests)
    assert (counts.prompt_tokens, counts.output_tokens) == expected
    for each in running:
        counts.leave(each)
        assert (counts.prompt_tokens, counts.output_tokens) == expected
