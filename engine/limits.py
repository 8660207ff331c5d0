"""The bounds of an engine's steps and sequences, and how many blocks tokens take under them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a step and of a sequence; tokens, sequences, ids."""

    max_num_batched_tokens: int
    max_num_seqs: int
    chunk_size: int
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}: "
                "a full batch of decodes would leave nothing for a prompt"
            )
        if self.chunk_size < 1:
            raise ValueError(f"chunk_size must be positive, is {self.chunk_size}")

    def num_blocks(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def most_output(self, num_prompt: int, max_tokens: int) -> int:
        """Return how many tokens of output may follow a prompt."""
        return min(max_tokens, self.max_model_len - num_prompt)

    def num_forked_blocks(self, num_tokens: int, num_sequences: int, num_own: int = 1) -> int:
        """Return how many blocks sequences need that have `num_tokens` in common, to write `num_own` each behind them.

        Full blocks are held together, the rest by each for itself: F + n (ceil((T + own) / B) - F), F = floor(T / B).
        """
        full = num_tokens // self.block_size
        return full + num_sequences * (self.num_blocks(num_tokens + num_own) - full)
