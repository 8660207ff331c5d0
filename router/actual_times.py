"""What a finished request really took, part by part, from the stamps that came back with it. Pure.

Intervals are between two stamps of one process. Parts add up to the time from submission to the first token as the
router saw it: what neither waited for a pod nor computed on one is the relay's. What was not stamped is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.core.timeline import Phase, Timeline
from pagewire.router.prediction import Prediction, Way
from pagewire.router.request_times import prefill_times


def actual_times(
    way: Way, router: Timeline, pods: Sequence[Timeline], tokens: int, predicted: Prediction
) -> dict[str, float]:
    """Return seconds by part; `pods` are the decode pod's timeline and, if it was remote, the prefill pod's.

    `tokens` are those of the longest sequence. A pod that builds a prompt itself does not tell queue and compute apart:
    they are divided as `predicted` was.
    """
    if not pods or (way is Way.REMOTE and len(pods) < 2):
        return {}
    decode = pods[0]
    found = _remote(decode, pods[1]) if way is Way.REMOTE else _local(decode, predicted)
    first_s = router.between_s(Phase.SUBMITTED, Phase.FIRST_TOKEN)
    if first_s is not None and {"queue_s", "prefill_s"} <= found.keys():
        found["relay_s"] = first_s - found["queue_s"] - found["prefill_s"]
    rest_s = router.between_s(Phase.FIRST_TOKEN, Phase.LAST_TOKEN)
    gap_s = found.get("gap_s")
    if rest_s is not None and gap_s is not None and tokens > 2:
        found["tpot_s"] = (rest_s - gap_s) / (tokens - 2)
    elif rest_s is not None and way is Way.LOCAL and tokens > 1:
        found["tpot_s"] = rest_s / (tokens - 1)
    return {part: seconds for part, seconds in found.items() if seconds >= 0}


def _remote(decode: Timeline, prefill: Timeline) -> dict[str, float]:
    found: dict[str, float] = {}
    reserved_s = decode.between_s(Phase.ACCEPTED, Phase.RESERVED) or 0.0
    waited_s, built_s = prefill_times(prefill)
    if waited_s is not None and built_s is not None:
        found["queue_s"] = reserved_s + waited_s
        found["prefill_s"] = built_s
    gap_s = decode.between_s(Phase.FIRST_TOKENS_RECEIVED, Phase.FIRST_STEP)
    if gap_s is not None:
        found["gap_s"] = gap_s
    return found


def _local(decode: Timeline, predicted: Prediction) -> dict[str, float]:
    built_s = decode.between_s(Phase.ACCEPTED, Phase.FIRST_STEP)
    said_s = predicted.queue_s + predicted.prefill_s
    if built_s is None or said_s <= 0:
        return {}
    return {
        "queue_s": built_s * predicted.queue_s / said_s,
        "prefill_s": built_s * predicted.prefill_s / said_s,
    }
