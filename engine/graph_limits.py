"""What steps are captured for: decodes by how many they are, all others by their tokens and their sequences.

A step is replayed by the graph of the smallest bucket that holds it, and what it lacks is nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.kernels.ragged import SHORT

SMALL = (1, 2, 4, 8)
EVERY = 8
# Tokens of a step, so close that rows of nobody, which cost as much as others, are at most a fifth of a long one.
TOKENS = (
    16, *range(32, 128, 32), *range(128, 512, 64), *range(512, 1024, 128), *range(1024, 2048, 256),
    *range(2048, 4097, 512),
)  # fmt: skip
# Sequences of it. One of nobody has logits and a token drawn: 64 of them take about 0.1 ms of an H200.
SEQUENCES = (1, 16, 64)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What one graph holds at most: rows, one for each token, of so many sequences; of decodes each has one."""

    num_rows: int
    num_sequences: int
    are_decodes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """What graphs are captured for; without tokens of a `longest_step` for decodes alone."""

    max_num_seqs: int
    max_model_len: int
    block_size: int
    vocab_size: int
    longest_step: int = 0

    @property
    def width(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_model_len // self.block_size)

    def decodes(self) -> tuple[Bucket, ...]:
        """Return those of decodes, ascending: 1, 2, 4, 8, multiples of 8, and the largest."""
        most = self.max_num_seqs
        sizes = (*(size for size in SMALL if size < most), *range(2 * EVERY, most, EVERY), most)
        return tuple(Bucket(size, size, are_decodes=True) for size in sizes)

    def mixed(self) -> tuple[Bucket, ...]:
        """Return those of whatever else, by sequences and then by rows, up to the first that holds the longest step.

        Of several sequences some may be short and some long, so there is room for one of each.
        """
        longest = min(self.longest_step, TOKENS[-1])
        if longest <= 0:
            return ()
        holds = next(size for size in TOKENS if size >= longest)
        sequences = (*(size for size in SEQUENCES if size < self.max_num_seqs), self.max_num_seqs)
        return tuple(
            Bucket(num_rows, num_sequences, are_decodes=False)
            for num_sequences in sequences
            for num_rows in TOKENS
            if num_sequences <= num_rows <= holds and (num_sequences == 1 or num_rows > 2 * SHORT)
        )
