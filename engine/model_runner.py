"""Runs a step on the device: tensors in, KV written, tokens out.

Knows the model and the pool's memory; knows nothing of queues or of who waits. Running a step again writes the same KV
to the same places, so a failed step may be retried in parts.
"""

from __future__ import annotations

import torch

from pagewire.core.kv_layout import BlockOrder
from pagewire.core.sampling import SamplingParams
from pagewire.engine.batch import Batch
from pagewire.engine.kv_cache import KVCache
from pagewire.engine.model.architecture import Model
from pagewire.engine.runner import OnGroup
from pagewire.engine.sampler import Sampler
from pagewire.engine.step import Computed, Draw, Grant, Step
from pagewire.kernels.backend import Backend
from pagewire.kernels.decoder_stack import OnLayer


class ModelRunner:
    """Step -> Batch -> forward -> sampled tokens. Layers are told of in `num_groups` groups; 1: not before the end.

    Blocks are spilled to `host` `[slots, L, 2, Hk, B, D]`. Raises ValueError where a group of layers is not one span of
    a block.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        backend: Backend,
        sampler: Sampler,
        num_groups: int = 1,
        host: torch.Tensor | None = None,
    ) -> None:
        layout = cache.layout
        if num_groups > 1 and (layout.num_layers % num_groups or layout.order is not BlockOrder.LAYER_OUTER):
            raise ValueError(
                f"layer_groups {num_groups}: {layout.num_layers} layers in blocks that are {layout.order} do not "
                "fall into that many equal spans"
            )
        self.num_recaptures = 0  # every step is computed eagerly: there is no graph to capture
        self._layers_per_group = layout.num_layers // num_groups
        self._model = model
        self._cache = cache
        self._backend = backend
        self._sampler = sampler
        self._host = host
        self._stage = torch.zeros_like(cache.pool[:1])  # where rehearsals write

    @torch.inference_mode()
    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        """Compute a step; return what was sampled and scored, by request id."""
        sealed = [grant for grant in step.grants if grant.seal]

        def wrote(layer: int) -> None:
            group, rest = divmod(layer + 1, self._layers_per_group)
            if rest == 0:
                for grant in sealed:
                    self._seal(grant, slice(layer + 1 - self._layers_per_group, layer + 1))
                if self._layers_per_group < self._cache.layout.num_layers:
                    on_group(step, group - 1)

        return self._compute(step, self._cache.pool, wrote if sealed else None)

    @torch.inference_mode()
    def rehearse(self, num_tokens: int = 1) -> None:
        """Compute that many tokens, at most a block of them, for nobody: on a block that is not the pool's."""
        draw = Draw(sampling=SamplingParams(temperature=0.0), index=0, position=0)
        grant = Grant(request_id="rehearsal", tokens=(0,) * num_tokens, start=0, block_ids=(0,), draw=draw)
        self._compute(Step(grants=(grant,)), self._stage, None)

    def _compute(self, step: Step, pool: torch.Tensor, wrote: OnLayer | None) -> dict[str, Computed]:
        batch = Batch.of(step, self._cache.layout.block_size, pool.device, self._host)
        logits = self._model.forward(batch, pool, wrote)  # [n, V]
        return self._sampler.draw(logits, batch) if batch.draws or batch.scorings else {}

    def _seal(self, grant: Grant, layers: slice) -> None:
        # What the tail block held before belongs to somebody else; it must not leave the pod.
        used = (grant.start + len(grant.tokens)) % self._cache.layout.block_size
        if used:
            self._backend.zero_slots(self._cache.pool[:, layers], grant.block_ids[-1], used)
