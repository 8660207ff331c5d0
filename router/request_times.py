"""Where the time of a finished request went: queues, prefill, decode. Pure.

Intervals are between two stamps of one process, so what a message takes on its way is in none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.core.timeline import Phase, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """Seconds; None is what was not stamped.

    `queue_s` is the wait for a place in the router, for blocks and for the prefill pod's turn. A pod that builds a
    prompt where it decodes does not tell its queue from its computing: both are `prefill_s` then. `decode_s` is what
    follows the first token.
    """

    ttft_s: float | None
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None

    @property
    def e2e_s(self) -> float | None:
        """From the arrival to the last token."""
        return None if self.ttft_s is None or self.decode_s is None else self.ttft_s + self.decode_s


def request_times(timelines: Sequence[Timeline]) -> RequestTimes:
    """Return what the router's timeline and those of the pods say: the decode pod's, then the prefill pod's, if any."""
    router, *pods = timelines
    queue_s = router.between_s(Phase.TOKENIZED, Phase.PLACED)
    prefill_s = None
    if pods and queue_s is not None:
        queue_s += pods[0].between_s(Phase.ACCEPTED, Phase.RESERVED) or 0.0
    if len(pods) > 1:
        waited_s, prefill_s = prefill_times(pods[1])
        if waited_s is not None and queue_s is not None:
            queue_s += waited_s
    elif pods:
        prefill_s = pods[0].between_s(Phase.JOINED, Phase.FIRST_STEP)
    return RequestTimes(
        ttft_s=router.between_s(Phase.RECEIVED, Phase.FIRST_TOKEN),
        queue_s=queue_s,
        prefill_s=prefill_s,
        decode_s=router.between_s(Phase.FIRST_TOKEN, Phase.LAST_TOKEN),
    )


def prefill_times(prefill: Timeline) -> tuple[float | None, float | None]:
    """Return what a prefill pod's timeline says: the wait for its turn, and the seconds of fetching and computing."""
    fetched_s = prefill.between_s(Phase.RUN_RECEIVED, Phase.PREFIX_FETCHED) or 0.0
    begun_s = prefill.between_s(Phase.RUN_RECEIVED, Phase.PREFILL_BEGUN)
    computed_s = prefill.between_s(Phase.PREFILL_BEGUN, Phase.LAST_CHUNK_COMPUTED)
    return (
        None if begun_s is None else max(0.0, begun_s - fetched_s),
        None if computed_s is None else fetched_s + computed_s,
    )
