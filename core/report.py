"""What a finished request cost, and where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a finished request cost and where: counted by the pods, never derived from what was asked."""

    placement: str  # "remote", "local", or "resumed" when a local completion followed a lost shipment
    transport: str = ""  # what carried the last shipment
    causes: tuple[str, ...] = ()  # why prefill pods could not be asked, or lost the prompt, in their order
    lost_on: tuple[str, ...] = ()  # which pods these were, in the same order
    prefill_pod: str = ""
    decode_pod: str = ""
    prompt_tokens: int = 0
    prefill_cached_tokens: int = 0
    prefill_computed_tokens: int = 0
    prefill_fetched_tokens: int = 0
    decode_cached_tokens: int = 0
    decode_fetched_tokens: int = 0
    decode_computed_tokens: int = 0
    chunks: int = 0
    manifest_blocks: int = 0
    blocks_shipped: int = 0
    bytes_shipped: int = 0
    transfer_s: float = 0.0
    exposed_s: float = 0.0
    predicted_local_s: float = 0.0  # until the first token; 0 where nothing was compared
    predicted_remote_s: float = 0.0
    notes: tuple[str, ...] = ()  # what was done otherwise than asked
