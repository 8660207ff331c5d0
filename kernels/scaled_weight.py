"""The weight of a product, kept as one byte a number: codes, and a scale in fp32 for each row (output).

    scale[n] = max |w[n]| / largest code   code[n, k] = round(w[n, k] / scale[n])   w[n, k] = code[n, k] scale[n] nearly

Codes are float8_e4m3fn, and rows are multiplied with the weight that they stand for; or they are integers, and rows
are multiplied with them as they are, in codes of their own (`coded_linear.py`). Knows neither files nor products.
Invariant: a row's codes and scale depend on that row alone, whole, so parts of a matrix that are quantised by
themselves are parts of the quantised matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import torch

FP8 = torch.float8_e4m3fn
INT8 = torch.int8
CODES = {"fp8": FP8, "int8": INT8}  # by the name that people give them
LARGEST = {FP8: 448.0, INT8: 127.0}  # code
SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # of a row of nothing too


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A weight `[N, K]` in products that are computed in `dtype`."""

    codes: torch.Tensor  # [N, K] FP8 or INT8
    scales: torch.Tensor  # [N] fp32
    dtype: torch.dtype

    @classmethod
    def empty(
        cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, codes: torch.dtype = FP8
    ) -> ScaledWeight:
        """Return one `[N, K]` that is to be filled."""
        scales = torch.empty(shape[0], dtype=torch.float32, device=device)
        return cls(torch.empty(shape, dtype=codes, device=device), scales, dtype)

    @classmethod
    def of(cls, weight: torch.Tensor, codes: torch.dtype = FP8) -> ScaledWeight:
        """Return a weight `[N, K]` quantised, for products in its dtype."""
        made = cls.empty(weight.shape, weight.dtype, weight.device, codes)
        made.fill(weight, weight)
        return made

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self.codes.shape

    def split(self, rows: list[int]) -> tuple[ScaledWeight, ...]:
        """Return views of so many rows each, which are filled by themselves."""
        pairs = zip(torch.split(self.codes, rows), torch.split(self.scales, rows), strict=True)
        return tuple(ScaledWeight(codes, scales, self.dtype) for codes, scales in pairs)

    def fill(self, weight: torch.Tensor, whole: torch.Tensor) -> None:
        """Quantise `weight` `[N, K]`, columns of `whole` or all of them; both lie where this does."""
        most = whole.abs().amax(dim=1).float()
        # Not over the number itself: a GPU would multiply by its inverse, and codes be others than a CPU's.
        self.scales.copy_((most / torch.full_like(most, LARGEST[self.codes.dtype])).clamp(min=SMALLEST_SCALE))
        quotient = weight.float() / self.scales[:, None]
        self.codes.copy_(quotient.round_() if self.codes.dtype == INT8 else quotient)

    def decoded(self) -> torch.Tensor:
        """Return the weight that this stands for: `[N, K]` in `dtype`, from the exact product in fp32."""
        return (self.codes.float() * self.scales[:, None]).to(self.dtype)


Weight = torch.Tensor | ScaledWeight


def is_coded(weight: Weight) -> TypeGuard[ScaledWeight]:
    """Return whether rows are multiplied with its codes as they are."""
    return isinstance(weight, ScaledWeight) and weight.codes.dtype == INT8


def plain(weight: Weight) -> torch.Tensor:
    """Return a weight as numbers of the dtype that is computed in, decoded where it is kept otherwise."""
    return weight.decoded() if isinstance(weight, ScaledWeight) else weight
