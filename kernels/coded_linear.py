"""Products in 8 bits, by definition: a weight's integer codes times those of rows, which are found as rows come.

    x[t, k] = scale[t, g] code[t, k], nearly, in groups g of 64 inputs, the largest of which has the code 127 or -127
    y[t, n] = weight_scale[n] x sum over g of (scale[t, g] x sum over k in g of code[t, k] weight_code[n, k])

Groups rather than whole rows: an input that is a hundred times the others, as Llamas have, takes the precision of 63
beside it and no more. llama.cpp's Q8_0 is the model, by 32 inputs; SmoothQuant (arXiv:2211.10438) says why.
Invariant: a row's values do not depend on the rows beside it.
"""

from __future__ import annotations

import torch

from pagewire.kernels.scaled_weight import ScaledWeight

GROUP = 64  # inputs that have a scale in common
SMALLEST = 2.0**-100  # largest number of a group of which there are codes; what is smaller is 0


def code_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of rows `[T, K]`, as numbers `[T, ceil(K / 64), 64]` in fp32, and scales `[T, ceil(K / 64)]`.

    A group with a number that is none has the scale NaN.
    """
    groups = _in_groups(x.float())
    largest = groups.abs().amax(dim=2).clamp(min=SMALLEST)
    # A quotient: of a number over a tensor torch makes the product with the inverse, which is another number.
    codes = (groups * (torch.full_like(largest, 127.0) / largest)[:, :, None]).round()
    return torch.where(largest.isfinite()[:, :, None], codes, 0.0), largest / 127.0


def coded_linear(x: torch.Tensor, weight: ScaledWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the product of rows `[T, K]` with a weight `[N, K]` of integer codes, plus the bias: `[T, N]`."""
    codes, scales = code_rows(x)
    columns = _in_groups(weight.codes.float())  # [N, G, 64]
    total = x.new_zeros(x.shape[0], weight.shape[0], dtype=torch.float32)
    for group in range(codes.shape[1]):
        # Exact: at most 64 x 127 x 127, and fp32 has all integers up to 2^24.
        total += (codes[:, group] @ columns[:, group].T) * scales[:, group, None]
    total *= weight.scales
    return (total if bias is None else total + bias).to(x.dtype)


def _in_groups(rows: torch.Tensor) -> torch.Tensor:
    """Return `[T, K]` as `[T, ceil(K / 64), 64]`, zeros behind the last."""
    num_groups = -(-rows.shape[1] // GROUP)
    padded = torch.nn.functional.pad(rows, (0, num_groups * GROUP - rows.shape[1]))
    return padded.view(rows.shape[0], num_groups, GROUP)
