"""What a placement should come to: predicted seconds from what pods measured of themselves. Pure.

    queue    local, remote:  wait for room at D + tokens that wait at the builder x c
    prefill  local, remote:  min over nobody and the sources:  copy + tokens left x c
    relay    local: 1 ms     remote: 1 ms + exchange(D)
    gap      local: tpot     remote: exposed + half a step, where others run + tpot
    tpot     step as measured + (sequences there and to come - sequences it was measured with) x s per sequence

    exposed = max(the last chunk's KV, all that is shipped less the time in which it was computed)

The builder is D itself or the prefill pod; c its seconds per token, a tenth of it for tokens that are in host memory;
copy and exchange are what taking blocks is known to cost the pod that takes. Then each part is corrected by how wrong
the last ones of its way were (`calibration.py`). It is the sum that a decode pod makes to choose between local and
remote (`decode_service/prefill_choice.py`), less its surcharge for the sequences that wait: a price, not a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from operator import attrgetter

from pagewire.router.policies.view import SHIP_SHARE, Demand, PodView
from pagewire.router.prediction import Prediction

SEARCH_COST = 20  # of finding one name in many, over looking at one pod
_pod_id = attrgetter("pod_id")
RELAY_S = 0.001  # between a pod and the client, both ways and nothing computed; corrected by what comes true


def predict(demand: Demand, decode: PodView, prefill: PodView | None) -> Prediction:
    """Return what a request comes to that decodes on `decode`, its prompt built on `prefill` or, without one, there."""
    tpot_s = decode.tpot_s + demand.num_sequences * decode.crowd_s
    if prefill is None:
        factors = demand.correction.local
        return Prediction(
            queue_s=factors.queue_s * (room_s(demand, decode) + decode.queue_s),
            prefill_s=factors.prefill_s * build_s(demand, decode),
            relay_s=factors.relay_s * RELAY_S,
            gap_s=factors.gap_s * tpot_s,
            tpot_s=factors.tpot_s * tpot_s,
        )
    factors = demand.correction.remote
    built_s = build_s(demand, prefill)
    return Prediction(
        queue_s=factors.queue_s * (room_s(demand, decode) + prefill.queue_s),
        prefill_s=factors.prefill_s * built_s,
        relay_s=factors.relay_s * (RELAY_S + decode.rtt_s),
        gap_s=factors.gap_s * (exposed_s(demand, decode, prefill, built_s) + decode.boarding_s + tpot_s),
        tpot_s=factors.tpot_s * tpot_s,
    )


def build_s(demand: Demand, pod: PodView) -> float:
    """Return the seconds that a pod needs for the prompt's KV once it begins: its own cache, a fetch, the rest."""
    held = demand.cached.get(pod.pod_id, 0)
    best_s = (demand.num_tokens - held + demand.on_host.get(pod.pod_id, 0) * SHIP_SHARE) * pod.token_s
    for source, tokens in demand.sources:
        if tokens > held and source != pod.pod_id:
            copy_s = pod.rtt_s + (tokens - held) * pod.ship_s
            best_s = min(best_s, copy_s + (demand.num_tokens - tokens) * pod.token_s)
    return best_s


def build_times(demand: Demand, pods: Sequence[PodView]) -> list[float]:
    """Return `build_s` of many pods, of which only those that hold something differ in more than their pace."""
    tokens, cached = demand.num_tokens, demand.cached
    if demand.sources:
        # Fetching pays where a token is copied sooner than computed, and then the more the better: from the longest.
        held = demand.sources[0][1]
        times = [
            tokens * pod.token_s - (gain if (gain := held * pod.spared_s - pod.rtt_s) > 0 else 0.0) for pod in pods
        ]
    else:
        times = [tokens * pod.token_s for pod in pods]
    for at in places_of(pods, cached):
        times[at] = build_s(demand, pods[at])
    return times


def places_of(pods: Sequence[PodView], names: Collection[str]) -> list[int]:
    """Return where pods of these names are among `pods`, which are in the order of their ids."""
    if len(names) * SEARCH_COST > len(pods):
        return [at for at, pod in enumerate(pods) if pod.pod_id in names]
    found = ((bisect_left(pods, name, key=_pod_id), name) for name in names)
    return [at for at, name in found if at < len(pods) and pods[at].pod_id == name]


def exposed_s(demand: Demand, decode: PodView, prefill: PodView, built_s: float) -> float:
    """Return the seconds of the transfer that no computing hides; `built_s` is how long the prompt is computed."""
    shipped = demand.num_tokens - demand.cached.get(decode.pod_id, 0)
    last = min(shipped, prefill.load.prefill_budget or shipped)
    return max(last * decode.ship_s, shipped * decode.ship_s - built_s)


def room_s(demand: Demand, decode: PodView) -> float:
    """Return the seconds until the blocks that are missing have come free."""
    return max(0.0, demand.blocks_on(decode) - decode.spare_blocks) * demand.block_s
