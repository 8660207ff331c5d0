"""The native path: a family's config read into the decoder that all families share, and its weights fused."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.engine import weights
from pagewire.engine.model import checkpoint
from pagewire.engine.model.decoder import Decoder
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.engine.model_folder import ModelFolder
from pagewire.kernels.backend import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeArchitecture:
    """A decoder of one of the families; satisfies `Architecture`."""

    config: DecoderConfig
    derived: tuple[str, ...]  # regular expressions: tensors that may be stored and are ignored

    @property
    def path(self) -> str:
        """Which code computes it, for people."""
        return "native decoder"

    @property
    def vocab_size(self) -> int:
        """Rows of its logits."""
        return self.config.vocab_size

    @property
    def max_positions(self) -> int:
        """The longest sequence that it serves."""
        return self.config.max_positions

    @property
    def window(self) -> int:
        """The widest of its layers' windows, 0 where one has none."""
        return max(self.config.windows) if all(self.config.windows) else 0

    def kv_layout(self, block_size: int, dtype: str, order: BlockOrder) -> KVLayout:
        """Return the layout of its KV."""
        return self.config.kv_layout(block_size, dtype, order)

    def load(self, folder: ModelFolder, dtype: torch.dtype, device: torch.device, backend: Backend) -> Decoder:
        """Read the weights into fused tensors."""
        loaded, places = checkpoint.allocate(self.config, dtype, device)
        ignored = (*self.derived, r"lm_head\.weight") if self.config.tied_embeddings else self.derived
        weights.load(folder.weight_files(), places, ignored)
        return Decoder(self.config, loaded, backend)
