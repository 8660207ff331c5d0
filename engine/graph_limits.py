"""What steps are captured for: decodes by how many they are, all others by their tokens and their sequences.

A step is replayed by the graph of the smallest bucket that holds it, and what it lacks is nobody's.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from pagewire.kernels.ragged import SHORT

SMALL = (1, 2, 3, 4, 8)  # up to four rows products are compiled for their number
EVERY = 8
# Rows of a step, so close that those of nobody, which cost as much as others, are at most a fifth of a long one.
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
    """What graphs are captured for; with a `longest_step` of 0 tokens that is decodes alone.

    A sequence has up to `longest_chunk` tokens of a step, 0 for as many as the step has.
    """

    max_num_seqs: int
    max_model_len: int
    block_size: int
    vocab_size: int
    longest_step: int = 0
    longest_chunk: int = 0

    @property
    def width(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_model_len // self.block_size)

    def decodes(self) -> tuple[Bucket, ...]:
        """Return those of decodes, ascending: 1 to 4, 8, multiples of 8, and the largest."""
        most = self.max_num_seqs
        sizes = (*(size for size in SMALL if size < most), *range(2 * EVERY, most, EVERY), most)
        return tuple(Bucket(size, size, are_decodes=True) for size in sizes)

    def mixed(self) -> tuple[Bucket, ...]:
        """Return those of whatever else, by sequences and then by rows, up to the first that holds the longest step.

        Of several sequences some may be short and some long, so there is room for one of each.
        """
        found: list[Bucket] = []
        longest_chunk = min(self.longest_chunk or self.longest_step, self.max_model_len)
        for num_sequences in (*(size for size in SEQUENCES if size < self.max_num_seqs), self.max_num_seqs):
            longest = min(self.longest_step, TOKENS[-1], num_sequences * longest_chunk)
            least = num_sequences if num_sequences == 1 else max(num_sequences, 2 * SHORT + 1)
            sizes = [size for size in TOKENS if size >= least]
            holds = bisect_left(sizes, longest) + 1 if longest > 0 else 0
            found += (Bucket(size, num_sequences, are_decodes=False) for size in sizes[:holds])
        return tuple(found)
