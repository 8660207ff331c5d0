"""Products of transformers' modules, made by a backend's linears in place of torch's.

Invariant: a module that is called computes what it did before, and its weight is kept once, as the backend has it:
whoever reads the values elsewhere than in a call finds NaN, with which no model gets through the check of its rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from pagewire.kernels.backend import Backend


def pack(module: nn.Module, backend: Backend) -> None:
    """Have every plain linear of a module, and GPT-2's transposed ones, multiply by `backend`."""
    for part in module.modules():
        if type(part) is nn.Linear:  # what derives from it may compute something else
            _replace(part, backend, is_transposed=False)
        elif type(part) is Conv1D:
            _replace(part, backend, is_transposed=True)


def _replace(part: nn.Module, backend: Backend, *, is_transposed: bool) -> None:
    """Multiply by a backend's linear from now on; what is left of the module's own weight is NaN."""
    own = dict(part.named_parameters(recurse=False))
    weight, bias = own["weight"].detach(), own.get("bias")
    rows = weight.t().contiguous() if is_transposed else weight  # [N, K]
    part.forward = _product(rows, None if bias is None else bias.detach(), backend)  # type: ignore[method-assign]
    part.weight = nn.Parameter(torch.full((), torch.nan, dtype=weight.dtype).expand(weight.shape), requires_grad=False)


def _product(
    weight: torch.Tensor, bias: torch.Tensor | None, backend: Backend
) -> Callable[[torch.Tensor], torch.Tensor]:
    dtype, num_outputs, linear = weight.dtype, weight.shape[0], backend.linear(weight, bias)

    def compute(x: torch.Tensor) -> torch.Tensor:
        # [..., K] -> [..., N]
        if x.dtype != dtype:
            raise TypeError(f"a product of {x.dtype} with weights of {dtype}")
        return linear(x.flatten(0, -2)).view(*x.shape[:-1], num_outputs)  # there may be no rows

    return compute
