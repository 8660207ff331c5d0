"""W3C's traceparent is read by the letter, whoever wrote it; and a trace is wanted or not wherever that is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from pagewire.core.trace_context import TraceContext, is_in_ratio

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
IDS = st.integers(1, (1 << 128) - 1).map(lambda number: f"{number:032x}")


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # what other flags say is others' business
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
        (f"cc-{TRACE}-{SPAN}-01-".ljust(512, "x"), True),
        (f"00-{TRACE}-{SPAN}-ff", True),
    ],
)
def test_what_is_a_header_is_read(header: str, is_sampled: bool) -> None:
    assert TraceContext.parse(header) == TraceContext(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",  # of the version that we know
        f"cc-{TRACE}-{SPAN}-01.more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE[:-1]}\u0661-{SPAN}-01",  # a digit, and not one of ours
        f"cc-{TRACE}-{SPAN}-01-".ljust(513, "x"),
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 10_000,
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_is_none_is_none(header: str) -> None:
    assert TraceContext.parse(header) is None


@pytest.mark.parametrize("trace_id", [TRACE, "f" * 32, "0" * 31 + "1"])
@pytest.mark.parametrize("span_id", [SPAN, "f" * 16, "1" + "0" * 15])
def test_every_id_but_0_is_one(trace_id: str, span_id: str) -> None:
    assert TraceContext.parse(f"00-{trace_id}-{span_id}-01") == TraceContext(trace_id, span_id, True)


def test_what_is_below_a_span_is_of_its_trace() -> None:
    for is_sampled in (False, True):
        assert TraceContext(TRACE, "", is_sampled).below(SPAN) == TraceContext(TRACE, SPAN, is_sampled)


@given(st.text())
def test_any_text_is_read_or_not(header: str) -> None:
    found = TraceContext.parse(header)
    assert found is None or TraceContext.parse(found.header) == found


@given(IDS, st.booleans())
def test_what_is_written_is_read(trace_id: str, is_sampled: bool) -> None:
    context = TraceContext(trace_id, SPAN, is_sampled)
    assert TraceContext.parse(context.header) == context


@given(IDS, st.floats(0, 1))
def test_the_ratio_is_decided_as_opentelemetry_does(trace_id: str, ratio: float) -> None:
    theirs = TraceIdRatioBased(ratio).should_sample(None, int(trace_id, 16), "any")
    assert is_in_ratio(trace_id, ratio) == (theirs.decision is Decision.RECORD_AND_SAMPLE)


@pytest.mark.parametrize(
    ("low", "ratio", "is_in"),
    [
        (0, 0.5, True),
        ((1 << 63) - 1, 0.5, True),
        (1 << 63, 0.5, False),
        ((1 << 62) - 1, 0.25, True),
        (1 << 62, 0.25, False),
        ((1 << 64) - 1, 0.75, False),
        ((1 << 64) - 1, 1.0, True),
        (0, 0.0, False),
    ],
)
def test_the_lowest_64_bits_alone_decide(low: int, ratio: float, is_in: bool) -> None:
    for high in (0, 1, 0xFFFF_FFFF_FFFF_FFFF):
        assert is_in_ratio(f"{high:016x}{low:016x}", ratio) is is_in


@given(IDS)
def test_all_and_none_are_what_they_say(trace_id: str) -> None:
    assert is_in_ratio(trace_id, 1.0)
    assert not is_in_ratio(trace_id, 0.0)
