"""The two seams of a model: what its folder describes before a weight is read, and what computes a batch afterwards."""

from __future__ import annotations

from typing import Protocol

import torch

from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.engine.batch import Batch
from pagewire.engine.model_folder import ModelFolder
from pagewire.kernels.backend import Backend
from pagewire.kernels.decoder_stack import OnLayer


class Model(Protocol):
    """Computes batches against the pool; without state of its own besides the weights."""

    @property
    def arithmetic(self) -> str:
        """The name of the code, where a sequence's bits are the same in any batch and chunk; "" where they are not."""
        ...

    def forward(self, batch: Batch, pool: torch.Tensor, wrote: OnLayer | None = None) -> torch.Tensor:
        """Write the KV of the batch's tokens to the pool; return logits `[n, V]` of its `logit_rows`.

        `wrote` hears of each layer, in order, once the KV of that layer is in the pool.
        """
        ...


class Architecture(Protocol):
    """Sizes of one model, and how to load it."""

    @property
    def path(self) -> str:
        """Which code computes it, for people."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of its logits."""
        ...

    @property
    def max_positions(self) -> int:
        """The longest sequence that it serves."""
        ...

    @property
    def window(self) -> int:
        """How many tokens a token sees at most, itself included, in whatever layer; 0: all before it."""
        ...

    def kv_layout(self, block_size: int, dtype: str, order: BlockOrder) -> KVLayout:
        """Return the layout of its KV."""
        ...

    def load(
        self, folder: ModelFolder, dtype: torch.dtype, device: torch.device, backend: Backend, weight_dtype: str
    ) -> Model:
        """Read the weights; raises ValueError naming what is missing, surplus or misshapen, or cannot be kept so."""
        ...
