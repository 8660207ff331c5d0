"""What captured steps read that are not decodes alone: chunks of prompts, and decodes beside them.

See `graph_inputs.py`. Rows are shared out among sequences, whatever each has; what is left of them is one more's, which
is nobody's. Logits are those of the rows that tokens are drawn behind, in the order of the draws: no more than there
may be sequences.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from pagewire.engine.batch import Batch, draws_of
from pagewire.engine.batch_numbers import Numbers, draw_rows, numbers
from pagewire.engine.draw_rows import rows_of
from pagewire.engine.graph_inputs import NOWHERE, columns_of, parts_of, shorts, size_of
from pagewire.engine.graph_limits import Bucket, GraphLimits
from pagewire.engine.graph_table import GraphTable
from pagewire.engine.step import Grant
from pagewire.kernels.ragged import SHORT, DeviceLengths, Ragged
from pagewire.kernels.sampling_columns import COLUMNS


class MixedInputs:
    """Those of one bucket; satisfies `GraphInputs`."""

    def __init__(self, bucket: Bucket, table: GraphTable, limits: GraphLimits) -> None:
        self._table = table
        self._num_rows, num_sequences = bucket.num_rows, bucket.num_sequences
        self._block_size = limits.block_size
        self._counts = self.counts(bucket)
        token_ids, positions, slots, query_starts, kv_lens, logit_rows, columns = parts_of(table.memory, self._counts)
        self.columns = columns_of(columns)
        # What may be among them: of one sequence all is attended as a chunk, of several some as decodes.
        lengths = (self._num_rows,) if num_sequences == 1 else (SHORT, self._num_rows - SHORT)
        self.batch = Batch(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            ragged=Ragged(
                query_lens=(*lengths, *(0,) * (num_sequences + 1 - len(lengths))),
                kv_lens=(*(limits.max_model_len,) * num_sequences, 0),
                block_table=table.blocks[: num_sequences + 1],
                block_size=limits.block_size,
                on_device=DeviceLengths(query_starts=shorts(query_starts), kv_lens=shorts(kv_lens)),
            ),
            logit_rows=logit_rows,
            draws={},
            scorings={},
        )

    @classmethod
    def counts(cls, bucket: Bucket) -> tuple[int, ...]:
        """Return how many numbers each part is.

        Tokens, positions, slots; where rows begin, tokens in the cache; rows that have logits, columns.
        """
        most = bucket.num_sequences
        return (*(bucket.num_rows,) * 3, most + 2, most + 1, most, COLUMNS * most)

    def fill(self, grants: Sequence[Grant]) -> None:
        """See `GraphInputs`."""
        self._table.send(grants, size_of(self._counts), functools.partial(self._write, grants))

    def _write(self, grants: Sequence[Grant], host: torch.Tensor) -> None:
        *parts, columns = parts_of(host, self._counts)
        token_ids, positions, slots, query_starts, kv_lens, logit_rows = (part.numpy() for part in parts)
        lengths = numbers([len(grant.tokens) for grant in grants])
        starts = numbers([grant.start for grant in grants])
        ends = np.cumsum(lengths)
        num_rows = int(lengths.sum())
        places = np.repeat(starts - (ends - lengths), lengths) + np.arange(num_rows)
        draws = list(draws_of(grants).values())
        rows = [row for grant, end in zip(grants, ends.tolist(), strict=True) for row in draw_rows(grant, end)]
        for part, values, nobody in (
            (token_ids, numbers(list(chain.from_iterable(grant.tokens for grant in grants))), 0),
            (positions, places, 0),
            (slots, self._slots(grants, starts, lengths, places), NOWHERE),
            (query_starts.view(np.int32)[: len(query_starts)], np.append(0, ends), num_rows),
            (kv_lens.view(np.int32)[: len(kv_lens)], starts + lengths, 0),
            (logit_rows, numbers(rows), 0),
        ):
            part[: len(values)], part[len(values) :] = values, nobody
        query_starts.view(np.int32)[len(query_starts) - 1] = self._num_rows  # nobody's go to the end
        columns_of(columns).fill(rows_of(draws))

    def _slots(self, grants: Sequence[Grant], starts: Numbers, lengths: Numbers, places: Numbers) -> Numbers:
        """Return the slot of each token, of the blocks that the grants write to laid end to end."""
        size = self._block_size
        firsts, ends = starts // size, (starts + lengths - 1) // size + 1
        spans = zip(grants, firsts.tolist(), ends.tolist(), strict=True)
        blocks = numbers([block for grant, first, end in spans for block in grant.block_ids[first:end]])
        before = np.cumsum(ends - firsts) - (ends - firsts)  # blocks of the grants before each
        at = np.repeat(before - firsts, lengths) + places // size
        return blocks[at] * size + places % size
