"""What captured steps read: static memory on the device, filled by one copy from pinned memory a step.

For each row a token, its position and its slot; for each sequence the tokens in its cache; for each token that is drawn
how. Blocks are in a `GraphTable`. Knows no graph. Invariant: a row that nobody sits in has no slot, and whose it is has
no tokens, so that its computation reads no key and writes none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from pagewire.engine.batch import Batch
from pagewire.engine.draw_rows import rows_of
from pagewire.engine.graph_limits import Bucket, GraphLimits
from pagewire.engine.graph_table import GraphTable
from pagewire.engine.packed_batch import lines
from pagewire.engine.step import Draw, Grant
from pagewire.kernels.ragged import DeviceLengths, Ragged
from pagewire.kernels.sampling_columns import COLUMNS, SamplingColumns

NOWHERE = -1  # the slot of a row of nobody


class GraphInputs(Protocol):
    """Those of one bucket; the inputs of all buckets lie in the same memory."""

    batch: Batch
    columns: SamplingColumns  # of each row of logits

    def fill(self, grants: Sequence[Grant]) -> None:
        """Send what grants need, row by row, without waiting; without any, inputs in which nothing is anybody's."""
        ...


class DecodeInputs:
    """Those of decodes: of each sequence one row, which has logits."""

    def __init__(self, bucket: Bucket, table: GraphTable, limits: GraphLimits) -> None:
        self._table = table
        self._num_rows = num_rows = bucket.num_rows
        self._block_size = limits.block_size
        self._counts = self.counts(bucket)
        token_ids, positions, slots, kv_lens, columns = parts_of(table.memory, self._counts)
        self.columns = columns_of(columns)
        query_starts = torch.arange(num_rows + 1, dtype=torch.int32, device=table.memory.device)
        self.batch = Batch(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            ragged=Ragged(
                query_lens=(1,) * num_rows,
                kv_lens=(limits.max_model_len,) * num_rows,
                block_table=table.blocks[:num_rows],
                block_size=limits.block_size,
                on_device=DeviceLengths(query_starts=query_starts, kv_lens=shorts(kv_lens)),
            ),
            logit_rows=None,
            draws={},
            scorings={},
        )

    @classmethod
    def counts(cls, bucket: Bucket) -> tuple[int, ...]:
        """Return how many numbers each part is: tokens, positions, slots, tokens in the cache, columns."""
        return (*(bucket.num_rows,) * 4, COLUMNS * bucket.num_rows)

    def fill(self, grants: Sequence[Grant]) -> None:
        """See `GraphInputs`; the grants are of one token each."""
        self._send(grants, [grant.tokens[0] for grant in grants])

    def follow(self, grants: Sequence[Grant], places: Sequence[int], drawn: torch.Tensor) -> None:
        """Do as `fill` for grants whose tokens are at these places of `drawn` `[C]`, where the device may yet draw."""
        self._send(grants, places)
        token_ids = self.batch.token_ids
        # A row without a distribution has none; its sequence ends once the host hears of it.
        token_ids.copy_(drawn.index_select(0, token_ids).clamp_(min=0))

    def _send(self, grants: Sequence[Grant], tokens: Sequence[int]) -> None:
        self._table.send(grants, size_of(self._counts), functools.partial(self._write, grants, tokens))

    def _write(self, grants: Sequence[Grant], tokens: Sequence[int], host: torch.Tensor) -> None:
        token_ids, positions, slots, kv_lens, columns = parts_of(host, self._counts)
        count, size = len(grants), self._block_size
        for part, values, nobody in (
            (token_ids, tokens, 0),
            (positions, [grant.start for grant in grants], 0),
            (slots, [grant.block_ids[grant.start // size] * size + grant.start % size for grant in grants], NOWHERE),
            (shorts(kv_lens), [grant.start + 1 for grant in grants], 0),
        ):
            # By way of numpy, which reads a list of numbers in a third of the time.
            part[:count] = torch.from_numpy(np.array(values, dtype=np.int64))
            part[count:] = nobody
        columns_of(columns).fill(rows_of([draw_of(grant) for grant in grants]))


def draw_of(grant: Grant) -> Draw:
    """Return the one draw of a grant."""
    assert grant.draw is not None, "every decode of a captured step draws"
    return grant.draw


def size_of(counts: Sequence[int]) -> int:
    """Return how many numbers parts of so many are, each of whole lines."""
    return sum(map(lines, counts))


def parts_of(memory: torch.Tensor, counts: tuple[int, ...]) -> list[torch.Tensor]:
    """Return views of so many numbers each, which begin on lines."""
    each = torch.split(memory[: size_of(counts)], [lines(count) for count in counts])
    return [part[:count] for part, count in zip(each, counts, strict=True)]


def shorts(part: torch.Tensor) -> torch.Tensor:
    """Return `[n]` int32 that lie where `[n]` int64 do."""
    return part.view(torch.int32)[: len(part)]


def columns_of(part: torch.Tensor) -> SamplingColumns:
    """Return the columns that lie in `[7 n]` int64."""
    return SamplingColumns.view(part.view(COLUMNS, -1))
