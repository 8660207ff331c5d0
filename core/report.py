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
    chunks: int = 0  # steps that computed the prompt, where its first token was sampled
    manifest_blocks: int = 0
    blocks_shipped: int = 0
    bytes_shipped: int = 0
    transfer_s: float = 0.0
    exposed_s: float = 0.0
    predicted_local_s: float = 0.0  # until the first token; 0 where nothing was compared
    predicted_remote_s: float = 0.0
    notes: tuple[str, ...] = ()  # what was done otherwise than asked

    @property
    def cached_tokens(self) -> int:
        """What of the prompt was cached where it was prefilled."""
        return self.decode_cached_tokens if self.placement == "local" else self.prefill_cached_tokens

    @property
    def fetched_tokens(self) -> int:
        """What of the prompt other pods had, of those that are not lost: they had it cached, and it was fetched there.

        After a loss it may have been computed for this very request, which is nothing that a cache spared it.
        """
        if self.causes:
            return 0
        return self.decode_fetched_tokens if self.placement == "local" else self.prefill_fetched_tokens
