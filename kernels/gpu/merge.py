"""Items of attention that the end of a share cut: their parts, put together as `streamed_attention.merge` does.

With o_i and l_i = log2 sum exp2 of part i, and a sink of the head counted as one more part of no value,

    l = log2 (sum_i exp2(l_i) + exp2(sink log2 e))        out = sum_i exp2(l_i - l) o_i

Part of an item lies in slot 2 p where share p begins in it, and in slot 2 p + 1 where it begins within the share. Parts
are added in their order, so the sums are the same to the last bit whoever adds them, in one of two ways:

- *Within attention*: whoever brings the last part of an item merges it. Nobody waits for another, and no kernel is
  launched for it. Arrivals are counted at the item's first part, which one item alone has: it reaches beyond the share.
- *Apart* (`WorkList.merges_apart`): a kernel whose programs have a row each. Every cut is where a share begins, so
  there are fewer than programs: that of an item's first cut merges it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagewire.kernels.gpu.dependent_launch import wait_for_earlier
from pagewire.kernels.gpu.tiles import Heads
from pagewire.kernels.gpu.work_list import WorkList, read_item

ELEMENTS = tl.constexpr(4096)  # of parts at once, at most
ROWS_OF_PARTS = tl.constexpr(32)  # likewise


def merge(
    work: WorkList, heads: Heads, out: torch.Tensor, log_sums: torch.Tensor | None, sinks: torch.Tensor | None, *,
    overlaps: bool,
) -> None:  # fmt: skip
    """Write the rows of cut items to out `[T, Hq, D]`, and the logs of their sums to `[T, Hq]`, apart.

    `overlaps` is that of `Processor`.
    """
    _merge[(work.num_programs, work.rows)](
        out, log_sums, work.part_out, work.part_log_sums, work.items, work.first_items, work.totals, sinks,
        NUM_KV_HEADS=heads.num_kv_heads, GROUP=heads.group, HEAD_DIM=heads.head_dim, TILE_ROWS=work.tiles.rows,
        OVERLAPS=overlaps, num_warps=4, launch_pdl=overlaps,
    )  # fmt: skip


@triton.jit
def _merge(
    out, log_sums, part_out, part_log_sums, items, first_items, totals, sinks,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_ROWS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    wait_for_earlier(OVERLAPS)
    total, share = tl.load(totals + 1), tl.load(totals + 2)
    program, row = tl.program_id(0), tl.program_id(1)
    cut = program * share
    if cut >= total * NUM_KV_HEADS:
        return
    item = tl.load(first_items + program)
    _sequence, first_row, num_tokens, _query, _keys, _first_tile, num_tiles, start = read_item(items, item, False)
    head = cut // total
    begin = head * total + start
    first_part, last_part = begin // share, (begin + num_tiles - 1) // share
    if (begin == cut) | (first_part + 1 != program) | (row >= num_tokens * GROUP):
        return
    _merge_parts(
        out, log_sums, part_out, part_log_sums, sinks, head, first_row, row, row + 1, first_part, last_part,
        begin != first_part * share, NUM_KV_HEADS, GROUP, HEAD_DIM, TILE_ROWS, 1,
    )  # fmt: skip


@triton.jit
def merge_cut_items(
    out, log_sums, part_out, part_log_sums, items, first_item, last_item, arrivals, sinks,
    begin_share, end_share, share, total,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_ROWS: tl.constexpr,
    LIVE_ROWS: tl.constexpr,
):  # fmt: skip
    """Bring what a program stored of the items that its share cuts, its first and its last; merge what is whole then.

    Behind all of its items, since whoever counts waits, and nothing is on its way meanwhile. `LIVE_ROWS` is how many of
    a tile's rows an item of this list has at most.
    """
    # Decodes have few rows in many parts, chunks many rows in two or three.
    ROWS: tl.constexpr = min(triton.next_power_of_2(LIVE_ROWS), 8)
    tl.debug_barrier()  # what all threads stored comes before what one of them counts
    for is_end in range(2):
        item = last_item if is_end else first_item
        at = end_share - 1 if is_end else begin_share
        _sequence, first_row, num_tokens, _query, _keys, _tile, num_tiles, start = read_item(items, item, False)
        head = at // total
        begin = head * total + start
        first_part, last_part = begin // share, (begin + num_tiles - 1) // share
        is_another = (is_end == 0) | (begin > begin_share)
        if (first_part < last_part) & is_another:
            count = tl.atomic_add(arrivals + first_part, 1, sem="acq_rel", scope="gpu")
            if count == last_part - first_part:
                tl.store(arrivals + first_part, 0)
                _merge_parts(
                    out, log_sums, part_out, part_log_sums, sinks, head, first_row, 0, num_tokens * GROUP, first_part,
                    last_part, begin != first_part * share, NUM_KV_HEADS, GROUP, HEAD_DIM, TILE_ROWS, ROWS,
                )  # fmt: skip


@triton.jit
def _merge_parts(
    out, log_sums, part_out, part_log_sums, sinks, head, first_row, begin_row, end_row, first_part, last_part,
    is_within, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Write rows [begin_row, end_row) of one item's tile to out, and the logs of their sums; `ROWS` at a time.

    Its parts are those of shares `first_part` to `last_part`; `is_within`: it begins within the first of these.
    """
    WIDTH: tl.constexpr = triton.next_power_of_2(HEAD_DIM)
    PARTS: tl.constexpr = min(ROWS_OF_PARTS, ELEMENTS // WIDTH) // ROWS
    d = tl.arange(0, WIDTH)
    for start in range(begin_row, end_row, ROWS):
        row = start + tl.arange(0, ROWS)
        is_row = row < end_row
        acc = tl.zeros([ROWS, WIDTH], tl.float32)
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        weight = tl.zeros([ROWS], tl.float32)
        if sinks is not None:
            highest = tl.load(sinks + head * GROUP + row % GROUP).to(tl.float32) * 1.4426950408889634
            weight += 1.0
        for some in tl.range(first_part, last_part + 1, PARTS, loop_unroll_factor=2):
            part = some + tl.arange(0, PARTS)
            slot = 2 * part + ((part == first_part) & is_within)
            at = slot.to(tl.int64)[None, :] * TILE_ROWS + row[:, None]  # [ROWS, PARTS]
            is_part = (part <= last_part)[None, :] & is_row[:, None]
            # From the second cache: the first may have what lay there before.
            log_sum = tl.load(part_log_sums + at, mask=is_part, other=float("-inf"), cache_modifier=".cg")
            mask = is_part[:, :, None] & (d < HEAD_DIM)[None, None, :]
            place = part_out + at[:, :, None] * HEAD_DIM + d[None, None, :]
            parts = tl.load(place, mask=mask, other=0.0, cache_modifier=".cg")
            above = tl.maximum(highest, tl.max(log_sum, 1))
            level = tl.where(above == float("-inf"), 0.0, above)  # of a row that has seen nothing yet
            weights = tl.exp2(log_sum - level[:, None])
            fade = tl.exp2(highest - level)
            acc = acc * fade[:, None] + tl.sum(parts * weights[:, :, None], 1)
            weight = weight * fade + tl.sum(weights, 1)
            highest = above
        sees = weight != 0.0
        acc = acc / tl.where(sees, weight, 1.0)[:, None]
        out_row = (first_row + row // GROUP).to(tl.int64) * (NUM_KV_HEADS * GROUP) + head * GROUP + row % GROUP
        is_element = is_row[:, None] & (d < HEAD_DIM)[None, :]
        tl.store(out + out_row[:, None] * HEAD_DIM + d[None, :], acc, mask=is_element)
        if log_sums is not None:
            log_sum = tl.where(sees, highest + tl.log2(weight), float("-inf"))
            tl.store(log_sums + out_row, log_sum * 0.6931471805599453, mask=is_row)
