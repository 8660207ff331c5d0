"""How much of attention one program does at a time, by what it runs on and what it reads.

A tile is `rows` query heads packed with query tokens, against `keys`. Knows nothing of batches. The size of blocks
changes no entry: where one holds less than a tile, each key looks its own up.

`tests/kernels/test_sm90.py` holds every entry to what the compiler makes of it for sm_90: nothing on the stack,
registers and shared memory for as many programs as are to be `resident`, wgmma from 64 rows on, copies of 16 bytes.

At D = 128 the first entry, that of many sequences and the last were chosen by measurement: `bench/tiles.py` on an H100
and an H200, kinds decode-128 and chunk-128 in bfloat16. Decodes of 16 rows: the best of all on the H200 in the
geometric mean, 6 % behind the best of a batch at most, 3 % behind in the mean of the H100's. Of many sequences: within
1 % of the best for much, 5 % for little. Chunks: within 1 % of the fastest of two prompts of 8,192 tokens; one program
to a multiprocessor is 5 % behind there and as much ahead in the mean, which shorter ones decide. All others, those of
D = 64 and 256, of 32 and 64 rows and of quantised pools, are not measured: they are the largest that did not spill.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from pagewire.kernels.kv_elements import LARGEST as QUANTISED


@dataclass(frozen=True, slots=True)
class Processor:
    """What a GPU is to a kernel."""

    capability: tuple[int, int]
    num_sms: int  # streaming multiprocessors
    overlaps: bool = False  # whether kernels start before the ones before them end: see `dependent_launch.py`

    @classmethod
    def of(cls, device: torch.device) -> Processor:
        """Return that of a CUDA device."""
        properties = torch.cuda.get_device_properties(device)
        capability = (properties.major, properties.minor)
        return cls(capability, properties.multi_processor_count, overlaps=capability >= (9, 0))


@dataclass(frozen=True, slots=True)
class Heads:
    """What attention reads, and in what it computes."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype  # of queries, and of both products' operands
    stored: torch.dtype  # of the pool

    @property
    def group(self) -> int:
        """Query heads of one KV head, which share its keys and values."""
        return self.num_q_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class Tiles:
    """One program's tile and how it is run."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int  # a tile of keys and of values is on its way for every two beyond the first
    resident: int  # programs that a multiprocessor holds at once
    programs: int  # programs to a multiprocessor in all
    least_keys: int = 256  # of a share: less would be merged for longer than it is attended

    @property
    def registers(self) -> int:
        """Registers that each thread may have where so many programs are resident."""
        return min(255, 65536 // (self.resident * self.num_warps * 32) // 8 * 8)


# By compute capability and the largest head dim served: decodes, each of up to as many rows as it has, and chunks.
_TABLE = {
    (9, 0): {
        64: (Tiles(32, 64, 4, 5, 3, 3), Tiles(64, 64, 4, 5, 2, 2), Tiles(128, 64, 8, 5, 1, 2)),
        128: (
            Tiles(16, 64, 4, 5, 2, 2, 64), Tiles(32, 64, 4, 5, 2, 2), Tiles(64, 32, 4, 5, 2, 2),
            Tiles(128, 64, 8, 5, 1, 2),
        ),
        256: (Tiles(32, 32, 4, 5, 2, 2), Tiles(64, 32, 8, 3, 1, 1), Tiles(64, 32, 8, 3, 1, 2)),
    },
}  # fmt: skip
# What serves decodes of `MANY` sequences or more in the place of the first of these: their shares are long.
MANY = 32
_OF_MANY = {(9, 0): {128: Tiles(16, 128, 4, 3, 2, 2)}}
# The same for quantised pools, whose keys and values pass through registers on their way.
_QUANTISED = {
    (9, 0): {
        64: (Tiles(32, 64, 4, 5, 2, 2), Tiles(64, 64, 4, 5, 2, 2), Tiles(128, 64, 8, 5, 1, 2)),
        128: (Tiles(32, 32, 4, 5, 2, 2), Tiles(64, 32, 4, 3, 2, 2), Tiles(128, 64, 8, 3, 1, 2)),
        256: (Tiles(32, 32, 8, 3, 1, 2), Tiles(32, 32, 8, 3, 1, 2)),
    },
}
# In fp32, which is for comparing, products are sums on ordinary units: the same for all.
_FP32 = {
    64: (Tiles(32, 32, 8, 3, 1, 2), Tiles(32, 32, 8, 3, 1, 2)),
    128: (Tiles(32, 32, 4, 3, 1, 2), Tiles(32, 32, 4, 3, 1, 2)),
    256: (Tiles(32, 32, 8, 3, 1, 2), Tiles(32, 32, 8, 3, 1, 2)),
}


def choose(processor: Processor, heads: Heads, query_len: int | None, num_sequences: int = 1) -> Tiles:
    """Return the tiles of decodes of up to `query_len` tokens, or of chunks (None), for so many sequences.

    Raises ValueError where no entry serves this processor or these heads.
    """
    table = _QUANTISED if heads.stored in QUANTISED else _TABLE
    if processor.capability not in table:
        known = ", ".join(f"{major}.{minor}" for major, minor in table)
        raise ValueError(f"no attention tiles for compute capability {processor.capability}; there are for {known}")
    entries = table[processor.capability]
    served = min((head_dim for head_dim in entries if head_dim >= heads.head_dim), default=None)
    if served is None:
        raise ValueError(f"no attention tiles for heads of {heads.head_dim}, only of up to {max(entries)}")
    *decodes, chunks = (_FP32 if heads.dtype == torch.float32 else entries)[served]
    if heads.group > chunks.rows:
        raise ValueError(f"{heads.group} query heads to a KV head are more than the {chunks.rows} rows of a tile")
    most = decodes[-1]
    if query_len is None or heads.group > most.rows:
        return chunks
    # No more rows than one sequence has, but 16 at least, which a matrix product takes.
    rows = max(16, 1 << (query_len * heads.group - 1).bit_length())
    tiles = next((each for each in decodes if rows <= each.rows), most)
    if table is _TABLE and tiles is entries[served][0] and num_sequences >= MANY:
        tiles = _OF_MANY[processor.capability].get(served, tiles)
    return replace(tiles, rows=min(rows, tiles.rows))
