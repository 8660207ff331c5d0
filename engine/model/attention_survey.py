"""What each layer of a transformers module asks of attention, found on the meta device: no weight is read.

Invariant: a module that passes computes every layer by causal attention, full or through a sliding window, over keys
and values of one shape; anything else is a ValueError that says what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pagewire.engine.model.attention_interface import AttentionCall, MaskRule, attending

PROBE_TOKENS = 5
OWN_ATTENTION = (
    "its attention is code of its own: transformers has not put it behind its attention interface, where ours takes "
    "its place; position biases such as ALiBi are not supported either"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """One layer's attention; `window` counts visible tokens, self included, 0 is all."""

    num_kv_heads: int
    head_dim: int  # of the wider of keys and values
    window: int


def survey(build: Callable[[], Any], max_positions: int, *, has_interface: bool) -> tuple[LayerAttention, ...]:
    """Return the attention of each layer of the module that `build` returns, in the order in which they run.

    `has_interface`: transformers says that the module attends through its interface; some that do are not said to.
    Raises ValueError saying what a module that cannot be surveyed does otherwise.
    """
    found: list[LayerAttention] = []
    windows: dict[tuple[object, int], int] = {}  # layers share their masks

    def attend(call: AttentionCall) -> torch.Tensor:
        # Modules that share heads out themselves would fail, those that leave it to attention would not.
        if call.q.shape[1] % call.k.shape[1]:
            raise ValueError(f"its {call.q.shape[1]} query heads do not share its {call.k.shape[1]} KV heads evenly")
        asked = call.mask, call.window
        if asked not in windows:
            windows[asked] = _window(call, max_positions)
        found.append(
            LayerAttention(
                num_kv_heads=call.k.shape[1],
                head_dim=max(call.k.shape[2], call.v.shape[2]),
                window=windows[asked],
            )
        )
        return call.q.new_zeros(*call.q.shape[:2], call.v.shape[2])

    tokens = torch.zeros(1, PROBE_TOKENS, dtype=torch.int64, device="meta")
    try:
        with torch.device("meta"), attending(attend), torch.inference_mode():
            build()(input_ids=tokens, position_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    except ValueError:
        raise
    except Exception as error:  # a module that does not know the interface fails wherever it happens to
        raise ValueError(_reason(error) if has_interface else OWN_ATTENTION) from error
    if not found and not has_interface:
        raise ValueError(OWN_ATTENTION)
    return tuple(found)


def _reason(error: Exception) -> str:
    """Return in words why a module failed that should have attended through the interface."""
    if MaskRule.__name__ in str(error):
        return "it computes with the values of its attention mask; causal masks and sliding windows are supported"
    if any(said in str(error) for said in ("meta tensor", "register_meta")):
        return (
            "it looks at values where shapes alone are surveyed, as routing by lists does, or it keeps states beside "
            "keys and values (linear attention, convolution); neither is supported"
        )
    return f"transformers' own module does not run with this config.json: {error}"


def check_layers(layers: tuple[LayerAttention, ...], num_layers: int) -> None:
    """Raise ValueError unless every layer keeps keys and values, all of one shape."""
    if len(layers) != num_layers:
        raise ValueError(
            f"it attends {len(layers)} times in {num_layers} layers; once in each is supported, and no states beside "
            "keys and values"
        )
    shapes = sorted({(layer.num_kv_heads, layer.head_dim) for layer in layers})
    if len(shapes) > 1:
        raise ValueError(f"its layers differ in (KV heads, head size): {shapes}; one shape for all is supported")


def _window(call: AttentionCall, max_positions: int) -> int:
    if call.mask is None:
        window = call.window
    elif isinstance(call.mask, MaskRule):
        window = window_of(call.mask, max_positions)
    else:
        raise ValueError(
            "it builds a mask of its own for attention; only causal ones and sliding windows are supported"
        )
    return window if window < max_positions else 0


def window_of(rule: MaskRule, max_positions: int) -> int:
    """Return the tokens that a mask shows, self included; raises ValueError unless it is causal with one window."""
    keys = torch.arange(max_positions, device="cpu")
    zero = torch.zeros((), dtype=torch.int64, device="cpu")
    last = max_positions - 1

    def visible(query: int) -> torch.Tensor:
        try:
            seen = rule.visible(zero, zero, torch.tensor(query, device="cpu"), keys)
        except Exception as error:  # whatever a rule that looks at more than positions may raise
            raise ValueError(
                "its mask is no rule over positions alone, as that of chunked attention is none; causal masks and "
                "sliding windows are supported"
            ) from error
        return torch.broadcast_to(seen, keys.shape)

    window = int(visible(last).sum())
    for query in {0, 1, window - 1, window, window + 1, last // 2, last - 1, last}:
        if 0 <= query <= last and not torch.equal(visible(query), (keys <= query) & (keys > query - window)):
            raise ValueError("its mask is neither causal nor a sliding window (chunked, or open to the future)")
    return window
