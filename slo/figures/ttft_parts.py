"""Where the time to the first token went, from the stamps that came with an answer. Pure.

Intervals are between two stamps of one process; what lies between processes is in none of them. A first token does not
wait for the KV: so what the transfer and the first step on the decode pod take, the second token waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.core.timeline import Phase, Timeline

ROUTER, ADMISSION, QUEUE, COMPUTE, HERE = "router", "admission", "prefill_queue", "compute", "queue_and_compute"
TRANSFER, FIRST_STEP = "exposed_transfer", "first_step"
BEFORE = (ROUTER, ADMISSION, QUEUE, COMPUTE, HERE)  # the first token, in the order in which they come
BEHIND = (TRANSFER, FIRST_STEP)  # the first token, and before the second
PARTS = (*BEFORE, *BEHIND)


def ttft_parts_s(timelines: Sequence[Timeline]) -> dict[str, float] | None:
    """Return seconds of every one of PARTS, 0 of what did not happen; None where too little was stamped.

    `timelines` are the router's, the decode pod's and, of a prompt that was built elsewhere, the prefill pod's. A
    prompt that is built where it decodes has "queue_and_compute": those are not told apart there.
    """
    router, decode = _stamped(timelines, Phase.RECEIVED), _stamped(timelines, Phase.ACCEPTED)
    prefill = _stamped(timelines, Phase.RUN_RECEIVED)
    if router is None or decode is None or router.between_s(Phase.RECEIVED, Phase.FIRST_TOKEN) is None:
        return None
    found = dict.fromkeys(PARTS, 0.0)
    found[ROUTER] = router.between_s(Phase.RECEIVED, Phase.SUBMITTED) or 0.0
    found[ADMISSION] = decode.between_s(Phase.ACCEPTED, Phase.RESERVED) or 0.0
    step_s = decode.between_s(Phase.JOINED, Phase.FIRST_STEP) or 0.0
    begun_s = None if prefill is None else prefill.between_s(Phase.RUN_RECEIVED, Phase.PREFILL_BEGUN)
    if prefill is None or begun_s is None:
        return found | {HERE: step_s}
    fetched_s = prefill.between_s(Phase.RUN_RECEIVED, Phase.PREFIX_FETCHED) or 0.0
    found[QUEUE] = max(0.0, begun_s - fetched_s)
    found[COMPUTE] = fetched_s + (prefill.between_s(Phase.PREFILL_BEGUN, Phase.LAST_CHUNK_COMPUTED) or 0.0)
    found[TRANSFER] = max(0.0, decode.between_s(Phase.FIRST_TOKENS_RECEIVED, Phase.JOINED) or 0.0)
    return found | {FIRST_STEP: step_s}


def _stamped(timelines: Sequence[Timeline], phase: Phase) -> Timeline | None:
    return next((each for each in timelines if any(stamp.phase is phase for stamp in each.stamps)), None)
