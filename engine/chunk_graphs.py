"""Chunks of prompts that are captured once and replayed: a graph for each bucket of lengths, for one sequence a step.

A short prompt is hundreds of kernels of microseconds, as a decode is, and launched one by one it takes as long as its
launches. What `GraphPool` does for decodes is done here for a step of one chunk. Longer chunks, which take longer than
their launches, and steps of several sequences are computed eagerly. Knows no queue. Invariant: rows of nobody have no
slot and are a sequence of no tokens, so that what is computed of them reads no key and writes none.
"""

from __future__ import annotations

import functools
import logging
import time
from dataclasses import replace

import torch

from pagewire.engine.batch import Batch
from pagewire.engine.capture import Capture, Work
from pagewire.engine.draw_rows import rows_of
from pagewire.engine.graph_pool import Forward, GraphLimits, Replayed
from pagewire.engine.packed_batch import host_memory, lines
from pagewire.engine.step import Grant, Step
from pagewire.kernels.graph_ops import GraphOps
from pagewire.kernels.ragged import DeviceLengths, Ragged
from pagewire.kernels.sampling_columns import COLUMNS, SamplingColumns

log = logging.getLogger(__name__)

NOWHERE = -1  # the slot of a row of nobody


class ChunkGraphs:
    """The graphs of one model over one pool `[N, L, 2, Hk, B, D]`."""

    def __init__(
        self, model: Forward, pool: torch.Tensor, ops: GraphOps, capture: Capture, limits: GraphLimits
    ) -> None:
        self._model = model
        self._pool = pool
        self._ops = ops
        self._capture = capture
        self._block_size = limits.block_size
        self._width = -(-limits.max_model_len // limits.block_size)
        self._buckets = limits.chunk_buckets()
        self._logits = torch.zeros(1, limits.vocab_size, dtype=torch.float32, device=pool.device)
        self._token = torch.zeros(1, dtype=torch.int64, device=pool.device)
        self._graphs: dict[int, tuple[_Inputs, Work]] = {}

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture every bucket, the largest first: what the others need fits into its memory."""
        started_s = time.monotonic()
        for size in reversed(self._buckets):
            inputs = _Inputs(size, self._width, self._block_size, self._pool.device)
            self._graphs[size] = inputs, self._capture(functools.partial(self._compute, inputs))
        elapsed_s = time.monotonic() - started_s
        log.info(
            "graphs of chunks: %d captured, up to %d tokens, %.1f s", len(self._graphs), self._buckets[-1], elapsed_s
        )

    def fits(self, step: Step) -> bool:
        """Return whether a step is replayed."""
        grant = step.grants[0]
        return (
            len(step.grants) == 1
            and 1 < len(grant.tokens) <= self._buckets[-1]
            and not (grant.forks or grant.scoring or grant.spilled)
            and (grant.draw is None or not grant.draw.num_candidates)
        )

    def run(self, step: Step) -> Replayed:
        """Replay a step that fits, without waiting for the device."""
        (grant,) = step.grants
        inputs, replay = self._graphs[next(size for size in self._buckets if size >= len(grant.tokens))]
        inputs.fill(grant)
        replay()
        batch = replace(inputs.batch, draws=grant.draws())
        # Sent when it is read: whoever seals what leaves the pod does that before, and so it is waited for too.
        return Replayed(logits=self._logits, batch=batch, read_tokens=lambda: self._ops.send_tokens(self._token)())

    def _compute(self, inputs: _Inputs) -> None:
        self._logits.copy_(self._model.forward(inputs.batch, self._pool))
        self._ops.draw(self._logits, inputs.columns, self._token)


class _Inputs:
    """What a chunk of up to `num_rows` tokens reads: static memory, filled by one copy from pinned memory a step."""

    def __init__(self, num_rows: int, width: int, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        # Tokens, positions, slots, block table, where rows begin and end, tokens in the cache, row that draws, how.
        self._counts = (num_rows, num_rows, num_rows, width, 2, 1, 1, COLUMNS)
        self._num_rows = num_rows
        self._memory = torch.zeros(sum(map(lines, self._counts)), dtype=torch.int64, device=device)
        token_ids, positions, slots, table, query_starts, kv_lens, logit_rows, columns = self._parts(self._memory)
        # What runs while it is captured touches no block.
        slots.fill_(NOWHERE)
        query_starts.view(torch.int32)[2] = num_rows
        self.columns = SamplingColumns.view(columns.view(COLUMNS, 1))
        lengths = DeviceLengths(query_starts=query_starts.view(torch.int32)[:3], kv_lens=kv_lens.view(torch.int32))
        self.batch = Batch(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            ragged=Ragged(
                query_lens=(num_rows, 0),
                kv_lens=(width * block_size, 0),
                block_table=table.expand(2, width),
                block_size=block_size,
                on_device=lengths,
            ),
            logit_rows=logit_rows,
            draws={},
            scorings={},
        )

    def fill(self, grant: Grant) -> None:
        """Send what a grant needs, without waiting."""
        memory = host_memory(len(self._memory), self._memory.device)
        token_ids, positions, slots, table, query_starts, kv_lens, logit_rows, columns = self._parts(memory)
        count, ids = len(grant.tokens), torch.tensor(grant.block_ids, dtype=torch.int64)
        places = torch.arange(grant.start, grant.start + count)
        for part, values, nobody in (
            (token_ids, torch.tensor(grant.tokens, dtype=torch.int64), 0),
            (positions, places, 0),
            (slots, ids[places // self._block_size] * self._block_size + places % self._block_size, NOWHERE),
            (table, ids, 0),
        ):
            part[: len(values)], part[len(values) :] = values, nobody
        query_starts.view(torch.int32)[:3] = torch.tensor((0, count, self._num_rows), dtype=torch.int32)
        kv_lens.view(torch.int32)[:] = torch.tensor((grant.start + count, 0), dtype=torch.int32)
        logit_rows[0] = count - 1
        draws = [] if grant.draw is None else [grant.draw]  # of a chunk that is not the last nobody reads the token
        SamplingColumns.view(columns.view(COLUMNS, 1)).fill(rows_of(draws))
        self._memory.copy_(memory, non_blocking=True)

    def _parts(self, memory: torch.Tensor) -> list[torch.Tensor]:
        sizes = [lines(count) for count in self._counts]
        return [part[:count] for part, count in zip(torch.split(memory, sizes), self._counts, strict=True)]
