"""A traced request in the router, and its part of the trace in the words of OpenTelemetry's gen_ai conventions.

The span is made once, of what a life has come to; what was asked and answered is not in it, only how much. Invariant:
what its pods are told lies below it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagewire.core.errors import PagewireError
from pagewire.core.span import Attribute, Span, SpanKind, between, mark
from pagewire.core.timeline import Phase, Timeline
from pagewire.core.trace_context import TraceContext
from pagewire.router.ask import Ask
from pagewire.router.life import Life, Try
from pagewire.serving.tracing import Tracing, new_span_id

PROVIDER = "pagewire"
MAX_CHARS = 256


class RequestTrace:
    """One request that is traced, from its arrival to its end; `below` is where its attempts belong."""

    def __init__(self, tracing: Tracing, ask: Ask, above: TraceContext) -> None:
        self.below = above.below(new_span_id())
        self._tracing = tracing
        self._ask = ask
        self._above = above

    @classmethod
    def begin(cls, tracing: Tracing, ask: Ask) -> RequestTrace | None:
        """Return the trace of what is asked; None where nobody wants one."""
        above = tracing.begin(ask.traceparent)
        return cls(tracing, ask, above) if above is not None else None

    def end(self, timeline: Timeline, life: Life | None, end_s: float, failure: PagewireError | None) -> None:
        """Show it; `life` is None when it came to none, `failure` when there was none."""
        outcome = failure.cause if failure is not None else ""
        span = _span(self._ask, timeline, life, span_id=self.below.span_id, end_s=end_s, outcome=outcome)
        self._tracing.record(span, self._above)


def _span(ask: Ask, timeline: Timeline, life: Life | None, *, span_id: str, end_s: float, outcome: str) -> Span:
    served = life.model.title if life is not None else ""
    return Span(
        # What was never checked may be anything, and of any length.
        name=f"{ask.operation} {served}".rstrip(),
        start_s=timeline.stamps[0].at_s,
        end_s=end_s,
        attributes={
            "gen_ai.operation.name": ask.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": (ask.model or served)[:MAX_CHARS],
            "pagewire.request_id": ask.request_id[:MAX_CHARS],
            **({"pagewire.correlation_id": ask.correlation_id} if ask.correlation_id else {}),
            **({**_asked(ask), **_answered(life)} if life is not None else {}),
        },
        marks=(
            *mark("first_token", timeline, Phase.FIRST_TOKEN),
            *mark("last_token", timeline, Phase.LAST_TOKEN),
        ),
        parts=(
            *between("tokenize", timeline, Phase.RECEIVED, Phase.TOKENIZED),
            *between("look_up", timeline, Phase.TOKENIZED, Phase.LOOKED_UP),
            *(part for each in (life.tries if life is not None else ()) for part in _try(each, end_s, outcome)),
        ),
        kind=SpanKind.SERVER,
        span_id=span_id,
        error=outcome,
    )


def _asked(ask: Ask) -> dict[str, Attribute]:
    told = {
        "gen_ai.request.max_tokens": ask.max_tokens,
        "gen_ai.request.temperature": ask.temperature,
        "gen_ai.request.top_p": ask.top_p,
        "gen_ai.request.top_k": ask.top_k,
        "gen_ai.request.presence_penalty": ask.presence_penalty,
        "gen_ai.request.frequency_penalty": ask.frequency_penalty,
        "gen_ai.request.seed": ask.seed,
        "gen_ai.request.choice.count": ask.n if (ask.n or 1) > 1 else None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _answered(life: Life) -> dict[str, Attribute]:
    reasons = tuple(
        each.ending.finish_reason.value
        for each in life.sequences
        if each.ending is not None and each.ending.finish_reason is not None
    )
    return {
        "gen_ai.response.model": life.request.adapter or life.prefix.fingerprint.model_name,
        "gen_ai.response.finish_reasons": reasons,
        "gen_ai.usage.input_tokens": len(life.request.prompt),
        "gen_ai.usage.output_tokens": life.num_output,
        "pagewire.attempts": life.attempt,
        "pagewire.predicted_cached_tokens": life.predicted_cached_tokens,
    }


def _try(each: Try, end_s: float, outcome: str) -> Iterator[Span]:
    """Yield the wait for pods, and what followed where there were any."""
    placed = each.placed
    if placed is None:
        yield Span(name="place", start_s=each.began_s, end_s=end_s, error=outcome)
        return
    yield Span(name="place", start_s=each.began_s, end_s=each.placed_s)
    yield Span(
        name="attempt",
        start_s=each.placed_s,
        end_s=each.ended_s if each.ended_s is not None else end_s,
        attributes={
            "pagewire.decode_pod": placed.decode.pod_id,
            "pagewire.prefill_pods": tuple(candidate.pod_id for candidate in placed.placement.candidates),
            "pagewire.cached_tokens": placed.placement.cached_tokens,
        },
        kind=SpanKind.CLIENT,
        span_id=each.span_id,
        error=each.error,
    )
