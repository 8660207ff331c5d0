"""Why a request was placed as it was, as the router tells it. Plain values; times are predicted seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOption:
    """One way to place the request: `way` is "local" or "remote", by where the prompt is computed.

    `prefill_pod` is empty where the decode pod does. `cached_tokens` of the prompt are cached on the pod that computes
    it. The first token takes `queue_s`, `prefill_s` and `relay_s`, together `ttft_s`; the second `gap_s` more, each
    further one `tpot_s`. `reason` says why it was not taken, and is empty for the one that was.
    """

    way: str
    decode_pod: str
    decode_role: str
    prefill_pod: str
    cached_tokens: int
    decode_cached_tokens: int
    queue_s: float
    prefill_s: float
    relay_s: float
    ttft_s: float
    gap_s: float
    tpot_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The policy, the objectives in seconds (0 for none), and the options, of which the first was taken."""

    policy: str
    slo_ttft_s: float
    slo_gap_s: float
    slo_tpot_s: float
    options: tuple[PlacementOption, ...]
