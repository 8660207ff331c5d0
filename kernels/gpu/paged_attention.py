"""Attention of one ragged batch of decodes and chunks over a paged pool: what layers call, and the kernel.

For the query row at position p and a KV head that a group of query heads shares, over j in (p - window, p],

    s_j = q . k_j scale,  with a soft cap c: c tanh(s_j / c)
    out = sum_j exp(s_j) v_j / (sum_j exp(s_j) + exp(sink))

tile of keys by tile under a running maximum (FlashAttention-2, arXiv 2307.08691), with exponentials of base 2: `scale`
is in their one multiply-add, which spares queries another rounding. The query heads of a group are rows of one product,
so keys and values are read once for all of them; what all rows of a tile see is visited without a mask.

Layout: q and out `[T, Hq, D]`, pool `[N, L, 2, Hk, B, D]` in any order of its outer axes, block offsets in 64 bits.
Quantised keys and values (`kv_elements.py`) enter the products as codes, exactly; their scales multiply scores and
weights in fp32.
Invariant: nothing is read of a slot that no row sees, so neither its NaN nor its address matters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pagewire.kernels.gpu.merge import merge, merge_cut_items
from pagewire.kernels.gpu.tiles import Heads, Processor, choose
from pagewire.kernels.gpu.work_list import Sequences, WorkList, read_item
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.streamed_attention import Partial

LOG2_E = tl.constexpr(1.4426950408889634)
MINUS_INF = tl.constexpr(float("-inf"))
CODES = {torch.int8: tl.int8, torch.float8_e4m3fn: tl.float8e4nv}  # of a quantised pool
ONE_BLOCK = 1 << 30  # the size of a block that holds whatever there is


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """A batch, and its work lists for each kind of heads, which the first layer that has them makes.

    Made while a CUDA graph is captured, of tensors that replays find changed, it is made anew by every replay.
    """

    sequences: Sequences
    processor: Processor
    window: int
    shift: int = 0  # how far the rows stand behind the last keys
    lists: dict[Heads, tuple[WorkList, ...]] = field(default_factory=dict)

    def work(self, heads: Heads) -> tuple[WorkList, ...]:
        """Return the decodes' list and the chunks', of those that there are."""
        if heads not in self.lists:
            decodes, chunks = self.sequences.longest_decode, self.sequences.has_chunks
            query_lens = ([decodes] if decodes else []) + ([None] if chunks else [])
            is_only = len(query_lens) == 1
            self.lists[heads] = tuple(self._list(heads, query_len, is_only=is_only) for query_len in query_lens)
        return self.lists[heads]

    def _list(self, heads: Heads, query_len: int | None, *, is_only: bool) -> WorkList:
        tiles = choose(self.processor, heads, query_len, self.sequences.num_sequences)
        is_decode = None if is_only else query_len is not None
        return WorkList.build(
            self.sequences, heads, tiles, self.processor, window=self.window, shift=self.shift, is_decode=is_decode
        )


def plan_attention(ragged: Ragged, window: int, processor: Processor) -> AttentionPlan:
    """Prepare what all layers with this window share; see `Backend.plan_attention`."""
    return AttentionPlan(sequences=Sequences.of(ragged), processor=processor, window=window)


def paged_attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    plan: AttentionPlan,
    scale: float,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return attention of q `[T, Hq, D]` over the pool: `[T, Hq, D]`; see `Backend.paged_attention`."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _attend_all(q, pool[:, layer], plan, scale, softcap, sinks, out, None)
    return out


def partial_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    first_query: int,
    first_key: int,
    window: int,
    scale: float,
    softcap: float,
    processor: Processor,
) -> Partial:
    """Return attention of q `[T, Hq, D]` over kv `[2, Hk, n, D]` alone; see `Backend.partial_attention`."""
    num_rows, num_keys = q.shape[0], kv.shape[2]
    # One sequence, all of whose keys are one block.
    lengths = Ragged(query_lens=(num_rows,), kv_lens=(num_keys,), block_table=_zeros(q), block_size=ONE_BLOCK)
    shift = first_query - first_key - (num_keys - num_rows)
    plan = AttentionPlan(sequences=Sequences.of(lengths), processor=processor, window=window, shift=shift)
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    log_sums = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    _attend_all(q, kv[None], plan, scale, softcap, None, out, log_sums)
    return Partial(out=out, log_sum=log_sums)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1, 1, dtype=torch.int64, device=like.device)


def _attend_all(
    q: torch.Tensor,
    kv: torch.Tensor,
    plan: AttentionPlan,
    scale: float,
    softcap: float,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
    log_sums: torch.Tensor | None,
) -> None:
    """Write attention of q over kv `[N, 2, Hk, B, D]` to out, and the logs of its sums to `[T, Hq]`."""
    head_dim, table = q.shape[2], plan.sequences.block_table
    if q.stride()[1:] != (head_dim, 1):
        q = q.contiguous()
    heads = Heads(q.shape[1], kv.shape[2], head_dim, q.dtype, kv.dtype)
    codes = CODES.get(kv.dtype)
    # The kernel reads codes as bytes: there is no zero of fp8 to put where it does not look.
    stored = kv if codes is None else kv.view(torch.int8)
    is_listed = heads in plan.lists  # by an earlier layer, whose kernels are complete when this one's start
    for work in plan.work(heads):
        tiles = work.tiles
        # Left to itself the assembler makes room for more programs, at the price of spills; of fp32 it is the reverse.
        registers = None if heads.dtype == torch.float32 else tiles.registers
        _attend[(work.num_programs,)](
            q, stored, out, log_sums, work.part_out, work.part_log_sums, work.items, work.first_items, work.totals,
            work.arrivals, table, sinks, 2 * scale / softcap if softcap else scale, softcap, plan.window,
            q.stride(0), table.stride(0), *kv.stride()[:3], int(is_listed),
            NUM_KV_HEADS=heads.num_kv_heads, GROUP=heads.group, HEAD_DIM=head_dim, BLOCK_SIZE=plan.sequences.block_size,
            ROWS=tiles.rows, LIVE_ROWS=work.rows, KEYS=tiles.keys, WINDOWED=plan.window > 0, CAPPED=softcap > 0,
            CODES=codes, MERGES=not work.merges_apart, OVERLAPS=plan.processor.overlaps, num_warps=tiles.num_warps,
            num_stages=tiles.num_stages, maxnreg=registers, launch_pdl=plan.processor.overlaps,
        )  # fmt: skip
        if work.merges_apart:
            merge(work, heads, out, log_sums, sinks, overlaps=plan.processor.overlaps)


@triton.jit(
    do_not_specialize=["window", "table_stride", "is_listed"],
    do_not_specialize_on_alignment=["items", "first_items", "totals", "arrivals", "table"],
)
def _attend(
    q, kv, out, log_sums, part_out, part_log_sums, items, first_items, totals, arrivals, table, sinks,
    scale, softcap, window, q_stride, table_stride, block_stride, value_stride, head_stride, is_listed,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, LIVE_ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    CODES: tl.constexpr, MERGES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:  # noqa: SIM102 - at compile time, unlike the next
        if is_listed == 0:
            gdc_wait()
    # Decodes have few scores to mask; a second loop would be more code than it saves.
    PEELED: tl.constexpr = ROWS > 64
    program = tl.program_id(0)
    num_items, total, share = tl.load(totals), tl.load(totals + 1), tl.load(totals + 2)
    begin_share = program * share
    end_share = tl.minimum(begin_share + share, total * NUM_KV_HEADS)
    item = tl.load(first_items + program)
    at = begin_share
    row = tl.arange(0, ROWS)
    token = row // GROUP
    d = tl.arange(0, triton.next_power_of_2(HEAD_DIM))
    record = read_item(items, tl.maximum(item, 0), False)  # of a list without any item nothing is made
    if OVERLAPS:  # for queries, keys and values
        gdc_wait()
    while at < end_share:
        sequence, first_row, num_tokens, first_query, num_keys, first_tile, num_tiles, start = record
        head = at // total
        tile = at - head * total - start
        end_tile = tl.minimum(tile + end_share - at, num_tiles)

        # Row r is head r - token GROUP of the group, so r alone says where its head lies in the token's.
        is_row = row < num_tokens * GROUP
        is_element = is_row[:, None] & (d < HEAD_DIM)[None, :]
        q_tile = q + first_row.to(tl.int64) * q_stride + head * (GROUP * HEAD_DIM)
        q_row = row * HEAD_DIM + token * (q_stride - GROUP * HEAD_DIM)
        queries = tl.load(q_tile + q_row[:, None] + d[None, :], mask=is_element, other=0.0)  # [ROWS, D]
        position = first_query + tl.minimum(token, num_tokens - 1)  # rows of nobody repeat the last
        last_query = first_query + num_tokens - 1
        blocks = table + sequence.to(tl.int64) * table_stride
        keys = kv + head.to(tl.int64) * head_stride
        values = keys + value_stride

        sums = (
            tl.zeros([ROWS, d.shape[0]], tl.float32),
            tl.full([ROWS], MINUS_INF, tl.float32),
            tl.zeros([ROWS], tl.float32),
        )
        begin, end = first_tile + tile, first_tile + end_tile
        masked = begin
        if PEELED:
            # Tiles from `whole` to `masked` are seen whole by every row.
            masked = tl.minimum(first_query + 1, num_keys) // KEYS
            masked = tl.maximum(tl.minimum(masked, end), begin)
            whole = begin
            if WINDOWED:
                whole = tl.maximum(tl.cdiv(last_query - window + 1, KEYS), begin)
                whole = tl.minimum(whole, masked)
                sums = _visit(
                    sums, queries, position, begin, whole, blocks, keys, values, block_stride, num_keys, first_query,
                    last_query, scale, softcap, window, HEAD_DIM, BLOCK_SIZE, KEYS, WINDOWED, CAPPED, CODES, True,
                )  # fmt: skip
            sums = _visit(
                sums, queries, position, whole, masked, blocks, keys, values, block_stride, num_keys, first_query,
                last_query, scale, softcap, window, HEAD_DIM, BLOCK_SIZE, KEYS, WINDOWED, CAPPED, CODES, False,
            )  # fmt: skip
        acc, highest, weight = _visit(
            sums, queries, position, masked, end, blocks, keys, values, block_stride, num_keys, first_query,
            last_query, scale, softcap, window, HEAD_DIM, BLOCK_SIZE, KEYS, WINDOWED, CAPPED, CODES, True,
        )  # fmt: skip

        # Read anew rather than kept in registers throughout the loops.
        _sequence, first_row, num_tokens, _query, _keys, _tile, num_tiles, start = read_item(items, item, True)
        total, share = tl.load(totals + 1, volatile=True), tl.load(totals + 2, volatile=True)
        begin_share = program * share
        head = at // total
        tile = at - head * total - start
        end_tile = tl.minimum(tile + end_share - at, num_tiles)
        is_row = row < num_tokens * GROUP
        is_element = is_row[:, None] & (d < HEAD_DIM)[None, :]
        if OVERLAPS and MERGES:  # noqa: SIM102 - what waited for its merge would keep room that others need
            if at + end_tile - tile == end_share:
                gdc_launch_dependents()
        is_all = (tile == 0) & (end_tile == num_tiles)
        if sinks is not None and is_all:
            sink = tl.load(sinks + head * GROUP + row % GROUP).to(tl.float32) * LOG2_E
            above = tl.maximum(highest, sink)
            weight = weight * tl.exp2(highest - above) + tl.exp2(sink - above)
            acc = acc * tl.exp2(highest - above)[:, None]
            highest = above
        sees = weight != 0.0  # so is a NaN, which stays
        acc = acc / tl.where(sees, weight, 1.0)[:, None]
        log_sum = tl.where(sees, highest + tl.log2(weight), MINUS_INF)
        if is_all:
            first_out = (first_row.to(tl.int64) * NUM_KV_HEADS + head) * GROUP
            out_row = row + token * ((NUM_KV_HEADS - 1) * GROUP)
            out_tile = out + first_out * HEAD_DIM
            tl.store(out_tile + out_row[:, None] * HEAD_DIM + d[None, :], acc, mask=is_element)
            if log_sums is not None:
                tl.store(log_sums + first_out + out_row, log_sum / LOG2_E, mask=is_row)
        else:
            first_part = (2 * program + (at > begin_share)).to(tl.int64) * ROWS
            part_tile = part_out + first_part * HEAD_DIM
            tl.store(part_tile + row[:, None] * HEAD_DIM + d[None, :], acc, mask=is_element)
            tl.store(part_log_sums + first_part + row, log_sum, mask=is_row)
        at += end_tile - tile
        item = tl.where(item + 1 == num_items, 0, item + 1)
        record = read_item(items, item, False)
    if MERGES:  # noqa: SIM102 - at compile time, unlike the next
        if begin_share < end_share:
            last_item = tl.where(item == 0, num_items, item) - 1
            merge_cut_items(
                out, log_sums, part_out, part_log_sums, items, tl.load(first_items + program), last_item, arrivals,
                sinks, begin_share, end_share, share, total, NUM_KV_HEADS, GROUP, HEAD_DIM, ROWS, LIVE_ROWS,
            )  # fmt: skip


@triton.jit
def _visit(
    sums, queries, position, begin, end, blocks, keys, values, block_stride, num_keys, first_query, last_query,
    scale, softcap, window,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr, CODES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return the sums with the key tiles of [begin, end) in them: out `[ROWS, D]` and, base 2, maximum and weight."""
    acc, highest, weight = sums
    SLOT: tl.constexpr = HEAD_DIM if CODES is None else HEAD_DIM + 2
    d = tl.arange(0, acc.shape[1])
    # With a cap, `scale` is twice that of scores, over the cap.
    to_exponent = LOG2_E if CAPPED else scale * LOG2_E
    for tile in range(begin, end):
        key = tile * KEYS + tl.arange(0, KEYS)
        is_seen = (key <= last_query) & (key < num_keys)  # by any row
        if WINDOWED:
            is_seen &= key > first_query - window
        if KEYS <= BLOCK_SIZE:
            block = tl.load(blocks + tile * KEYS // BLOCK_SIZE)
        elif MASKED:
            block = tl.load(blocks + key // BLOCK_SIZE, mask=is_seen, other=0)
        else:
            block = tl.load(blocks + key // BLOCK_SIZE)
        slot = block * block_stride + key % BLOCK_SIZE * SLOT  # [KEYS]

        k = _load(keys, slot, d, is_seen, HEAD_DIM, CODES, MASKED).to(queries.dtype)  # [KEYS, D]
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee")  # [ROWS, KEYS]
        if CODES is not None:
            scores *= _load_scales(keys, slot, is_seen, HEAD_DIM, MASKED)[None, :]
        if CAPPED:  # tanh x = (1 - exp(-2 x)) / (1 + exp(-2 x)) for x >= 0
            small = tl.exp2(-tl.abs(scores) * (scale * LOG2_E))
            scores = tl.where(scores < 0, -softcap, softcap) * ((1 - small) / (1 + small))
        if MASKED:
            is_visible = (key[None, :] <= position[:, None]) & (key < num_keys)[None, :]
            if WINDOWED:
                is_visible &= key[None, :] > position[:, None] - window
            scores = tl.where(is_visible, scores, MINUS_INF)
        above = tl.maximum(highest, tl.max(scores, 1) * to_exponent)
        level = tl.where(above == MINUS_INF, 0.0, above) if MASKED else above  # some rows have seen nothing yet
        weights = tl.exp2(scores * to_exponent - level[:, None])
        fade = tl.exp2(highest - level)
        weight = weight * fade + tl.sum(weights, 1)
        highest = above

        v = _load(values, slot, d, is_seen, HEAD_DIM, CODES, MASKED).to(queries.dtype)  # [KEYS, D]
        if CODES is not None:
            weights *= _load_scales(values, slot, is_seen, HEAD_DIM, MASKED)[None, :]
        acc = tl.dot(weights.to(queries.dtype), v, acc * fade[:, None], input_precision="ieee")
    return acc, highest, weight


@triton.jit
def _load(pages, slot, d, is_seen, HEAD_DIM: tl.constexpr, CODES: tl.constexpr, MASKED: tl.constexpr):
    """Return the elements of some slots: `[KEYS, D]`."""
    at = pages + slot[:, None] + d[None, :]
    if MASKED and d.shape[0] > HEAD_DIM:
        elements = tl.load(at, mask=is_seen[:, None] & (d < HEAD_DIM)[None, :], other=0)
    elif MASKED:
        elements = tl.load(at, mask=is_seen[:, None], other=0)
    elif d.shape[0] > HEAD_DIM:
        elements = tl.load(at, mask=(d < HEAD_DIM)[None, :], other=0)
    else:
        elements = tl.load(at)
    if CODES is not None:
        elements = elements.to(CODES, bitcast=True)
    return elements


@triton.jit
def _load_scales(pages, slot, is_seen, HEAD_DIM: tl.constexpr, MASKED: tl.constexpr):
    """Return what the codes of some slots are multiplied by: `[KEYS]` fp32, kept in bfloat16 behind them."""
    at = (pages + slot + HEAD_DIM).to(tl.pointer_type(tl.bfloat16))
    scales = tl.load(at, mask=is_seen, other=0.0) if MASKED else tl.load(at)
    return scales.to(tl.float32)
