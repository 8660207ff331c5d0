"""Where the tensors of a LoRA adapter go: beside the decoder's fused products, with the adapter's scale in them.

Products that are fused get one low-rank part: the ranks of their modules side by side, each in its own rows. Knows
names and shapes; nothing of who runs with which adapter.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from pagewire.engine.adapter_folder import AdapterFolder
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.engine.model.shard import Shard
from pagewire.engine.weights import few
from pagewire.kernels.low_rank import LayerAdapter, LowRank

_PREFIX = "base_model.model."
_MODULES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_SUMMED = ("o", "down")  # over the ranks, which divide their inputs; of the others they divide the outputs


def read(
    folder: AdapterFolder, config: DecoderConfig, dtype: torch.dtype, device: torch.device, shard: Shard
) -> tuple[LayerAdapter, ...]:
    """Return an adapter's part in each layer of the decoder that `config` describes whole, or one rank's part of that.

    Raises ValueError naming what is misshapen or not finite, or belongs to no product of a layer.
    """
    try:
        stored = load_file(folder.weights)
    except SafetensorError as error:
        raise ValueError(f"{folder.weights} is no safetensors file: {error}") from error
    if not stored:
        raise ValueError(f"adapter {folder.name} has no tensors")
    shapes = _shapes(config)

    def module(layer: int, kind: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return A `[r, K]` and the scaled B `[N, r]`, taken out of what is stored, None where there is neither."""
        name = f"model.layers.{layer}.{kind}"
        down, up = (stored.pop(f"{_PREFIX}{name}.lora_{part}.weight", None) for part in "AB")
        if down is None and up is None:
            return None
        outputs, inputs = shapes[kind]
        rank = down.shape[0] if down is not None and down.dim() == 2 else 0
        wanted = ((rank, inputs), (outputs, rank))
        found = tuple(None if each is None else tuple(each.shape) for each in (down, up))
        if down is None or up is None or not rank or found != wanted:
            raise ValueError(
                f"adapter {folder.name}: {name} has A and B of shapes {found[0]} and {found[1]}; "
                f"(r, {inputs}) and ({outputs}, r) fit the model"
            )
        pair = down.to(dtype), (up.float() * folder.scale(name, rank)).to(dtype)
        if not (down.is_floating_point() and up.is_floating_point() and all(bool(x.isfinite().all()) for x in pair)):
            raise ValueError(f"adapter {folder.name}: {name} holds what is no finite number in {dtype}")
        return pair

    def layer(number: int) -> LayerAdapter:
        parts: dict[str, LowRank | None] = {}
        for product, modules in _MODULES.items():
            found = {each: module(number, each) for each in modules}
            parts[product] = _fused(found, shapes, product in _SUMMED, shard, device)
        return LayerAdapter(**parts)

    layers = tuple(layer(number) for number in range(config.num_layers))
    if stored:
        raise ValueError(
            f"adapter {folder.name}: {len(stored)} tensors add to no linear of the model's {config.num_layers} layers: "
            f"{few(sorted(stored))}"
        )
    return layers


def _shapes(config: DecoderConfig) -> Mapping[str, tuple[int, int]]:
    """Return outputs and inputs of each module, as a checkpoint has them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, q_size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def _fused(
    found: Mapping[str, tuple[torch.Tensor, torch.Tensor] | None],
    shapes: Mapping[str, tuple[int, int]],
    is_summed: bool,
    shard: Shard,
    device: torch.device,
) -> LowRank | None:
    """Return one low-rank part for modules side by side, None where none has any."""
    downs = [pair[0] for pair in found.values() if pair is not None]
    if not downs:
        return None
    down = torch.cat(downs)  # [R, K]
    ups, column = [], 0
    for name, pair in found.items():
        up = down.new_zeros(shapes[name][0], down.shape[0])  # [N of this module, R]
        if pair is not None:
            rank = pair[1].shape[1]
            up[:, column : column + rank] = pair[1]
            column += rank
        ups.append(up if is_summed else up[shard.part(up.shape[0])])
    if is_summed:
        down = down[:, shard.part(down.shape[1])]
    return LowRank(down=down.contiguous().to(device), up=torch.cat(ups).to(device))
