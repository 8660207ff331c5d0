"""What all layers of one batch share in paged attention: which blocks to read, and who may see which slot.

Decodes of similar length are attended together, padded to the longest; a prefill chunk is cut into tiles of rows, so
that neither its mask nor its scores are ever whole. Knows nothing of layers or values. Invariant: a slot outside a
row's visible range is sliced off, or masked and (where no token fills it) listed in `unfilled`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagewire.kernels.ragged import Ragged

TILE_ROWS = 128  # rows of a chunk attended at once; smaller tiles skip more of the future
MAX_GROUP_SLOTS = 1 << 15  # slots gathered at once for decodes, so that a temporary stays in tens of megabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Sequences with one row each, whose KV is gathered into `[S, n]` slots, n = M x B."""

    rows: torch.Tensor  # [S] int64
    block_ids: torch.Tensor  # [S x M] int64
    num_slots: int  # n' <= n, what the longest needs
    mask: torch.Tensor | None  # [S, 1, 1, n'], 0 or -inf; None: every row sees all n'
    unfilled: torch.Tensor | None  # [u] int64, places in [S x n] that hold no token of the row


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Consecutive rows of a chunk, and the part of the gathered KV that any of them sees."""

    rows: slice
    slots: slice
    mask: torch.Tensor  # [rows, slots], 0 or -inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A sequence with several rows: its blocks are gathered once, then attended tile by tile."""

    block_ids: torch.Tensor  # [M] int64
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """All rows of a batch, each in exactly one group or tile."""

    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class _Decode:
    row: int
    sequence: int
    first_block: int  # of the table, the first that the window reaches
    num_blocks: int
    first_slot: int  # visible slots of the gathered blocks: [first_slot, end_slot)
    end_slot: int


def plan_attention(ragged: Ragged, window: int, dtype: torch.dtype) -> AttentionPlan:
    """Plan one batch for layers of one window (0: everything before is visible); masks come in `dtype`."""
    decodes: list[_Decode] = []
    chunks: list[Chunk] = []
    for sequence, (row, length, kv_len) in enumerate(
        zip(ragged.query_starts, ragged.query_lens, ragged.kv_lens, strict=True)
    ):
        if length == 1:
            decodes.append(_decode(ragged, sequence, row, kv_len, window))
        else:
            chunks.append(_chunk(ragged, sequence, row, length, kv_len, window, dtype))
    groups = tuple(_group(ragged, members, dtype) for members in _similar(decodes, ragged.block_size))
    return AttentionPlan(groups=groups, chunks=tuple(chunks))


def _decode(ragged: Ragged, sequence: int, row: int, kv_len: int, window: int) -> _Decode:
    size = ragged.block_size
    first_block = max(0, kv_len - window) // size if window else 0
    origin = first_block * size
    first_slot = max(0, kv_len - window) - origin if window else 0
    num_blocks = -(-kv_len // size) - first_block
    return _Decode(row, sequence, first_block, num_blocks, first_slot, kv_len - origin)


def _similar(decodes: list[_Decode], block_size: int) -> list[list[_Decode]]:
    # Shortest first; a group ends where padding would more than double its shortest, or it would grow too large.
    groups: list[list[_Decode]] = []
    for decode in sorted(decodes, key=lambda d: d.num_blocks):
        group = groups[-1] if groups else []
        fits = (len(group) + 1) * decode.num_blocks * block_size <= MAX_GROUP_SLOTS
        if group and fits and decode.num_blocks <= 2 * group[0].num_blocks:
            group.append(decode)
        else:
            groups.append([decode])
    return groups


def _group(ragged: Ragged, members: list[_Decode], dtype: torch.dtype) -> DecodeGroup:
    device, size = ragged.block_table.device, ragged.block_size
    num_blocks = members[-1].num_blocks
    tables = []
    for d in members:
        own = ragged.block_table[d.sequence, d.first_block : d.first_block + d.num_blocks]
        # Padding repeats the first block: a valid id whose values are masked and cleared.
        tables.append(torch.cat((own, own[:1].expand(num_blocks - d.num_blocks))))
    starts = torch.tensor([d.first_slot for d in members], device=device)  # [S]
    ends = torch.tensor([d.end_slot for d in members], device=device)  # [S]
    num_slots = max(d.end_slot for d in members)
    mask = unfilled = None
    if any(d.first_slot > 0 or d.end_slot < num_slots for d in members):
        places = torch.arange(num_blocks * size, device=device)  # [n]
        filled = places < ends[:, None]  # [S, n]
        visible = (filled & (places >= starts[:, None]))[:, :num_slots]
        mask = _additive(visible, dtype)[:, None, None, :]
        unfilled = (~filled).flatten().nonzero().flatten()
    return DecodeGroup(
        rows=torch.tensor([d.row for d in members], device=device),
        block_ids=torch.cat(tables),
        num_slots=num_slots,
        mask=mask,
        unfilled=unfilled,
    )


def _chunk(ragged: Ragged, sequence: int, row: int, length: int, kv_len: int, window: int, dtype: torch.dtype) -> Chunk:
    size = ragged.block_size
    first_seen = max(0, kv_len - length - window + 1) if window else 0  # by the chunk's first row
    first_block = first_seen // size
    origin = first_block * size
    num_blocks = -(-kv_len // size)
    tiles = []
    for start in range(0, length, TILE_ROWS):
        stop = min(start + TILE_ROWS, length)
        positions = torch.arange(kv_len - length + start, kv_len - length + stop, device=ragged.block_table.device)
        first = max(0, int(kv_len - length + start) - window + 1) if window else 0
        keys = torch.arange(first, kv_len - length + stop, device=ragged.block_table.device)
        visible = keys <= positions[:, None]  # [rows, slots]
        if window:
            visible &= keys > positions[:, None] - window
        tiles.append(
            Tile(
                rows=slice(row + start, row + stop),
                slots=slice(first - origin, kv_len - length + stop - origin),
                mask=_additive(visible, dtype),
            )
        )
    return Chunk(block_ids=ragged.block_table[sequence, first_block:num_blocks], tiles=tuple(tiles))


def _additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
