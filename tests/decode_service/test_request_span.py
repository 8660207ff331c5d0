"""What is noted of a traced request's steps: all of it counted, few of it kept; and nothing of those that are not."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.errors import Cancelled, ErrorInfo
from pagewire.core.report import Report
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.decode_service.request_span import MARK_EVERY, MAX_CHUNKS, MAX_MARKS, StepNotes, request_span


@given(st.integers(1, 20_000), st.integers(1, 4))
def test_however_long_an_answer_gets_its_marks_are_few_and_evenly_spread(num_steps: int, per_step: int) -> None:
    notes = StepNotes()
    for step in range(1, num_steps + 1):
        notes.sampled(per_step, float(step - 1), float(step))
    (span,) = notes.spans(0.0)
    assert (span.start_s, span.end_s) == (0.0, float(num_steps))
    assert span.attributes["pagewire.steps"] == num_steps
    assert span.attributes["pagewire.tokens"] == num_steps * per_step
    assert len(span.marks) < MAX_MARKS
    first, *others = span.marks
    assert first.at_s == 1.0
    gaps = {later.at_s - earlier.at_s for earlier, later in itertools.pairwise(others)}
    assert len(gaps) <= 1
    assert all(mark.attributes["pagewire.tokens"] == mark.at_s * per_step for mark in span.marks)
    assert len(others) >= min(num_steps // MARK_EVERY, MAX_MARKS // 2 - 2)


def test_preemptions_are_marks_and_a_flood_of_them_is_counted() -> None:
    notes = StepNotes()
    notes.sampled(1, 0.0, 1.0)
    for at in range(2 * MAX_MARKS):
        notes.preempted(1.5 + at / 1000)
    notes.sampled(1, 2.0, 3.0)
    (span,) = notes.spans(0.0)
    assert span.attributes["pagewire.preemptions"] == 2 * MAX_MARKS
    names = [mark.name for mark in span.marks]
    assert names == ["step", *["preempted"] * MAX_MARKS]
    assert [mark.at_s for mark in span.marks] == sorted(mark.at_s for mark in span.marks)


def test_a_prompt_that_is_computed_here_shows_its_wait_and_its_chunks() -> None:
    notes = StepNotes()
    for at in range(MAX_CHUNKS + 5):
        notes.chunk(40, 2.0 + at, 3.0 + at)
    queue, *chunks = notes.spans(1.0)
    assert (queue.name, queue.start_s, queue.end_s) == ("queue", 1.0, 2.0)
    assert len(chunks) == MAX_CHUNKS
    assert {chunk.attributes["pagewire.tokens"] for chunk in chunks} == {40}


def test_a_request_that_ended_before_it_joined_is_a_span_with_its_cause() -> None:
    watch = Stopwatch("d0")
    for at, phase in enumerate((Phase.ACCEPTED, Phase.RESERVED, Phase.FINISHED)):
        watch.stamp(phase, float(at))
    span = request_span(
        watch.timeline(), Report(placement="local"), (), StepNotes(), failure=ErrorInfo.of(Cancelled("gone"))
    )
    assert (span.start_s, span.end_s, span.error) == (0.0, 2.0, "cancelled")
    assert [part.name for part in span.parts] == ["reserve"]
