"""Decode steps that are captured once and replayed: a graph for each bucket of batch sizes.

A step fits where every sequence computes one token and draws one; whatever else is computed eagerly, by the same model.
A replay reads nothing but `GraphInputs` and the pool: the work of attention is shared out on the device, so a graph
holds for any lengths, and tokens are drawn within it. Sequences keep their rows as long as they stay, so little of the
block table is sent; who is beyond the number of those that are left moves into a row that was.
Knows no queue. Invariant: rows of nobody touch no block (see `GraphOps`).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from pagewire.engine.batch import Batch
from pagewire.engine.capture import Capture, Work
from pagewire.engine.draw_rows import Drawn
from pagewire.engine.graph_inputs import GraphInputs, GraphTable, draw_of
from pagewire.engine.step import AHEAD, Grant, Step
from pagewire.kernels.graph_ops import GraphOps

log = logging.getLogger(__name__)

SMALL = (1, 2, 4, 8)
EVERY = 8
# Tokens of a chunk, so close that rows of nobody, which cost as much as others, are at most a fifth of a long one.
CHUNKS = (16, *range(32, 128, 32), *range(128, 512, 64), *range(512, 1024, 128), *range(1024, 2049, 256))


class Forward(Protocol):
    """What of a model is captured."""

    def forward(self, batch: Batch, pool: torch.Tensor) -> torch.Tensor:
        """Write the KV of the batch's tokens to the pool; return logits `[n, V]`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """What graphs are captured for."""

    max_num_seqs: int
    max_model_len: int
    block_size: int
    vocab_size: int
    longest_chunk: int = CHUNKS[-1]

    def buckets(self) -> tuple[int, ...]:
        """Return the batch sizes that are captured, ascending: 1, 2, 4, 8, multiples of 8, and the largest."""
        most = self.max_num_seqs
        return (*(size for size in SMALL if size < most), *range(2 * EVERY, most, EVERY), most)

    def chunk_buckets(self) -> tuple[int, ...]:
        """Return the lengths of chunks that are captured, ascending: up to the first that holds every one."""
        longest = min(self.longest_chunk, self.max_model_len, CHUNKS[-1])
        holds = next(size for size in CHUNKS if size >= longest)
        return tuple(size for size in CHUNKS if size <= holds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay left on the device: logits and batch are valid until the next."""

    logits: torch.Tensor  # [S, V] fp32
    batch: Batch  # the captured one, with the draws of this step row by row
    read_tokens: Drawn  # waits


class GraphPool:
    """The graphs of one model over one pool `[N, L, 2, Hk, B, D]`."""

    def __init__(
        self, model: Forward, pool: torch.Tensor, ops: GraphOps, capture: Capture, limits: GraphLimits
    ) -> None:
        self.num_recaptures = 0
        self._model = model
        self._pool = pool
        self._ops = ops
        self._capture = capture
        self._limits = limits
        self._buckets = limits.buckets()
        device, most = pool.device, limits.max_num_seqs
        self._width = -(-limits.max_model_len // limits.block_size)
        self._table = GraphTable(most, self._width, device)
        self._logits = torch.zeros(most, limits.vocab_size, dtype=torch.float32, device=device)
        self._tokens = torch.zeros(most, dtype=torch.int64, device=device)
        self._inputs: dict[int, GraphInputs] = {}
        self._graphs: dict[int, Work] = {}
        self._is_warm = False
        self._names: list[str] = []  # who sits in each row

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture every bucket, the largest first: what the others need fits into its memory."""
        started_s = time.monotonic()
        for number, size in enumerate(reversed(self._buckets), 1):
            self._capture_bucket(size)
            log.info(
                "graphs: %d of %d captured, the last for %d sequences, %.1f s, %.0f MiB of the device in use",
                number, len(self._buckets), size, time.monotonic() - started_s, _memory_mib(self._pool.device),
            )  # fmt: skip
        self._is_warm = True

    def fits(self, step: Step) -> bool:
        """Return whether a step is replayed."""
        return len(step.grants) <= self._buckets[-1] and all(self._is_plain(grant) for grant in step.grants)

    def follows(self, step: Step) -> bool:
        """Return whether a step is replayed on the tokens that the last one left: to capture would overwrite them."""
        return self.fits(step) and self.bucket_of(len(step.grants)) in self._graphs

    def run(self, step: Step) -> Replayed:
        """Replay a step that fits, without waiting for the device; all of its tokens may be `AHEAD`."""
        before = {name: row for row, name in enumerate(self._names)}
        grants = self._seat(step.grants)
        is_ahead = step.grants[0].tokens[0] == AHEAD
        size = self.bucket_of(len(grants))
        if size not in self._graphs:
            self.num_recaptures += self._is_warm
            self._capture_bucket(size)
        try:
            if is_ahead:
                self._inputs[size].follow(grants, [before[grant.request_id] for grant in grants], self._tokens)
            else:
                self._inputs[size].fill(grants)
        except BaseException:
            self._table.forget()
            raise
        self._graphs[size]()
        count = len(grants)
        read_tokens = self._ops.send_tokens(self._tokens[:count])  # before another replay leaves its own there
        draws = {grant.request_id: draw_of(grant) for grant in grants}
        batch = replace(self._inputs[size].batch, draws=draws)
        return Replayed(logits=self._logits[:count], batch=batch, read_tokens=read_tokens)

    def bucket_of(self, num_sequences: int) -> int:
        """Return the size of the graph that so many sequences take."""
        return next(size for size in self._buckets if size >= num_sequences)

    def replay_of(self, size: int) -> Work:
        """Return what replays the graph of a bucket on the inputs that it has: for who measures it alone."""
        return self._graphs[size]

    def _is_plain(self, grant: Grant) -> bool:
        return (
            len(grant.tokens) == 1
            and grant.draw is not None
            and not (grant.forks or grant.draw.num_candidates or grant.scoring or grant.spilled or grant.seal)
            and len(grant.block_ids) <= self._width
        )

    def _seat(self, grants: tuple[Grant, ...]) -> list[Grant]:
        """Return the grants row by row: who has a row that is left keeps it, the others take what is free."""
        coming = {grant.request_id: grant for grant in grants}
        seated = [coming.pop(name, None) for name in self._names[: len(grants)]]
        seated += [None] * (len(grants) - len(seated))
        others = iter(coming.values())
        rows = [grant or next(others) for grant in seated]
        self._names = [grant.request_id for grant in rows]
        return rows

    def _capture_bucket(self, size: int) -> None:
        inputs = GraphInputs(self._table, size, self._limits.block_size, self._limits.max_model_len)
        inputs.fill_with_nobody()  # what runs while it is captured touches no block
        logits, tokens = self._logits[:size], self._tokens[:size]

        def work() -> None:
            logits.copy_(self._model.forward(inputs.batch, self._pool))
            self._ops.draw(logits, inputs.columns, tokens)

        self._graphs[size] = self._capture(work)
        self._inputs[size] = inputs


def _memory_mib(device: torch.device) -> float:
    return torch.cuda.memory_reserved(device) / 2**20 if device.type == "cuda" else 0.0
