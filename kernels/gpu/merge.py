"""Items of attention that the end of a share cut: their parts, put together as `streamed_attention.merge` does.

With o_i and l_i = log2 sum exp2 of part i, and a sink of the head counted as one more part of no value,

    l = log2 (sum_i exp2(l_i) + exp2(sink log2 e))        out = sum_i exp2(l_i - l) o_i

Every cut is where a share begins, so there are fewer than programs: the program of an item's first cut merges it, and
one whose share begins with an item's first tile has nothing to do. Part of an item begins in slot 2 p where share p
does, and in slot 2 p + 1 where it begins within the share.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagewire.kernels.gpu.dependent_launch import wait_for_earlier
from pagewire.kernels.gpu.tiles import Heads
from pagewire.kernels.gpu.work_list import WorkList, read_item

ELEMENTS = 4096  # of parts, that a program holds at once


def merge(
    work: WorkList, heads: Heads, out: torch.Tensor, log_sums: torch.Tensor | None, sinks: torch.Tensor | None, *,
    overlaps: bool,
) -> None:  # fmt: skip
    """Write the rows of cut items to out `[T, Hq, D]`, and the logs of their sums to `[T, Hq]`.

    `overlaps` is that of `Processor`.
    """
    width = triton.next_power_of_2(heads.head_dim)
    # Decodes have few rows in many parts, chunks many rows in two or three.
    rows = 1 if work.tiles.rows < 64 else 8
    _merge[(work.num_programs, triton.cdiv(work.rows, rows))](
        out, log_sums, work.part_out, work.part_log_sums, work.items, work.first_items, work.totals, sinks,
        NUM_KV_HEADS=heads.num_kv_heads, GROUP=heads.group, HEAD_DIM=heads.head_dim, TILE_ROWS=work.tiles.rows,
        ROWS=rows, PARTS=ELEMENTS // rows // width, OVERLAPS=overlaps, num_warps=4, launch_pdl=overlaps,
    )  # fmt: skip


@triton.jit
def _merge(
    out, log_sums, part_out, part_log_sums, items, first_items, totals, sinks,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_ROWS: tl.constexpr,
    ROWS: tl.constexpr, PARTS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    wait_for_earlier(OVERLAPS)
    total, share = tl.load(totals + 1), tl.load(totals + 2)
    program = tl.program_id(0)
    cut = program * share
    if cut >= total * NUM_KV_HEADS:
        return
    item = tl.load(first_items + program)
    _sequence, first_row, num_tokens, _query, _keys, _first_tile, num_tiles, start = read_item(items, item)
    head = cut // total
    begin = head * total + start
    first_part = begin // share
    if (begin == cut) | (first_part + 1 != program):
        return
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_tokens * GROUP
    if tl.program_id(1) * ROWS >= num_tokens * GROUP:
        return
    last_part = (begin + num_tiles - 1) // share
    d = tl.arange(0, triton.next_power_of_2(HEAD_DIM))

    acc = tl.zeros([ROWS, d.shape[0]], tl.float32)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    if sinks is not None:
        highest = tl.load(sinks + head * GROUP + row % GROUP).to(tl.float32) * 1.4426950408889634
        weight += 1.0
    for some in range(first_part, last_part + 1, PARTS):
        part = some + tl.arange(0, PARTS)
        slot = 2 * part + ((part == first_part) & (begin != first_part * share))
        at = slot.to(tl.int64)[None, :] * TILE_ROWS + row[:, None]  # [ROWS, PARTS]
        is_part = (part <= last_part)[None, :] & is_row[:, None]
        log_sum = tl.load(part_log_sums + at, mask=is_part, other=float("-inf"))
        above = tl.maximum(highest, tl.max(log_sum, 1))
        level = tl.where(above == float("-inf"), 0.0, above)  # of a row that has seen nothing yet
        weights = tl.exp2(log_sum - level[:, None])
        fade = tl.exp2(highest - level)
        mask = is_part[:, :, None] & (d < HEAD_DIM)[None, None, :]
        parts = tl.load(part_out + at[:, :, None] * HEAD_DIM + d[None, None, :], mask=mask, other=0.0)
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
