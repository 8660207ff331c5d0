"""What a simulated request came to, in the words in which the router learns from real ones."""

from __future__ import annotations

from pagewire.core.report import Report
from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.router.events import Finished, Usage
from pagewire.slo.simulation.request import SimRequest


def timelines(request: SimRequest) -> tuple[Timeline, ...]:
    """Return the stamps of an answered request: the router's, the decode pod's, and those of who built its prompt."""
    assert request.placed is not None
    found = [
        _timeline(
            "router",
            {
                Phase.RECEIVED: request.due_s,
                Phase.SUBMITTED: request.submitted_s,
                Phase.FIRST_TOKEN: request.tokens_s[0],
                Phase.LAST_TOKEN: request.tokens_s[-1],
            },
        ),
        _timeline(
            request.placed.decode.pod_id,
            {
                Phase.ACCEPTED: request.accepted_s,
                Phase.RESERVED: request.reserved_s,
                Phase.FIRST_TOKENS_RECEIVED: request.first_received_s,
                Phase.JOINED: request.joined_s,
                Phase.FIRST_STEP: request.first_step_s,
            },
        ),
    ]
    if request.prefill_pod:
        found.append(
            _timeline(
                request.prefill_pod,
                {
                    Phase.RUN_RECEIVED: request.run_received_s,
                    Phase.PREFILL_BEGUN: request.prefill_begun_s,
                    Phase.LAST_CHUNK_COMPUTED: request.prefilled_s,
                },
            )
        )
    return tuple(found)


def finished(request: SimRequest) -> Finished:
    """Return the last event of a request that was answered."""
    assert request.placed is not None
    num_prompt, num_output = len(request.asked.prompt), len(request.tokens_s)
    return Finished(
        endings=(),
        longest=num_output,
        usage=Usage(prompt_tokens=num_prompt, completion_tokens=num_output, cached_tokens=request.cached_tokens),
        prompt=request.asked.prompt,
        attempts=request.attempts,
        predicted_cached_tokens=request.placed.placement.cached_tokens,
        timelines=timelines(request),
        report=Report(
            placement="remote" if request.prefill_pod else "local",
            prefill_pod=request.prefill_pod,
            decode_pod=request.placed.decode.pod_id,
            prompt_tokens=num_prompt,
        ),
    )


def _timeline(process: str, at_s: dict[Phase, float | None]) -> Timeline:
    stamps = tuple(Stamp(phase, when_s) for phase, when_s in at_s.items() if when_s is not None)
    return Timeline(process=process, stamps=stamps)
