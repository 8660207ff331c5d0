"""Products of transformers' modules, made by a backend's linears in place of torch's.

Invariant: a module that is called computes what it did before, and its weight is kept once, as the backend has it:
whoever reads the values elsewhere than in a call finds NaN, with which no model gets through the check of its rows.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from pagewire.kernels.backend import Backend, Linear
from pagewire.kernels.coded_weight import CodedWeight

# What chooses among experts, by a part of a name: a choice is another one or the same, not nearly the same.
ROUTERS = {"gate", "router", "shared_expert_gate"}


def pack(module: nn.Module, backend: Backend, *, in_codes: bool = False) -> None:
    """Have the plain linears of a module, GPT-2's transposed ones, and experts multiply by `backend`.

    In 8 bits where that is said, but for routers.
    """
    for name, part in module.named_modules():
        if type(part) in (nn.Linear, Conv1D):  # what derives from them may compute something else
            linear_of = _LinearOf(backend, in_codes=in_codes and ROUTERS.isdisjoint(name.split(".")))
            (linear,) = _taken(part, "weight", "bias", linear_of, is_transposed=type(part) is Conv1D)
            part.forward = _of_any_shape(linear)
        elif _are_experts(part):
            part.forward = _Experts(part, _LinearOf(backend, in_codes=in_codes))


@dataclass(frozen=True, slots=True)
class _LinearOf:
    """What makes products of weights: by which backend, and whether in 8 bits."""

    backend: Backend
    in_codes: bool

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Return the product with a weight `[N, K]`, which refuses rows of another dtype: native code would misread."""
        dtype = weight.dtype
        linear = self.backend.linear(CodedWeight.of(weight) if self.in_codes else weight, bias)

        def compute(x: torch.Tensor) -> torch.Tensor:
            if x.dtype != dtype:
                raise TypeError(f"a product of {x.dtype} with weights of {dtype}")
            return linear(x)

        return compute


def _of_any_shape(linear: Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a product with rows of `[..., K]`; there may be none."""

    def compute(x: torch.Tensor) -> torch.Tensor:
        out = linear(x.flatten(0, -2))
        return out.view(*x.shape[:-1], out.shape[1])

    return compute


def _taken(part: nn.Module, name: str, bias_name: str, linear_of: _LinearOf, *, is_transposed: bool) -> list[Linear]:
    """Return the products with a weight `[N, K]` or with each of some `[E, N, K]`, of which NaN are left behind.

    Transposed ones are `[K, N]` each. Without a bias of that name there is none.
    """
    own = dict(part.named_parameters(recurse=False))
    weight, bias = own[name], own.get(bias_name)
    matrices = weight.detach().reshape(-1, *weight.shape[-2:])  # [E, N, K]
    if is_transposed:
        matrices = matrices.transpose(1, 2)
    biases = [None] * len(matrices) if bias is None else list(bias.detach().reshape(len(matrices), -1))
    linears = [linear_of(each.contiguous(), its) for each, its in zip(matrices, biases, strict=True)]
    gone = torch.full((), torch.nan, dtype=weight.dtype).expand(weight.shape)
    setattr(part, name, nn.Parameter(gone, requires_grad=False))
    return linears


def _are_experts(part: nn.Module) -> bool:
    """Return whether transformers would let somebody else compute a module's experts, from rows and their routes."""
    names = ("has_gate", "is_transposed", "num_experts", "down_proj", "_apply_gate")
    return all(hasattr(part, name) for name in names) and len(inspect.signature(type(part).forward).parameters) == 4


class _Experts:
    """The experts of one layer: each multiplies the rows that are routed to it, all of them at once.

    What is between and behind the products is the module's own, as transformers names it for all of its experts.
    """

    def __init__(self, part: Any, linear_of: _LinearOf) -> None:
        self._activated: Callable[[torch.Tensor], torch.Tensor] = part._apply_gate if part.has_gate else part.act_fn
        self._normed = part.post_expert_norm if getattr(part, "has_post_expert_norm", False) else None
        self._into, self._back = (
            _taken(part, name, f"{name}_bias", linear_of, is_transposed=part.is_transposed)
            for name in ("gate_up_proj" if part.has_gate else "up_proj", "down_proj")
        )

    def __call__(self, hidden: torch.Tensor, routes: torch.Tensor, route_weights: torch.Tensor) -> torch.Tensor:
        """Return of rows `[T, H]` the sums over their K experts, which `routes` `[T, K]` name: `[T, H]`."""
        num_rows, num_routes = routes.shape
        order = routes.flatten().argsort(stable=True)  # [T K], expert by expert
        counts: list[int] = torch.bincount(routes.flatten(), minlength=len(self._into)).tolist()
        inner = self._activated(_by_expert(self._into, hidden[order // num_routes], counts))  # [T K, I]
        out = _by_expert(self._back, inner, counts)  # [T K, H]
        out = (self._normed(out) if self._normed is not None else out) * route_weights.flatten()[order, None]
        placed = torch.empty_like(out)
        placed[order] = out
        return placed.view(num_rows, num_routes, out.shape[1]).sum(dim=1).to(hidden.dtype)


def _by_expert(linears: Sequence[Linear], rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Return the products of rows that stand expert by expert, `counts` of each."""
    ends = itertools.accumulate(counts)
    parts = [
        linears[expert](rows[end - count : end])
        for expert, (count, end) in enumerate(zip(counts, ends, strict=True))
        if count
    ]
    return torch.cat(parts) if parts else linears[0](rows)
