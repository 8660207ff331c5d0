"""Steps that are captured once and replayed: a graph for each bucket of decodes, and of chunks with decodes beside.

A step of few tokens is hundreds of kernels of microseconds, and launched one by one it takes as long as its launches.
A replay reads nothing but its `GraphInputs`, the `GraphTable` and the pool: the work of attention is shared out on the
device, so a graph holds for any lengths, and tokens are drawn within it. What asks for more than tokens of a sequence,
and steps so large that they take longer than their launches, are computed eagerly, by the same model. Sequences keep
their rows as long as they stay, so little of the block table is sent; who is beyond the number of those that are left
moves into a row that was. Knows no queue. Invariant: rows of nobody touch no block (see `GraphOps`).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from pagewire.engine.batch import Batch, draws_of
from pagewire.engine.capture import Capture, Work
from pagewire.engine.draw_rows import Drawn
from pagewire.engine.graph_inputs import DecodeInputs, GraphInputs, size_of
from pagewire.engine.graph_limits import Bucket, GraphLimits
from pagewire.engine.graph_table import GraphTable
from pagewire.engine.mixed_inputs import MixedInputs
from pagewire.engine.step import AHEAD, Grant, Step
from pagewire.kernels.graph_ops import GraphOps

log = logging.getLogger(__name__)

TOLD = 10  # every so many graphs it is said how far their capture is


class Forward(Protocol):
    """What of a model is captured."""

    def forward(self, batch: Batch, pool: torch.Tensor) -> torch.Tensor:
        """Write the KV of the batch's tokens to the pool; return logits `[n, V]`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay left on the device, for each token that was drawn; it is valid until the next."""

    logits: torch.Tensor  # [n, V] fp32
    batch: Batch  # the captured one, with the draws of this step in the order of the logits
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
        self._decodes, self._mixed = limits.decodes(), limits.mixed()
        device, most = pool.device, limits.max_num_seqs
        most_inputs = max(size_of(_kind_of(bucket).counts(bucket)) for bucket in self._decodes + self._mixed)
        self._table = GraphTable(most, limits.width, most_inputs, device)
        self._logits = torch.zeros(most, limits.vocab_size, dtype=torch.float32, device=device)
        self._tokens = torch.zeros(most, dtype=torch.int64, device=device)
        self._inputs: dict[Bucket, GraphInputs] = {}
        self._graphs: dict[Bucket, Work] = {}
        self._is_warm = False
        self._names: list[str] = []  # who sits in each row
        self._places: dict[str, int] = {}  # where the token lies that the last step drew for each

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture every bucket, the largest first: what the others need fits into its memory."""
        started_s = time.monotonic()
        buckets = sorted(self._decodes + self._mixed, key=lambda bucket: bucket.num_rows, reverse=True)
        for number, bucket in enumerate(buckets, 1):
            self._capture_bucket(bucket)
            if number % TOLD == 0 or number == len(buckets):
                log.info(
                    "graphs: %d of %d captured, the last for %d tokens, %.1f s, %.0f MiB of the device in use", number,
                    len(buckets), bucket.num_rows, time.monotonic() - started_s, _memory_mib(self._pool.device),
                )  # fmt: skip
        self._is_warm = True

    def bucket_of(self, step: Step) -> Bucket | None:
        """Return whose graph replays a step, None where it is computed eagerly."""
        grants = step.grants
        if not all(self._is_ordinary(grant) for grant in grants):
            return None
        are_decodes = all(len(grant.tokens) == 1 and grant.draw is not None and not grant.seal for grant in grants)
        num_rows, num_sequences = step.num_tokens, max(len(grants), sum(grant.num_draws for grant in grants))
        for bucket in self._decodes if are_decodes else self._mixed:
            if num_sequences <= bucket.num_sequences and num_rows <= bucket.num_rows:
                return bucket
        return None

    def is_captured(self, bucket: Bucket) -> bool:
        """Return whether there is that graph; to capture it would overwrite the tokens that the last step left."""
        return bucket in self._graphs

    def run(self, step: Step, bucket: Bucket, finish: Work = lambda: None) -> Replayed:
        """Replay a step of that bucket and do what is to be done on the device behind it, without waiting for it.

        All tokens of decodes may be `AHEAD`.
        """
        before, grants = self._places, self._seat(step.grants)
        if bucket not in self._graphs:
            self.num_recaptures += self._is_warm
            self._capture_bucket(bucket)
        inputs = self._inputs[bucket]
        try:
            if isinstance(inputs, DecodeInputs) and grants[0].tokens[0] == AHEAD:
                inputs.follow(grants, [before[grant.request_id] for grant in grants], self._tokens)
            else:
                inputs.fill(grants)
        except BaseException:
            self._table.forget()
            raise
        self._graphs[bucket]()
        finish()
        draws = draws_of(grants)
        self._places = {name: place for place, name in enumerate(draws)}
        count = len(draws)
        read_tokens = self._ops.send_tokens(self._tokens[:count])  # before another replay leaves its own there
        return Replayed(logits=self._logits[:count], batch=replace(inputs.batch, draws=draws), read_tokens=read_tokens)

    def replay_of_decodes(self, count: int) -> Work:
        """Return what replays the graph of so many decodes on the inputs of the last step: for who measures it alone.

        That step must have been one of so many decodes; what another left there are no lengths.
        """
        return self._graphs[next(bucket for bucket in self._decodes if bucket.num_sequences >= count)]

    def _is_ordinary(self, grant: Grant) -> bool:
        """Return whether tokens at most are drawn for a grant, of one sequence, with no adapter."""
        return (
            not (grant.forks or grant.scoring or grant.spilled or grant.adapter)
            and (grant.draw is None or not grant.draw.num_candidates)
            and len(grant.block_ids) <= self._limits.width
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

    def _capture_bucket(self, bucket: Bucket) -> None:
        inputs = _kind_of(bucket)(bucket, self._table, self._limits)
        inputs.fill(())  # what runs while it is captured touches no block
        logits, tokens = self._logits[: bucket.num_sequences], self._tokens[: bucket.num_sequences]

        def work() -> None:
            logits.copy_(self._model.forward(inputs.batch, self._pool))
            self._ops.draw(logits, inputs.columns, tokens)

        self._graphs[bucket] = self._capture(work)
        self._inputs[bucket] = inputs


def _kind_of(bucket: Bucket) -> type[DecodeInputs | MixedInputs]:
    return DecodeInputs if bucket.are_decodes else MixedInputs


def _memory_mib(device: torch.device) -> float:
    # Whoever's it is: kernels and graphs themselves are not in what PyTorch counts.
    if device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 2**20
