"""What a pod holds and has to do, and how far it reduces its service for that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BrownoutLevel(StrEnum):
    """How far a pod under pressure reduces its service; each level does what those before it do as well."""

    NORMAL = "normal"
    OFFLOAD = "offload"  # idle cached blocks go to host memory ahead of need
    SMALL_PREFILL = "small_prefill"  # steps take in less prompt
    SHORT_ANSWERS = "short_answers"  # new requests get fewer tokens at most, and are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Inflow:
    """What a pod has taken from the pool of the pod `source`, since the two met: bytes of KV, as they travelled."""

    source: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a pod holds and has to do, counted now.

    Blocks: total = free + cached + held + pinned, each counted once; what a fence keeps in quarantine is still held.
    `reserved` are promised and not yet bound. `orphaned` blocks are held by no live request: always 0 in health.
    `shared` are those that sequences would hold besides if none held a block together with another; of `block_steps`,
    blocks that sequences held in each step summed over steps, `block_steps_shared` were such; `token_steps` are the
    tokens whose KV was in them at the end of each step. `pinned` are cached for good, whether a request holds them too
    or not. `host` counts blocks outside the pool, in host memory: cached ones, and what a sequence larger than the pool
    has spilled there. `prompt_tokens` are those of admitted sequences; of these, `prompt_tokens_cached` were cached,
    and of those `prompt_tokens_pinned` in pinned blocks. `prefill_s_per_token`, `step_s` and what a block costs to copy
    to host memory and back are measured, 0 until they are; so are `step_s_per_sequence`, what a decode step takes
    longer with a sequence more, and what taking blocks from other pods costs in the mean, an exchange and a token's KV.
    `step_sequences` is how many sequences the steps behind `step_s` had. Of the `preemptions`, `preemptions_swapped`
    left their KV to host memory. `prefill_budget` is how many prompt tokens the last step might have had. Of the cached
    blocks that had to make room (`blocks_evicted`) `blocks_evicted_over_quota` went before others' since their tenant
    had more than its quota; `tenants_over_quota` is how many have now. Since the start, `blocks_allocated` were taken
    from the free ones and `blocks_freed` came to them: total - allocated + freed = free. `graph_recaptures` are device
    graphs that had to be captured anew. Of the held blocks `blocks_arriving` are those whose KV is on its way here.
    `inflows` are the busiest of the pods that KV is taken from, counted at `at_s` of the pod's own monotonic clock, 0
    when not stamped. Of the `draft_tokens` that decodes computed beside their own, `draft_tokens_accepted` were right.
    """

    num_running: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_held: int = 0
    blocks_reserved: int = 0
    blocks_host: int = 0
    blocks_pinned: int = 0
    blocks_orphaned: int = 0
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_pinned: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    prefill_s_per_token: float = 0.0
    step_s: float = 0.0
    draining: bool = False
    preemptions_swapped: int = 0
    copy_out_s_per_block: float = 0.0
    copy_in_s_per_block: float = 0.0
    prefill_budget: int = 0
    brownout: BrownoutLevel = BrownoutLevel.NORMAL
    blocks_shared: int = 0
    block_steps: int = 0
    block_steps_shared: int = 0
    token_steps: int = 0
    step_sequences: float = 0.0
    step_s_per_sequence: float = 0.0
    link_rtt_s: float = 0.0
    link_s_per_token: float = 0.0
    blocks_evicted: int = 0
    blocks_evicted_over_quota: int = 0
    tenants_over_quota: int = 0
    blocks_allocated: int = 0
    blocks_freed: int = 0
    graph_recaptures: int = 0
    blocks_arriving: int = 0
    inflows: tuple[Inflow, ...] = ()
    at_s: float = 0.0
    draft_tokens: int = 0
    draft_tokens_accepted: int = 0

    @property
    def queue_s(self) -> float:
        """Seconds that the waiting prompt tokens should take, as measured; 0 until that is."""
        return self.waiting_tokens * self.prefill_s_per_token
