"""What a cluster's router stamped of each request, as a receiver of its traces has it: the server's own clock.

A run of another process's client is held against it request by request, so that what a client reads is told apart
from how quick the cluster was meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection

from load_peers import Timed
from otlp_receiver import Got, OtlpReceiver


def served_times(receiver: OtlpReceiver, request_ids: Collection[str]) -> dict[str, Timed]:
    """Return these requests by their ids; waits until the router has sent them all."""
    wanted = set(request_ids)
    spans = receiver.wait(lambda spans: wanted <= _by_id(spans).keys())
    return {each: _timed(each, span) for each, span in _by_id(spans).items() if each in wanted}


def _by_id(spans: list[Got]) -> dict[str, Got]:
    return {
        span.attributes["pagewire.request_id"]: span
        for span in spans
        if "gen_ai.usage.output_tokens" in span.attributes
    }


def _timed(request_id: str, span: Got) -> Timed:
    at_s = {name: time_s for name, time_s, _ in span.events}
    output = span.attributes["gen_ai.usage.output_tokens"]
    return Timed(
        request_id=request_id,
        ttft_ms=1e3 * (at_s["first_token"] - span.start_s),
        tpot_ms=1e3 * (at_s["last_token"] - at_s["first_token"]) / (output - 1),
        input_tokens=span.attributes["gen_ai.usage.input_tokens"],
        output_tokens=output,
    )
