"""What a captured decode step reads: static memory on the device, filled by one copy from pinned memory a step.

For each of C rows a token, its position, its slot, the tokens in its cache, and how to sample what follows; and behind
them the edits of the block table, which stays on the device: row r holds the blocks of whoever sits there, and only
what changed is sent. Knows no graph. Invariant: a row that nobody sits in has no slot and no tokens, so that its
computation reads no key and writes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import torch

from pagewire.engine.batch import Batch
from pagewire.engine.draw_rows import rows_of
from pagewire.engine.packed_batch import host_memory, lines
from pagewire.engine.step import Draw, Grant
from pagewire.kernels.ragged import DeviceLengths, Ragged
from pagewire.kernels.sampling_columns import COLUMNS, SamplingColumns


class GraphTable:
    """The block table of `num_rows` rows of `width` blocks, and the memory that fills it and all inputs."""

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        self.device = device
        self.width = width
        self.blocks = torch.zeros(num_rows, width, dtype=torch.int64, device=device)
        self.query_starts = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self.most_edits = lines(num_rows + width)  # a row anew, and a block for each of the others
        self.memory = torch.zeros(size_of(num_rows) + 2 * self.most_edits, dtype=torch.int64, device=device)
        self._known: list[tuple[int, ...]] = [()] * num_rows

    def edits(self, grants: Sequence[Grant]) -> list[tuple[int, int]]:
        """Return (place, block) of what the rows of these grants do not hold yet; from now on they are to."""
        found: list[tuple[int, int]] = []
        for row, grant in enumerate(grants):
            known, wanted, first = self._known[row], grant.block_ids, row * self.width
            if wanted is known or wanted == known:  # the same one, step after step, until a block is added
                continue
            kept = len(known)
            if wanted[:kept] == known:  # as a rule a block is added
                found += ((first + kept + place, block) for place, block in enumerate(wanted[kept:]))
            else:
                pairs = enumerate(zip_longest(wanted, known[: len(wanted)]))
                found += ((first + place, block) for place, (block, before) in pairs if block != before)
            self._known[row] = wanted
        return found

    def forget(self) -> None:
        """Have every row sent anew: something failed, and what the device holds is not known."""
        self._known = [()] * len(self._known)

    def upload(self, host: torch.Tensor, edits: Sequence[tuple[int, int]], size: int) -> None:
        """Copy `[size + 2 E]` numbers of the host over, whose last are what is filled in here: the edits."""
        count = len(edits)
        if count:
            host[size:].view(2, count).copy_(torch.tensor(edits, dtype=torch.int64).T)
        self.memory[: len(host)].copy_(host, non_blocking=True)
        if count:
            places, blocks = self.memory[size : size + 2 * count].view(2, count)
            self.blocks.view(-1).scatter_(0, places, blocks)


def size_of(num_rows: int) -> int:
    """Return how many numbers the inputs of so many rows are."""
    return (4 + COLUMNS) * lines(num_rows)


class GraphInputs:
    """The inputs of `num_rows` rows; those of all sizes lie in the same memory."""

    def __init__(self, table: GraphTable, num_rows: int, block_size: int, max_model_len: int) -> None:
        self._table = table
        self._num_rows = num_rows
        self._block_size = block_size
        self._size = size_of(num_rows)
        token_ids, positions, slots, kv_lens, columns = _parts(table.memory, num_rows)
        self.columns = columns
        self.batch = Batch(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            ragged=Ragged(
                query_lens=(1,) * num_rows,
                kv_lens=(max_model_len,) * num_rows,
                block_table=table.blocks[:num_rows],
                block_size=block_size,
                on_device=DeviceLengths(query_starts=table.query_starts[: num_rows + 1], kv_lens=kv_lens),
            ),
            logit_rows=None,
            draws={},
            scorings={},
        )

    def fill(self, grants: Sequence[Grant]) -> None:
        """Send what grants of one token each need, row by row, without waiting."""
        self._send(grants, [grant.tokens[0] for grant in grants])

    def follow(self, grants: Sequence[Grant], rows: Sequence[int], drawn: torch.Tensor) -> None:
        """Do as `fill` for grants whose tokens are those of `rows` of `drawn` `[C]`, which the device may yet draw."""
        self._send(grants, rows)
        token_ids = self.batch.token_ids
        # A row without a distribution has none; its sequence ends once the host hears of it.
        token_ids.copy_(drawn.index_select(0, token_ids).clamp_(min=0))

    def _send(self, grants: Sequence[Grant], tokens: Sequence[int]) -> None:
        edits, most = self._table.edits(grants), self._table.most_edits
        while len(edits) > most:  # many new sequences at once
            part, edits = edits[:most], edits[most:]
            self._table.upload(host_memory(2 * most, self._table.device), part, 0)
        host = host_memory(self._size + 2 * len(edits), self._table.device)
        token_ids, positions, slots, kv_lens, columns = _parts(host, self._num_rows)
        count, size = len(grants), self._block_size
        for part_, values, nobody in (
            (token_ids, tokens, 0),
            (positions, [grant.start for grant in grants], 0),
            (slots, [grant.block_ids[grant.start // size] * size + grant.start % size for grant in grants], -1),
            (kv_lens, [grant.start + 1 for grant in grants], 0),
        ):
            # By way of numpy, which reads a list of numbers in a third of the time.
            part_[:count] = torch.from_numpy(np.array(values, dtype=np.int64))
            part_[count:] = nobody
        columns.fill(rows_of([draw_of(grant) for grant in grants]))
        self._table.upload(host, edits, self._size)

    def fill_with_nobody(self) -> None:
        """Send inputs in which no row is anybody's."""
        self.fill(())


def draw_of(grant: Grant) -> Draw:
    """Return the one draw of a grant."""
    assert grant.draw is not None, "every sequence of a captured step draws"
    return grant.draw


def _parts(
    memory: torch.Tensor, num_rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, SamplingColumns]:
    step = lines(num_rows)
    token_ids, positions, slots, kv_lens = (memory[at * step :][:num_rows] for at in range(4))
    columns = memory[4 * step :][: COLUMNS * num_rows].view(COLUMNS, num_rows)
    return token_ids, positions, slots, kv_lens.view(torch.int32)[:num_rows], SamplingColumns.view(columns)
