"""The native path: a family's config read into the decoder that all families share, and its weights fused."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

import torch

from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.engine import weights
from pagewire.engine.model import checkpoint, lora, wide_heads
from pagewire.engine.model.decoder import Decoder
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.engine.model.shard import Shard
from pagewire.engine.model_folder import ModelFolder
from pagewire.engine.ranks.rank_sum import RankSum
from pagewire.kernels.backend import Backend
from pagewire.kernels.coded_weight import GROUP, CodedWeight
from pagewire.kernels.decoder_stack import LayerWeights, Reduce
from pagewire.kernels.scaled_weight import plain

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
# What the first rank alone has: biases of the products that are summed, and the head.
_FIRST_RANKS = (
    r"model\.layers\.\d+\.self_attn\.o_proj\.bias",
    r"model\.layers\.\d+\.mlp\.down_proj\.bias",
    re.escape(_HEAD),
)


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

    def part(self, weight_dtype: str, shard: Shard) -> DecoderConfig:
        """Return what one rank has, checked: raises ValueError naming what ranks cannot share."""
        config = self.config.part(shard.num_ranks)
        # Else a rank's groups, and with them its codes, would be others than those of the whole matrix.
        divided = (config.num_q_heads * config.stored_head_dim, config.intermediate_size)
        if weight_dtype == "int8" and shard.num_ranks > 1 and any(size % GROUP for size in divided):
            raise ValueError(
                f"weight_dtype int8: o and down of each of {shard.num_ranks} ranks have {divided[0]} and {divided[1]}"
                f" inputs, which are not whole groups of {GROUP}"
            )
        return config

    def load(
        self, folder: ModelFolder, dtype: torch.dtype, device: torch.device, backend: Backend, weight_dtype: str
    ) -> Decoder:
        """Read the weights into fused tensors."""
        return self.load_part(folder, dtype, device, backend, weight_dtype, Shard(), None)

    def load_part(
        self,
        folder: ModelFolder,
        dtype: torch.dtype,
        device: torch.device,
        backend: Backend,
        weight_dtype: str,
        shard: Shard,
        reduce: Reduce | None,
    ) -> Decoder:
        """Read one rank's part of the weights, and no more, and of the folder's adapters; its products are summed over
        the ranks by `reduce`.

        In fp8 weights are quantised as they are read, tensor by tensor: no more than one is there that is not, and its
        copies. In int8 they are read as they are stored and become codes layer by layer, and the head, once heads are
        as wide as the pool keeps them. Raises ValueError as `part` does.
        """
        config, is_coded = self.part(weight_dtype, shard), weight_dtype == "int8"
        loaded, places, parts = checkpoint.allocate(config, dtype, device, shard, quantised=weight_dtype == "fp8")
        files, own_head = folder.weight_files(), None
        if config.tied_embeddings and _HEAD in (stored := weights.names(files)):
            if _EMBEDDING not in stored:  # what is tied may be stored by either name
                places[_HEAD] = places.pop(_EMBEDDING)
            elif shard.is_first:
                places[_HEAD] = own_head = torch.empty_like(loaded.embedding)
        weights.load(files, places, self.derived if shard.is_first else (*self.derived, *_FIRST_RANKS), parts)
        if own_head is not None and not torch.equal(own_head, loaded.embedding):  # as transformers, which does not tie
            loaded = dataclasses.replace(loaded, head=own_head)
        layers, head = loaded.layers, loaded.head
        if folder.adapters:
            adapters = zip(
                *(lora.read(each, self.config, dtype, device, shard) for each in folder.adapters), strict=True
            )
            layers = tuple(
                dataclasses.replace(layer, adapters=parts) for layer, parts in zip(layers, adapters, strict=True)
            )
        head_dim, wide = config.head_dim, config.stored_head_dim
        if head_dim != wide:
            layers = tuple(wide_heads.widened(layer, head_dim, wide) for layer in layers)
        if is_coded:
            loaded, kept = dataclasses.replace(loaded, layers=()), list(layers)
            del places, layers  # each layer goes once it is in codes
            layers = tuple(_in_codes(kept.pop(0)) for _ in range(config.num_layers))
            head = None if loaded.head is None else CodedWeight.of(plain(loaded.head))
        return Decoder(config, dataclasses.replace(loaded, layers=layers, head=head), backend, reduce)

    def rank_sum(self, dtype: torch.dtype, device: torch.device) -> RankSum:
        """Return what sums over the ranks, twice in each layer."""
        hidden_size = self.config.hidden_size
        return RankSum(per_pass=2 * self.config.num_layers, hidden_size=hidden_size, dtype=dtype, device=device)


def _in_codes(layer: LayerWeights) -> LayerWeights:
    qkv, o, gate_up, down = (CodedWeight.of(plain(each)) for each in (layer.qkv, layer.o, layer.gate_up, layer.down))
    return dataclasses.replace(layer, qkv=qkv, o=o, gate_up=gate_up, down=down)
