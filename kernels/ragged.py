"""The shape of one batch for attention: which query rows belong to which sequence, and where its KV lies.

Rows are packed, sequence after sequence; a decode is a sequence with one row, a prefill chunk one with many. Knows
nothing of requests. Invariant: the rows of a sequence are the last `query_lens[s]` of its `kv_lens[s]` tokens, so
`query_lens[s] <= kv_lens[s]` (but for the rows of nobody in a graph, which have no tokens), and `block_table[s]` covers
`kv_lens[s]` tokens. An entry for tokens that no row's window
reaches may be anything: nobody looks there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

SHORT = 8  # query rows at most of what may be attended as a decode: several where tokens are verified at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Spilled:
    """Where the first blocks of a sequence lie that its pool has no room for."""

    memory: torch.Tensor  # [slots, L, 2, Hk, B, D], the host's, kept as the pool is
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLengths:
    """The lengths of a batch where the device reads them."""

    query_starts: torch.Tensor  # [S + 1] int32: the first row of each sequence, and the end of the last
    kv_lens: torch.Tensor  # [S] int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """A ragged batch of S sequences and T query rows.

    With lengths `on_device`, those say what is in the cache, and which rows are whose; `kv_lens` bounds it then, and of
    `query_lens` the sum is that of all rows, while each says that sequences of up to `SHORT` rows, or of more, may be
    among them. So a device that reads its own may be given a batch whose lengths no host knows yet.
    """

    query_lens: tuple[int, ...]  # S, each >= 1; with lengths on the device any may be 0
    kv_lens: tuple[int, ...]  # S, tokens in the cache once this batch's are appended
    block_table: torch.Tensor  # [S, M] int64, M blocks of the longest sequence, padded with any valid id
    block_size: int
    on_device: DeviceLengths | None = None
    spilled: Spilled | None = None  # the only sequence's, whose table says nothing of those blocks

    @property
    def query_starts(self) -> tuple[int, ...]:
        """The first row of each sequence."""
        return tuple(accumulate(self.query_lens, initial=0))[:-1]

    def native_tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what native code reads, int64: the block table `[S, M]`, and `[3, S]`: the first row of each sequence,
        its rows, its tokens in the cache. Both must outlive the pointers taken of them.
        """
        rows = (self.query_starts, self.query_lens, self.kv_lens)
        return self.block_table.contiguous(), torch.tensor(rows, dtype=torch.int64)

    @property
    def num_rows(self) -> int:
        """T, the query rows of all sequences."""
        return sum(self.query_lens)
