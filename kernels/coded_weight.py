"""Products in 8 bits: a weight as integer codes, and the codes of rows that it is multiplied with, found as they come.

    w[n, k] = weight_scale[n, g] weight_code[n, k], nearly       x[t, k] = scale[t, g] code[t, k], nearly
    y[t, n] = sum over g of (scale[t, g] weight_scale[n, g] x sum over k in g of code[t, k] weight_code[n, k])

in groups g of GROUP inputs, the largest number of which has the code 127 or -127. A scale for each group, not each row:
an input that is a hundred times the others, as Llamas have (SmoothQuant, arXiv:2211.10438), costs the others of its
group their precision, not those of the whole row. llama.cpp's Q8_0 has the same groups. What is no number
makes all outputs that it has part in NaN or infinite. Knows neither files nor a processor's layout.
Invariant: a row's values do not depend on the rows beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 32  # inputs that have a scale in common
LARGEST = 127
LEAST_LARGEST = 2.0**-100  # what the largest number of a group is taken to be at least
ROWS_AT_ONCE = 4096  # of a weight that becomes codes: what is made on the way is a dozen times as large


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """A weight `[N, K]` in products whose rows are of `dtype`."""

    codes: torch.Tensor  # [N, K] int8
    scales: torch.Tensor  # [N, ceil(K / GROUP)] bfloat16
    dtype: torch.dtype

    @classmethod
    def of(cls, weight: torch.Tensor) -> CodedWeight:
        """Return a weight `[N, K]` in codes."""
        num_outputs, num_inputs = weight.shape
        codes = torch.empty(num_outputs, num_inputs, dtype=torch.int8)
        scales = torch.empty(num_outputs, -(-num_inputs // GROUP), dtype=torch.bfloat16)
        for some in (slice(first, first + ROWS_AT_ONCE) for first in range(0, num_outputs, ROWS_AT_ONCE)):
            groups = _in_groups(weight[some].float())
            scales[some] = _largest(groups) / LARGEST
            nearest = (groups / scales[some].float()[:, :, None]).round_().clamp_(-LARGEST, LARGEST)
            codes[some] = nearest.flatten(1)[:, :num_inputs]
        return cls(codes, scales, weight.dtype)

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self.codes.shape

    def decoded(self) -> torch.Tensor:
        """Return the weight that this stands for, nearly what rows are multiplied with: `[N, K]` in `dtype`."""
        numbers = _in_groups(self.codes.float()) * self.scales.float()[:, :, None]
        return numbers.flatten(1)[:, : self.shape[1]].to(self.dtype)

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product with rows `[T, K]`, plus the bias `[N]`: `[T, N]`."""
        codes, scales = code_rows(x)
        columns = _in_groups(self.codes.float())  # [N, G, GROUP]
        total = x.new_zeros(x.shape[0], self.shape[0], dtype=torch.float32)
        for group in range(codes.shape[1]):
            # Exact: at most GROUP x 127 x 127, and fp32 has all integers up to 2^24.
            both = scales[:, group, None] * self.scales[:, group].float()  # [T, N]
            total += (codes[:, group] @ columns[:, group].T) * both
        return (total if bias is None else total + bias).to(x.dtype)


def code_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of rows `[T, K]`, as numbers `[T, G, GROUP]` in fp32, and their scales `[T, G]`.

    G is ceil(K / GROUP); zeros stand behind the last input. A group with what is no number has codes 0 and the scale
    NaN, or infinity.
    """
    groups = _in_groups(x.float())
    largest = _largest(groups)
    # A quotient: of a number over a tensor torch makes the product with the inverse, which is another number.
    codes = (groups * (torch.full_like(largest, LARGEST) / largest)[:, :, None]).round()
    return torch.where(largest.isfinite()[:, :, None], codes, 0.0), largest / LARGEST


def _largest(groups: torch.Tensor) -> torch.Tensor:
    return groups.abs().amax(dim=2).clamp(min=LEAST_LARGEST)


def _in_groups(rows: torch.Tensor) -> torch.Tensor:
    """Return `[T, K]` as `[T, G, GROUP]`, zeros behind the last."""
    num_groups = -(-rows.shape[1] // GROUP)
    padded = torch.nn.functional.pad(rows, (0, num_groups * GROUP - rows.shape[1]))
    return padded.view(rows.shape[0], num_groups, GROUP)
