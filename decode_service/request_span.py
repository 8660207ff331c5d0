"""A decode pod's part of a request as a trace shows it, and what is noted of its steps meanwhile.

Notes are made only for requests that are traced, and they stay few however long an answer gets: one of every
`MARK_EVERY` steps, doubled whenever there are `MAX_MARKS`. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagewire.core.errors import ErrorInfo
from pagewire.core.report import Report
from pagewire.core.span import Attribute, Mark, Span, SpanKind, between, mark
from pagewire.core.timeline import Phase, Timeline

MARK_EVERY = 16
MAX_MARKS = 64
MAX_CHUNKS = 128


class StepNotes:
    """What steps did for one request: prompt chunks computed here, tokens sampled here, preemptions."""

    def __init__(self) -> None:
        self.num_steps = 0  # that sampled
        self.num_tokens = 0
        self.num_preempted = 0
        self._every = MARK_EVERY
        self._began_s: float | None = None
        self._ended_s = 0.0
        self._marks: list[Mark] = []
        self._preempted: list[Mark] = []
        self._chunks: list[Span] = []

    def chunk(self, num_tokens: int, start_s: float, end_s: float) -> None:
        """A step computed some of the prompt."""
        if len(self._chunks) < MAX_CHUNKS:
            span = Span(name="chunk", start_s=start_s, end_s=end_s, attributes={"pagewire.tokens": num_tokens})
            self._chunks.append(span)

    def sampled(self, num_tokens: int, start_s: float, end_s: float) -> None:
        """A step sampled some tokens of the answer."""
        if self._began_s is None:
            self._began_s = start_s
        self._ended_s = end_s
        self.num_steps += 1
        self.num_tokens += num_tokens
        if self.num_steps == 1 or self.num_steps % self._every == 0:
            self._marks.append(Mark(name="step", at_s=end_s, attributes={"pagewire.tokens": self.num_tokens}))
        if len(self._marks) == MAX_MARKS:
            self._marks = self._marks[:1] + self._marks[2::2]
            self._every *= 2

    def preempted(self, now_s: float) -> None:
        """It had to give way."""
        self.num_preempted += 1
        if len(self._preempted) < MAX_MARKS:
            self._preempted.append(Mark(name="preempted", at_s=now_s))

    def spans(self, joined_s: float | None) -> Iterator[Span]:
        """Yield the wait for the first chunk, the chunks, and the steps; `joined_s` is when it went to the engine."""
        if self._chunks and joined_s is not None:
            yield Span(name="queue", start_s=joined_s, end_s=max(joined_s, self._chunks[0].start_s))
        yield from self._chunks
        if self._began_s is not None:
            yield Span(
                name="decode_steps",
                start_s=self._began_s,
                end_s=self._ended_s,
                attributes={
                    "pagewire.steps": self.num_steps,
                    "pagewire.tokens": self.num_tokens,
                    "pagewire.preemptions": self.num_preempted,
                },
                marks=tuple(sorted((*self._marks, *self._preempted), key=lambda each: each.at_s)),
            )


def request_span(
    timeline: Timeline, report: Report, shipments: tuple[Span, ...], notes: StepNotes, *, failure: ErrorInfo | None
) -> Span:
    """Return the span of a request that is over; `failure` is what its router was told."""
    at_s = {stamp.phase: stamp.at_s for stamp in timeline.stamps}
    first_token = Phase.FIRST_TOKENS_RECEIVED if Phase.FIRST_TOKENS_RECEIVED in at_s else Phase.FIRST_STEP
    attributes: dict[str, Attribute] = {
        "pagewire.placement": report.placement,
        "pagewire.prompt_tokens": report.prompt_tokens,
        "pagewire.cached_tokens": report.decode_cached_tokens,
        "pagewire.fetched_tokens": report.decode_fetched_tokens,
        "pagewire.computed_tokens": report.decode_computed_tokens,
        "pagewire.predicted_local_s": report.predicted_local_s,
        "pagewire.predicted_remote_s": report.predicted_remote_s,
    }
    if report.causes:
        attributes["pagewire.lost_by"] = report.causes
    return Span(
        name="decode",
        start_s=at_s[Phase.ACCEPTED],
        end_s=at_s[Phase.FINISHED],
        attributes=attributes,
        marks=(*mark("first_token", timeline, first_token), *mark("joined", timeline, Phase.JOINED)),
        parts=(
            *between("reserve", timeline, Phase.ACCEPTED, Phase.RESERVED),
            *shipments,
            *notes.spans(at_s.get(Phase.JOINED)),
        ),
        kind=SpanKind.SERVER,
        error=failure.cause if failure is not None else "",
    )
