"""The weight of a product, kept as one byte a number: float8_e4m3fn codes, and a scale in fp32 for each row (output).

    scale[n] = max |w[n]| / 448      code[n, k] = round(w[n, k] / scale[n])      w[n, k] = code[n, k] scale[n], nearly

Knows neither files nor products. Invariant: a row's codes and scale depend on that row alone, whole, so parts of a
matrix that are quantised by themselves are parts of the quantised matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagewire.kernels.coded_weight import CodedWeight

CODES = torch.float8_e4m3fn
LARGEST = 448.0  # code
SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # of a row of nothing too


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A weight `[N, K]` in products that are computed in `dtype`."""

    codes: torch.Tensor  # [N, K] float8_e4m3fn
    scales: torch.Tensor  # [N] fp32
    dtype: torch.dtype

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> ScaledWeight:
        """Return one `[N, K]` that is to be filled."""
        codes = torch.empty(shape, dtype=CODES, device=device)
        return cls(codes, torch.empty(shape[0], dtype=torch.float32, device=device), dtype)

    @classmethod
    def of(cls, weight: torch.Tensor) -> ScaledWeight:
        """Return a weight `[N, K]` quantised, for products in its dtype."""
        made = cls.empty(weight.shape, weight.dtype, weight.device)
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
        largest = whole.abs().amax(dim=1).float()
        # Not over the number itself: a GPU would multiply by its inverse, and codes be others than a CPU's.
        self.scales.copy_((largest / torch.full_like(largest, LARGEST)).clamp(min=SMALLEST_SCALE))
        self.codes.copy_(weight.float() / self.scales[:, None])

    def decoded(self) -> torch.Tensor:
        """Return the weight that this stands for: `[N, K]` in `dtype`, from the exact product in fp32."""
        return (self.codes.float() * self.scales[:, None]).to(self.dtype)


Stored = torch.Tensor | ScaledWeight  # what files are read into
Weight = Stored | CodedWeight


def plain(weight: Weight) -> torch.Tensor:
    """Return a weight as numbers of the dtype that is computed in, decoded where it is kept otherwise."""
    return weight if isinstance(weight, torch.Tensor) else weight.decoded()
