"""What a simulated request came to, in the words in which the router learns from real ones."""

from __future__ import annotations

from pagewire.core.report import Report
from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.router.events import Finished, Usage
from pagewire.slo.simulation.request import SimRequest


def finished(request: SimRequest) -> Finished:
    """Return the last event of a request that was answered."""
    assert request.placed is not None
    is_remote = bool(request.prefill_pod)
    timelines = [
        _timeline(
            "router",
            {
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
                Phase.FIRST_STEP: request.first_step_s,
            },
        ),
    ]
    if is_remote:
        timelines.append(
            _timeline(
                request.prefill_pod,
                {
                    Phase.RUN_RECEIVED: request.run_received_s,
                    Phase.PREFILL_BEGUN: request.prefill_begun_s,
                    Phase.LAST_CHUNK_COMPUTED: request.prefilled_s,
                },
            )
        )
    num_prompt, num_output = len(request.asked.prompt), len(request.tokens_s)
    return Finished(
        endings=(),
        longest=num_output,
        usage=Usage(prompt_tokens=num_prompt, completion_tokens=num_output, cached_tokens=request.cached_tokens),
        prompt=request.asked.prompt,
        attempts=request.attempts,
        predicted_cached_tokens=request.placed.placement.cached_tokens,
        timelines=tuple(timelines),
        report=Report(
            placement="remote" if is_remote else "local",
            prefill_pod=request.prefill_pod,
            decode_pod=request.placed.decode.pod_id,
            prompt_tokens=num_prompt,
        ),
    )


def _timeline(process: str, at_s: dict[Phase, float | None]) -> Timeline:
    stamps = tuple(Stamp(phase, when_s) for phase, when_s in at_s.items() if when_s is not None)
    return Timeline(process=process, stamps=stamps)
