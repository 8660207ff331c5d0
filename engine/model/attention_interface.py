"""Our attention, registered with transformers: whoever runs one of its modules says what attention is to do.

Modules built with `attn_implementation=NAME` hand their queries, keys and values to the function that `attending` set
for the running thread. Invariant: a module that asks of attention what this interface does not carry is an error that
names it, never another result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import transformers

NAME = "pagewire"

# What modules pass on that does not change what attention computes here: masks are read where they are made.
_WITHOUT_EFFECT = {"position_ids", "cache_position", "use_cache"}
_ABOUT_OUTPUT = ("output_", "return_")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """What one layer asks of attention, for one packed batch."""

    q: torch.Tensor  # [T, Hq, D]
    k: torch.Tensor  # [T, Hk, D]
    v: torch.Tensor  # [T, Hk, Dv]
    scale: float
    softcap: float  # 0: none
    sinks: torch.Tensor | None  # [Hq]
    mask: object  # a `MaskRule`, or None
    window: int  # that the layer names besides its mask, 0: none


@dataclass(frozen=True, slots=True)
class MaskRule:
    """A mask as the rule it is made by: `visible(batch, head, query, key)`, elementwise over positions."""

    visible: Callable[..., torch.Tensor]


Attend = Callable[[AttentionCall], torch.Tensor]
"""A layer's call to its result `[T, Hq, Dv]`."""

_attend: ContextVar[Attend] = ContextVar("attend")


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Let modules of this thread attend by `attend`."""
    token = _attend.set(attend)
    try:
        yield
    finally:
        _attend.reset(token)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    # The signature is transformers'. query [1, Hq, T, D], key [1, Hk, T, D], value [1, Hk, T, Dv].
    name = type(module).__name__
    unknown = sorted(
        key
        for key, value in others.items()
        if value is not None and key not in _WITHOUT_EFFECT and not key.startswith(_ABOUT_OUTPUT)
    )
    if unknown:
        raise ValueError(f"{name} asks for {', '.join(unknown)}, which paged attention does not know")
    if dropout or is_causal is False or getattr(module, "is_causal", True) is False:
        raise ValueError(f"{name} is not causal attention without dropout")
    out = _attend.get()(
        AttentionCall(
            q=query[0].transpose(0, 1),
            k=key[0].transpose(0, 1),
            v=value[0].transpose(0, 1),
            scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            softcap=float(softcap or 0.0),
            sinks=s_aux,
            mask=attention_mask,
            window=int(sliding_window or 0),
        )
    )
    return out[None], None


def _mask(*, mask_function: Callable[..., torch.Tensor], **_: Any) -> MaskRule:
    return MaskRule(mask_function)


transformers.AttentionInterface.register(NAME, _attention)
transformers.AttentionMaskInterface.register(NAME, _mask)
