"""The work list of a batch: every tile that a row sees is in one share, and shares are equal."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.kernels.gpu.tiles import Heads, Processor, Tiles
from pagewire.kernels.gpu.work_list import Sequences, WorkList
from pagewire.kernels.ragged import SHORT, Ragged


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 4000)), min_size=1, max_size=12),
    group=st.integers(1, 12),
    num_kv_heads=st.integers(1, 5),
    rows=st.sampled_from([16, 64, 128]),
    keys=st.sampled_from([32, 64]),
    window=st.sampled_from([0, 1, 100, 1000]),
    num_sms=st.integers(1, 40),
    is_decode=st.booleans(),
)
def test_every_tile_is_in_one_share(
    lengths: list[tuple[int, int]], group: int, num_kv_heads: int, rows: int, keys: int, window: int, num_sms: int,
    is_decode: bool,
) -> None:  # fmt: skip
    query_lens = tuple(query_len for query_len, _ in lengths)
    kv_lens = tuple(query_len + before for query_len, before in lengths)
    table = torch.zeros(len(lengths), 1, dtype=torch.int64)
    ragged = Ragged(query_lens=query_lens, kv_lens=kv_lens, block_table=table, block_size=16)
    heads = Heads(group * num_kv_heads, num_kv_heads, 64, torch.float16, torch.float16)
    work = WorkList.build(
        Sequences.of(ragged), heads, Tiles(rows, keys, 4, 3, 2, 2), Processor((9, 0), num_sms), window=window,
        is_decode=is_decode,
    )  # fmt: skip

    tokens, expected = rows // group, []
    for sequence, (first_row, query_len, kv_len) in enumerate(
        zip(ragged.query_starts, query_lens, kv_lens, strict=True)
    ):
        for first in range(0, query_len if (query_len <= SHORT) == is_decode else 0, tokens):
            some = min(tokens, query_len - first)
            position = kv_len - query_len + first
            seen = range(max(0, position - window + 1) if window else 0, position + some)
            tiles = seen[-1] // keys - seen[0] // keys + 1
            expected.append((sequence, first_row + first, some, position, kv_len, seen[0] // keys, tiles))
    num_items, total, share = work.totals.tolist()
    items = work.items[:num_items].tolist()
    assert [tuple(item[:7]) for item in items] == expected

    # What each program walks, as the kernel does: (head, item, tile) of every position of its share.
    walked, busy = [], []
    for program in range(work.num_programs):
        at, end = program * share, min(program * share + share, total * num_kv_heads)
        item = int(work.first_items[program])
        busy.append(max(0, end - at))
        while at < end:
            head, within = divmod(at, total)
            tile = within - items[item][7]
            stop = min(tile + end - at, items[item][6])
            walked += [(head, item, each) for each in range(tile, stop)]
            at += stop - tile
            item = (item + 1) % num_items
    assert walked == [
        (head, item, tile)
        for head in range(num_kv_heads)
        for item in range(num_items)
        for tile in range(expected[item][6])
    ]
    assert share == max(-(-total * num_kv_heads // (2 * num_sms)), -(-256 // keys))
    assert all(tiles == share for tiles in busy[: total * num_kv_heads // share])
