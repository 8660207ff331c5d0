"""Runs a step on the device: tensors in, KV written, tokens out.

Knows the model and the pool's memory; knows nothing of queues or of who waits. Running a step again writes the same KV
to the same places, so a failed step may be retried in parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagewire.core.kv_layout import BlockOrder
from pagewire.core.sampling import SamplingParams
from pagewire.engine.block import table_of
from pagewire.engine.graph_limits import Bucket
from pagewire.engine.graph_pool import GraphPool, Replayed
from pagewire.engine.kv_cache import KVCache, on_device
from pagewire.engine.model.architecture import Model
from pagewire.engine.packed_batch import BatchOf, batch_maker
from pagewire.engine.runner import OnGroup, Pending
from pagewire.engine.sampler import Sampler
from pagewire.engine.step import AHEAD, Computed, Draw, Grant, Step
from pagewire.kernels.backend import Backend
from pagewire.kernels.decoder_stack import OnLayer


class ModelRunner:
    """Step -> Batch -> forward -> sampled tokens. Layers are told of in `num_groups` groups; 1: not before the end.

    Steps that fit are replayed from `graphs`. Blocks are spilled to `host` `[slots, L, 2, Hk, B, D]`. Raises ValueError
    where a group of layers is not one span of a block.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        backend: Backend,
        sampler: Sampler,
        num_groups: int = 1,
        host: torch.Tensor | None = None,
        graphs: GraphPool | None = None,
        batch_of: BatchOf | None = None,
    ) -> None:
        layout = cache.layout
        if num_groups > 1 and (layout.num_layers % num_groups or layout.order is not BlockOrder.LAYER_OUTER):
            raise ValueError(
                f"layer_groups {num_groups}: {layout.num_layers} layers in blocks that are {layout.order} do not "
                "fall into that many equal spans"
            )
        self.graphs = graphs
        self._device = cache.pool.device
        self._batch_of = batch_of or batch_maker(self._device)
        self._layers_per_group = layout.num_layers // num_groups
        self._model = model
        self._cache = cache
        self._backend = backend
        self._sampler = sampler
        self._host = host
        self._stage = torch.zeros_like(cache.pool[:1])  # where rehearsals write

    @property
    def num_recaptures(self) -> int:
        """Graphs captured since the warm-up; 0 where every step is computed eagerly."""
        return self.graphs.num_recaptures if self.graphs is not None else 0

    @torch.inference_mode()
    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        """Compute a step; return what was sampled and scored, by request id."""
        with on_device(self._device):
            return self._run(step, on_group)

    @torch.inference_mode()
    def launch(self, step: Step) -> Pending | None:
        """Replay a step whose tokens are drawn within its graph, and wait for nothing; see `Launcher`."""
        bucket = self._bucket_of(step)
        if bucket is None or not all(_is_drawn_within(grant.draw) for grant in step.grants):
            return None
        assert self.graphs is not None
        if step.grants[0].tokens[0] == AHEAD and not self.graphs.is_captured(bucket):
            return None
        with on_device(self._device):
            replayed = self._replay(step, bucket)

        def wait() -> dict[str, Computed]:
            drawn = zip(replayed.batch.draws, replayed.read_tokens(), strict=True)
            return {name: Computed(token=token) for name, token in drawn}

        return wait

    def _run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        if (bucket := self._bucket_of(step)) is not None:
            replayed = self._replay(step, bucket)
            if replayed.batch.draws:
                return self._sampler.draw(replayed.logits, replayed.batch, replayed.read_tokens)
            replayed.read_tokens()  # there are none, but whoever hears of the step takes it for done
            return {}
        sealed = [grant for grant in step.grants if grant.seal]
        if not sealed or self._layers_per_group == self._cache.layout.num_layers:
            return self._compute(step, self._cache.pool, sealed=sealed)

        def wrote(layer: int) -> None:
            group, rest = divmod(layer + 1, self._layers_per_group)
            if rest == 0:
                self._seal(sealed, slice(layer + 1 - self._layers_per_group, layer + 1))
                on_group(step, group - 1)

        return self._compute(step, self._cache.pool, wrote)

    @torch.inference_mode()
    def rehearse(self, num_tokens: int = 1, num_draws: int = 1) -> None:
        """Compute that many tokens for nobody, in sequences of a block: all on one that is not the pool's.

        So many tokens are drawn as `num_draws`, behind the last of theirs, if there are so many.
        """
        block, draw = self._cache.layout.block_size, Draw(sampling=SamplingParams(temperature=0.0), index=0, position=0)
        grants: list[Grant] = []
        left = num_draws
        for start in range(0, num_tokens, block):
            length = min(block, num_tokens - start)
            draws = min(length, -(-left // -(-(num_tokens - start) // block)))  # as many of each as there are of others
            grants.append(
                Grant(
                    request_id=str(start), tokens=(0,) * length, start=0, block_ids=table_of((0,)),
                    draw=draw if draws else None, checks=(draw,) * (draws - 1),
                )
            )  # fmt: skip
            left -= draws
        with on_device(self._device):
            self._compute(Step(grants=tuple(grants)), self._stage)

    @torch.inference_mode()
    def rehearse_copies(self) -> None:
        """Seal, copy, take out and put back the block of nobody: each device compiles what it needs for that."""
        for part in self._cache.parts:
            stage, block = torch.zeros_like(part[:1]), torch.zeros(1, dtype=torch.int64, device=part.device)
            with on_device(part.device):
                self._backend.zero_slots(stage, 0, 1)
                self._backend.copy_blocks(stage, block, block)
                self._backend.scatter_blocks(stage, block, self._backend.gather_blocks(stage, block))

    def _compute(
        self, step: Step, pool: torch.Tensor, wrote: OnLayer | None = None, sealed: Sequence[Grant] = ()
    ) -> dict[str, Computed]:
        batch = self._batch_of(step, self._cache.layout.block_size, pool.device, self._host)
        logits = self._model.forward(batch, pool, wrote)  # [n, V]
        if sealed:
            self._seal(sealed, slice(0, self._cache.layout.num_layers))
        if batch.draws or batch.scorings:
            return self._sampler.draw(logits, batch)
        self._wait()
        return {}

    def _bucket_of(self, step: Step) -> Bucket | None:
        """Return whose graph replays a step; within a replay nobody is told of groups of layers."""
        has_groups = self._layers_per_group < self._cache.layout.num_layers
        if self.graphs is None or (has_groups and any(grant.seal for grant in step.grants)):
            return None
        return self.graphs.bucket_of(step)

    def _replay(self, step: Step, bucket: Bucket) -> Replayed:
        assert self.graphs is not None

        def seal() -> None:
            self._seal([grant for grant in step.grants if grant.seal], slice(0, self._cache.layout.num_layers))

        return self.graphs.run(step, bucket, seal)

    def _wait(self) -> None:
        if self._device.type == "cuda":  # nothing is read, but whoever hears of the step takes it for done
            torch.cuda.current_stream(self._device).synchronize()

    def _seal(self, grants: Sequence[Grant], layers: slice) -> None:
        # What the tail block held before belongs to somebody else; it must not leave the pod.
        for part in self._cache.parts:
            with on_device(part.device):
                for grant in grants:
                    if used := (grant.start + len(grant.tokens)) % self._cache.layout.block_size:
                        self._backend.zero_slots(part[:, layers], grant.block_ids[-1], used)
        for part in self._cache.parts:
            if part.device != self._device:  # else it is done when the step is
                torch.cuda.current_stream(part.device).synchronize()


def _is_drawn_within(draw: Draw | None) -> bool:
    """Return whether nothing is left to do behind a graph that draws: no edits, no reports, no typical-p."""
    if draw is None:
        return True
    sampling = draw.sampling
    return not sampling.edits_logits and sampling.logprobs is None and sampling.typical_p == 1.0
