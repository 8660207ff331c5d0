"""A model that several ranks compute: rank 0's side, which stands in for a model of one process.

Knows the others by their group alone. Invariant: however a pass ends, all ranks are behind it; a pass in which any of
them failed has failed here too.
"""

from __future__ import annotations

import traceback
from itertools import accumulate

import torch

from pagewire.engine.batch import Batch
from pagewire.engine.kv_cache import KVCache
from pagewire.engine.model.decoder import Decoder
from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks.model_pass import ModelPass
from pagewire.engine.ranks.rank_failed import RankFailed
from pagewire.engine.ranks.rank_group import RankGroup
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.kernels.decoder_stack import OnLayer


class RankedModel:
    """Satisfies `Model`. Rank 0's heads are the first of the pool's, or all of its part.

    Whatever is computed against other memory than the `pool` is a rehearsal, on a stage.
    """

    def __init__(self, model: Decoder, group: RankGroup, cache: KVCache) -> None:
        self._model = model
        self._group = group
        self._pool = cache.pool
        self._num_heads = cache.heads_of(Shard(num_ranks=group.num_ranks)).shape[3]

    @property
    def arithmetic(self) -> str:
        """See `Model`: the part's own, whose layers are composed."""
        return self._model.arithmetic

    def forward(self, batch: Batch, pool: torch.Tensor, wrote: OnLayer | None = None) -> torch.Tensor:
        """See `Model`; when it returns every rank has written its heads. Raises RankFailed where another rank failed,
        RankLost where it is gone.
        """
        ragged, numbers = batch.ragged, batch.numbers
        assert numbers is not None, "there are no graphs of several ranks"
        assert ragged.spilled is None, "what is spilled lies in one rank's memory"
        assert wrote is None, "whether all ranks succeed is known at the end alone"
        self._group.begin(
            ModelPass(
                query_lens=ragged.query_lens,
                kv_lens=ragged.kv_lens,
                adapters=_adapters(batch),
                block_table=tuple(map(tuple, numbers.block_table.tolist())),
                tokens=tuple(numbers.token_ids.tolist()),
                on_stage=pool.data_ptr() != self._pool.data_ptr(),
            )
        )
        try:
            logits = self._model.forward(batch, pool[:, :, :, : self._num_heads])
        except RankLost:
            raise
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # what it held is room that the end of the pass may need
            self._group.end(ragged.num_rows)
            raise
        failures = self._group.end(ragged.num_rows)
        if failures:
            raise RankFailed("; ".join(failures))
        return logits


def _adapters(batch: Batch) -> tuple[int, ...]:
    """Return the number of each sequence's adapter, 0 for none."""
    numbers = [0] * batch.ragged.num_rows
    for rows in batch.adapted:
        numbers[rows.first : rows.end] = [rows.number] * (rows.end - rows.first)
    return tuple(numbers[end - 1] for end in accumulate(batch.ragged.query_lens))
