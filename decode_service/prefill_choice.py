"""Where to prefill: here or on a prefill pod. Pure; a comparison of predicted seconds, not a constant.

    local  = (waiting + uncached) x c x (1 + running)      every running sequence stalls while a chunk computes here
    remote = queue + uncached there x c                    its transfer hides behind its chunks but for the last

c is this pod's measured prefill seconds per token: pods of one cluster run the same model.
"""

from __future__ import annotations

from pagewire.core.messages import Candidate, Load


def prefers_local(num_tokens: int, cached_tokens: int, candidates: tuple[Candidate, ...], load: Load) -> bool:
    """Return whether the prompt of `num_tokens`, of which `cached_tokens` are cached here, is ready sooner from here.

    Before the first measurement nothing is known, and the answer is no.
    """
    cost_s = load.prefill_s_per_token
    if cost_s <= 0.0:
        return False
    local_s = (load.waiting_tokens + num_tokens - cached_tokens) * cost_s * (1 + load.num_running)
    remote_s = min(
        candidate.queue_s + (num_tokens - max(candidate.cached_tokens, 0)) * cost_s for candidate in candidates
    )
    return local_s <= remote_s
