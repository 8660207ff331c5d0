"""Who attends to what: the work of one batch, cut into as many equal shares as there are programs, on the device.

Query tokens of a sequence are cut into items of a tile's rows; an item visits, for each KV head, the key tiles that
any of its rows sees. Laid end to end, heads outermost, these visits are a line of `num_kv_heads` x `total` tiles, and
program p walks its share of it:

    tiles of item i = cdiv(end of the keys it sees, KEYS) - first key it sees // KEYS
    start(i)        = the sum of the tiles of the items before it
    share           = max(least, cdiv(num_kv_heads x total, num_programs))
    program p       : positions p x share ... (p + 1) x share - 1; position = head x total + start(i) + tile

So a grid of fixed size is busy to the same tile whatever the lengths are (LeanAttention, arXiv 2405.10480), and a CUDA
graph that builds its list anew in each replay holds for any. An item that a share's end cuts is merged by `merge.py`.
Knows no values. Invariant: every item has a tile, though all of it be masked, so every row is written; that of a
sequence of no tokens, which fills a batch up to a captured size, reads no key.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pagewire.kernels.gpu.dependent_launch import wait_for_earlier
from pagewire.kernels.gpu.tiles import Heads, Processor, Tiles
from pagewire.kernels.ragged import SHORT, DeviceLengths, Ragged

# Sequences whose cut items have so many parts that one program would take longer to merge them than a kernel takes to
# start: on an H200 a step of one of 2,048 tokens took 0.79 ms with that kernel and 0.85 without, of 64 4.82 and 4.81.
FEW = 4
FIELDS = tl.constexpr(8)  # int32 of an item: its sequence, row, tokens, position, keys, first tile, tiles, start


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """A ragged batch as the device knows it; the tensors may change from replay to replay, the numbers may not."""

    query_starts: torch.Tensor  # [S + 1] int32: the first row of each sequence, and the end of the last
    kv_lens: torch.Tensor  # [S] int32
    block_table: torch.Tensor  # [S, M] int64
    block_size: int
    num_rows: int  # T, at most
    longest_decode: int  # query tokens of the longest sequence of up to `SHORT`, at most; 0: there is none
    has_chunks: bool  # whether a sequence may have more

    @classmethod
    def of(cls, ragged: Ragged) -> Sequences:
        """Return a batch with its lengths where its block table is."""
        lengths = ragged.on_device or _brought(ragged)
        return cls(
            query_starts=lengths.query_starts,
            kv_lens=lengths.kv_lens,
            block_table=ragged.block_table,
            block_size=ragged.block_size,
            num_rows=ragged.num_rows,
            longest_decode=max((length for length in ragged.query_lens if length <= SHORT), default=0),
            has_chunks=max(ragged.query_lens, default=0) > SHORT,
        )

    @property
    def num_sequences(self) -> int:
        """S."""
        return self.kv_lens.shape[0]


def _brought(ragged: Ragged) -> DeviceLengths:
    numbers = torch.tensor((*ragged.query_starts, ragged.num_rows, *ragged.kv_lens), dtype=torch.int32)
    numbers = numbers.to(ragged.block_table.device, non_blocking=True)
    num_sequences = len(ragged.kv_lens)
    return DeviceLengths(query_starts=numbers[: num_sequences + 1], kv_lens=numbers[num_sequences + 1 :])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkList:
    """The shares of one batch's decodes, or of its chunks, and where parts of cut items wait for the rest."""

    tiles: Tiles
    rows: int  # of an item, at most: of short queries not all that a tile has
    num_programs: int
    merges_apart: bool  # cut items, by a kernel of its own
    items: torch.Tensor  # [I, 8] int32, see `FIELDS`
    first_items: torch.Tensor  # [num_programs] int32: where each share begins
    totals: torch.Tensor  # [3] int32: items, tiles of one head, tiles of a share
    arrivals: torch.Tensor  # [num_programs] int32: parts of the item that is cut where a share ends; 0 between kernels
    part_out: torch.Tensor  # [2 x num_programs, rows, D] fp32
    part_log_sums: torch.Tensor  # [2 x num_programs, rows] fp32, base 2

    @classmethod
    def build(
        cls, sequences: Sequences, heads: Heads, tiles: Tiles, processor: Processor, *,
        window: int, is_decode: bool | None, shift: int = 0,
    ) -> WorkList:  # fmt: skip
        """Build that of decodes, of chunks, or (None) of all; their rows stand `shift` behind their last keys."""
        device = sequences.kv_lens.device
        tokens = tiles.rows // heads.group  # of an item
        most = tokens if sequences.has_chunks and not is_decode else min(tokens, sequences.longest_decode)
        num_items = sequences.num_rows // tokens + sequences.num_sequences  # at most one of a sequence is not full
        if is_decode:
            num_items = min(num_items, sequences.num_sequences * -(-SHORT // tokens))
        num_programs = processor.num_sms * tiles.programs
        items = torch.empty(num_items, FIELDS.value, dtype=torch.int32, device=device)
        first_items = torch.empty(num_programs, dtype=torch.int32, device=device)
        totals = torch.empty(3, dtype=torch.int32, device=device)
        arrivals = torch.empty(num_programs, dtype=torch.int32, device=device)
        ends = torch.empty(sequences.num_sequences, dtype=torch.int32, device=device)
        least_share = -(-tiles.least_keys // tiles.keys)
        _build[(1,)](
            sequences.query_starts, sequences.kv_lens, ends, items, first_items, totals, arrivals,
            sequences.num_sequences, num_programs, heads.num_kv_heads, least_share, window, shift,
            IS_DECODE=is_decode, SHORT=SHORT, TOKENS=tokens, KEYS=tiles.keys,
            BLOCK=triton.next_power_of_2(max(num_items, num_programs, 128)), OVERLAPS=processor.overlaps,
            num_warps=8, launch_pdl=processor.overlaps,
        )  # fmt: skip
        return cls(
            tiles=tiles, rows=most * heads.group, num_programs=num_programs,
            merges_apart=sequences.num_sequences <= FEW and not (sequences.has_chunks and not is_decode), items=items,
            first_items=first_items, totals=totals, arrivals=arrivals,
            part_out=torch.empty(2 * num_programs, tiles.rows, heads.head_dim, dtype=torch.float32, device=device),
            part_log_sums=torch.empty(2 * num_programs, tiles.rows, dtype=torch.float32, device=device),
        )  # fmt: skip


# Not specialised by numbers that change from batch to batch: each of their kinds would be compiled in some step.
@triton.jit(do_not_specialize=["num_sequences", "shift"])
def _build(
    query_starts, kv_lens, ends, items, first_items, totals, arrivals,
    num_sequences, num_programs, num_kv_heads, least_share, window, shift,
    IS_DECODE: tl.constexpr, SHORT: tl.constexpr, TOKENS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    wait_for_earlier(OVERLAPS)
    # One program: each step needs all of the one before.
    lane = tl.arange(0, BLOCK)

    # Sequences: how many items each has; `ends` is their running sum.
    is_sequence = lane < num_sequences
    length = tl.load(query_starts + lane + 1, mask=is_sequence, other=0)
    length -= tl.load(query_starts + lane, mask=is_sequence, other=0)
    is_mine = length > 0 if IS_DECODE is None else (length <= SHORT) == IS_DECODE
    num_items_of = tl.where(is_mine, tl.cdiv(length, TOKENS), 0)
    num_items = tl.sum(num_items_of)
    tl.store(ends + lane, tl.cumsum(num_items_of), mask=is_sequence)
    tl.debug_barrier()

    # Items: which keys each sees; `start` is the running sum of their tiles.
    is_item = lane < num_items
    sequence = tl.where(is_item, _count_up_to(lane, ends, 1, num_sequences, BLOCK), 0)
    first_of_sequence = tl.load(ends + sequence - 1, mask=is_item & (sequence > 0), other=0)
    first_row = tl.load(query_starts + sequence, mask=is_item, other=0)
    end_row = tl.load(query_starts + sequence + 1, mask=is_item, other=0)
    num_keys = tl.load(kv_lens + sequence, mask=is_item, other=0)
    first_token = (lane - first_of_sequence) * TOKENS
    num_tokens = tl.minimum(end_row - first_row - first_token, TOKENS)
    position = num_keys + shift - (end_row - first_row) + first_token
    end_key = tl.minimum(position + num_tokens, num_keys)
    first_key = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    first_tile = tl.minimum(first_key, tl.maximum(num_keys - 1, 0)) // KEYS
    num_tiles = tl.where(is_item, tl.maximum(tl.cdiv(end_key, KEYS) - first_tile, 1), 0)
    start = tl.cumsum(num_tiles) - num_tiles
    record = items + lane * FIELDS
    tl.store(record, sequence, mask=is_item)
    tl.store(record + 1, first_row + first_token, mask=is_item)
    tl.store(record + 2, num_tokens, mask=is_item)
    tl.store(record + 3, position, mask=is_item)
    tl.store(record + 4, num_keys, mask=is_item)
    tl.store(record + 5, first_tile, mask=is_item)
    tl.store(record + 6, num_tiles, mask=is_item)
    tl.store(record + 7, start, mask=is_item)
    total = tl.sum(num_tiles)
    share = tl.maximum(tl.cdiv(total * num_kv_heads, num_programs), least_share)
    tl.store(totals, num_items)
    tl.store(totals + 1, total)
    tl.store(totals + 2, share)
    tl.debug_barrier()

    # Programs: the item that each begins in.
    within = (lane * share) % tl.maximum(total, 1)
    first_item = _count_up_to(within, items + 7, FIELDS, num_items, BLOCK) - 1
    tl.store(first_items + lane, first_item, mask=lane < num_programs)
    tl.store(arrivals + lane, 0, mask=lane < num_programs)


@triton.jit
def _count_up_to(bound, values, stride: tl.constexpr, num_values, BLOCK: tl.constexpr):
    """Return how many of the first `num_values` of ascending values, at most `BLOCK`, are not above each bound."""
    count = tl.zeros_like(bound)
    step = BLOCK
    while step > 0:
        following = count + step
        is_value = following <= num_values
        value = tl.load(values + (following - 1) * stride, mask=is_value, other=0)
        count = tl.where(is_value & (value <= bound), following, count)
        step = step // 2
    return count


@triton.jit
def read_item(items, item, ANEW: tl.constexpr):
    """Return the fields of one item; `ANEW`: whatever is in registers already."""
    record = items + item * FIELDS
    return (
        tl.load(record, volatile=ANEW), tl.load(record + 1, volatile=ANEW), tl.load(record + 2, volatile=ANEW),
        tl.load(record + 3, volatile=ANEW), tl.load(record + 4, volatile=ANEW), tl.load(record + 5, volatile=ANEW),
        tl.load(record + 6, volatile=ANEW), tl.load(record + 7, volatile=ANEW),
    )  # fmt: skip
