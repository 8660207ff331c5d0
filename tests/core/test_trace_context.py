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
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 10_000,
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_is_none_is_none(header: str) -> None:
    assert TraceContext.parse(header) is None


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


@given(IDS)
def test_all_and_none_are_what_they_say(trace_id: str) -> None:
    assert is_in_ratio(trace_id, 1.0)
    assert not is_in_ratio(trace_id, 0.0)
