"""A cost model from a device's data sheet and a model's shape, where nothing has been measured. Pure.

    memory      (weights + KV of all that is looked at) / bandwidth
    arithmetic  (2 x parameters x tokens + 4 x L Hq D x pairs) / FLOP/s

A step takes the longer of the two. `efficiency` is the share of both peaks that real kernels reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagewire.core.attention_heads import AttentionHeads
from pagewire.core.documents import whole
from pagewire.core.kv_layout import stored_head_dim
from pagewire.core.positions import own_positions
from pagewire.slo.costs.cost_model import CostModel, LinkLaw, StepLaw, StepLine

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
STEP_OVERHEAD_S = 0.5e-3  # scheduling and sampling, on a host that keeps a GPU fed
FRAME_S = 0.3e-3
INTAKE_S = 1e-3
INTAKE_TOKEN_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder: its parameters, and the shape of its attention; `element_bytes` of weights and of KV.

    A sequence has `max_positions` tokens at most, None where nobody knows.
    """

    name: str
    parameters: float
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    element_bytes: float = 2.0
    max_positions: int | None = None

    @classmethod
    def of(cls, name: str, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape that a config.json of a dense, gated decoder says; raises ValueError on what it lacks.

        Parameters are counted from its sizes: attention, three matrices of the feed-forward part, embeddings. So a
        mixture of experts is refused.
        """
        if experts := [each for each in _EXPERTS if config.get(each)]:
            raise ValueError(f"the config.json of {name} is not a dense decoder's: it has {experts[0]}")
        try:
            heads, width = AttentionHeads.of(config), whole(config, "hidden_size")
            layers, inner = whole(config, "num_hidden_layers"), whole(config, "intermediate_size")
            embeddings = whole(config, "vocab_size") * width * (1 if config.get("tie_word_embeddings") else 2)
        except ValueError as error:
            raise ValueError(f"the config.json of {name}: {error}") from error
        attention = 2 * width * heads.head_dim * (heads.num_q_heads + heads.num_kv_heads)
        parameters = embeddings + layers * (attention + 3 * width * inner)
        return cls(
            name=name,
            parameters=parameters,
            num_layers=layers,
            num_heads=heads.num_q_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            max_positions=own_positions(config),
        )

    @property
    def token_bytes(self) -> int:
        """Bytes of KV of a token: 2 L Hk D itemsize, of heads as wide as a pool keeps them."""
        return int(2 * self.num_layers * self.num_kv_heads * stored_head_dim(self.head_dim) * self.element_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What computes: peak FLOP/s of matrix products, and bytes that its memory gives per second."""

    flops: float
    bandwidth: float
    efficiency: float = 0.6

    def __post_init__(self) -> None:
        """Refuse a device that does nothing with ValueError."""
        if self.flops <= 0 or self.bandwidth <= 0 or not 0 < self.efficiency <= 1:
            raise ValueError(f"no device: {self.flops} FLOP/s, {self.bandwidth} B/s, efficiency {self.efficiency}")


def roofline(model: ModelShape, device: Device, *, link_bytes_per_s: float, link_latency_s: float = 1e-4) -> CostModel:
    """Return the cost model of a device that runs a model, its pods joined by a link."""
    flops, bandwidth = device.flops * device.efficiency, device.bandwidth * device.efficiency
    token_s = 2 * model.parameters / flops
    pair_s = 4 * model.num_layers * model.num_heads * model.head_dim / flops
    memory = StepLine(
        step_s=model.parameters * model.element_bytes / bandwidth, decode_pair_s=model.token_bytes / bandwidth
    )
    arithmetic = StepLine(prefill_token_s=token_s, decode_s=token_s, prefill_pair_s=pair_s, decode_pair_s=pair_s)
    law = StepLaw(lines=(memory, arithmetic), overhead_s=STEP_OVERHEAD_S)
    return CostModel(
        prefill=law,
        decode=law,
        token_bytes=model.token_bytes,
        link=LinkLaw(latency_s=link_latency_s, bytes_per_s=link_bytes_per_s),
        frame_s=FRAME_S,
        intake_s=INTAKE_S,
        intake_token_s=INTAKE_TOKEN_S,
        about={
            "source": "roofline",
            "model": model.name,
            "flops": device.flops,
            "bandwidth": device.bandwidth,
            "efficiency": device.efficiency,
        },
    )


def sheet_lines(costs: CostModel) -> list[str]:
    """Return the laws that `roofline` made, for people."""
    memory, arithmetic = costs.decode.lines
    return [
        f"a step takes the longer of {1e3 * memory.step_s:.3f} ms + {1e9 * memory.decode_pair_s:.3f} ns a decode's "
        f"pair (memory) and {1e6 * arithmetic.prefill_token_s:.2f} us a token + "
        f"{1e9 * arithmetic.prefill_pair_s:.3f} ns a pair (arithmetic), and "
        f"{1e3 * costs.decode.overhead_s:g} ms between steps",
        f"link {1e3 * costs.link.latency_s:g} ms + bytes / {costs.link.bytes_per_s / 1e9:.3g} GB/s; "
        f"{costs.token_bytes} bytes of KV a token",
    ]
