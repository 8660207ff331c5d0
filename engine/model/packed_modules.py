"""Products of transformers' modules, made by a backend's linears in place of torch's.

Invariant: a module that is called computes what it did before, and its weight is kept once, as the backend has it:
whoever reads the values elsewhere than in a call finds NaN, with which no model gets through the check of its rows.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from pagewire.kernels.backend import Backend, Linear


def pack(module: nn.Module, backend: Backend) -> None:
    """Have the plain linears of a module, GPT-2's transposed ones, and experts multiply by `backend`."""
    for part in module.modules():
        if type(part) is nn.Linear:  # what derives from it may compute something else
            part.forward = _of_any_shape(_taken(part, backend, is_transposed=False))  # type: ignore[assignment]
        elif type(part) is Conv1D:
            part.forward = _of_any_shape(_taken(part, backend, is_transposed=True))
        elif _are_experts(part):
            part.forward = _Experts(part, backend)  # type: ignore[method-assign]


def _of_any_shape(linear: Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a product with rows of `[..., K]`; there may be none."""

    def compute(x: torch.Tensor) -> torch.Tensor:
        out = linear(x.flatten(0, -2))
        return out.view(*x.shape[:-1], out.shape[1])

    return compute


def _taken(part: nn.Module, backend: Backend, *, is_transposed: bool) -> Linear:
    """Return the product with a module's weight, of which NaN are left."""
    own = dict(part.named_parameters(recurse=False))
    (linear,) = _products(own["weight"][None], own.get("bias"), backend, is_transposed=is_transposed)
    part.weight = _gone(own["weight"])
    return linear


def _products(
    weights: torch.Tensor, biases: torch.Tensor | None, backend: Backend, *, is_transposed: bool
) -> list[Linear]:
    """Return the product with each of some weights `[E, N, K]`, or `[E, K, N]` if they are transposed."""
    rows = weights.detach().transpose(1, 2) if is_transposed else weights.detach()
    every = [None] * len(rows) if biases is None else biases.detach().view(len(rows), -1)
    return [_checked(weight.contiguous(), bias, backend) for weight, bias in zip(rows, every, strict=True)]


def _checked(weight: torch.Tensor, bias: torch.Tensor | None, backend: Backend) -> Linear:
    dtype, linear = weight.dtype, backend.linear(weight, bias)

    def compute(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != dtype:
            raise TypeError(f"a product of {x.dtype} with weights of {dtype}")
        return linear(x)

    return compute


def _gone(weight: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(torch.full((), torch.nan, dtype=weight.dtype).expand(weight.shape), requires_grad=False)


def _are_experts(part: nn.Module) -> bool:
    """Return whether transformers would let somebody else compute a module's experts, from rows and their routes."""
    names = ("has_gate", "has_bias", "is_transposed", "num_experts", "down_proj", "_apply_gate")
    return all(hasattr(part, name) for name in names) and len(inspect.signature(type(part).forward).parameters) == 4


class _Experts:
    """The experts of one layer: each multiplies the rows that are routed to it, all of them at once.

    What is between and behind the products is the module's own, as transformers names it for all of its experts.
    """

    def __init__(self, part: Any, backend: Backend) -> None:
        self._activated: Callable[[torch.Tensor], torch.Tensor] = part._apply_gate if part.has_gate else part.act_fn
        self._normed = part.post_expert_norm if getattr(part, "has_post_expert_norm", False) else None
        self._into, self._back = (
            self._taken(part, name, backend) for name in ("gate_up_proj" if part.has_gate else "up_proj", "down_proj")
        )

    def _taken(self, part: Any, name: str, backend: Backend) -> list[Linear]:
        weights, biases = getattr(part, name), getattr(part, f"{name}_bias") if part.has_bias else None
        linears = _products(weights, biases, backend, is_transposed=part.is_transposed)
        setattr(part, name, _gone(weights))
        return linears

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
