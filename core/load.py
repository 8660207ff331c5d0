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
class Load:
    """What a pod holds and has to do, counted now.

    Blocks: total = free + cached + held + pinned + quarantined; `reserved` are promised and not yet bound. `orphaned`
    blocks are held by no live request: always 0 in health. `shared` are those that sequences would hold besides if none
    held a block together with another; of `block_steps`, blocks that sequences held in each step summed over steps,
    `block_steps_shared` were such. `pinned` are cached for good, whether a request holds them
    too or not. `host` counts blocks outside the pool, in host memory: cached ones, and what a sequence larger than the
    pool has spilled there. `prompt_tokens` are those of admitted sequences; of these, `prompt_tokens_cached` were
    cached, and of those `prompt_tokens_pinned` in pinned blocks.
    `prefill_s_per_token`, `step_s` and what a block costs to copy to host memory and back are measured, 0 until they
    are. Of the `preemptions`, `preemptions_swapped` left their KV to host memory. `prefill_budget` is
    how many prompt tokens the last step might have had.
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
