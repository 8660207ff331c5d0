"""The bounds of an engine's steps and sequences, and how many blocks tokens take under them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a step and of a sequence; tokens, sequences, ids.

    `window` is how many tokens a token sees at most, itself included, in whatever layer; 0: all before it. A sequence
    that `spills` may be larger than the pool: its first blocks go to host memory. `adapters` are names, in the order of
    their numbers.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    chunk_size: int
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    window: int = 0
    spills: bool = False
    adapters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}: "
                "a full batch of decodes would leave nothing for a prompt"
            )
        if self.spills and self.window:
            raise ValueError("what leaves a window is given back, and nothing spills")
        if self.chunk_size < 1:
            raise ValueError(f"chunk_size must be positive, is {self.chunk_size}")

    def adapter_number(self, name: str) -> int:
        """Return the number of an adapter that there is, 0 for the name of none, ""."""
        return self.adapters.index(name) + 1 if name else 0

    def num_blocks(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def most_output(self, num_prompt: int, max_tokens: int) -> int:
        """Return how many tokens of output may follow a prompt."""
        return min(max_tokens, self.max_model_len - num_prompt)

    def num_passed(self, num_computed: int) -> int:
        """Return how many blocks from the first on are seen by no token behind `num_computed` ones.

        The next token sees none before C - W + 1, those behind it none before a later one: floor((C - W + 1) / B).
        """
        return max(0, num_computed - self.window + 1) // self.block_size if self.window else 0

    def most_held(self, num_tokens: int) -> int:
        """Return how many blocks a sequence of `num_tokens` holds at most at a time.

        The window and a chunk, from anywhere in a block to anywhere in another: ceil((W + chunk) / B) + 1.
        """
        total = self.num_blocks(num_tokens)
        return min(total, self.num_blocks(self.window + self.chunk_size) + 1) if self.window else total

    @property
    def least_pool(self) -> int:
        """Blocks that a pool must have for a sequence to spill: those of a chunk, from anywhere in a block."""
        return self.num_blocks(self.chunk_size) + 1

    def num_forked_blocks(self, num_tokens: int, num_sequences: int, num_own: int = 1) -> int:
        """Return how many blocks sequences need that have `num_tokens` in common, to write `num_own` each behind them.

        Full blocks that are seen are held together, the rest by each for itself: F - P + n (ceil((T + own) / B) - F),
        of F = floor(T / B) full blocks P passed.
        """
        full = num_tokens // self.block_size
        own = self.num_blocks(num_tokens + num_own) - full
        return full - self.num_passed(num_tokens) + num_sequences * own
