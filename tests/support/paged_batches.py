"""Ragged batches over paged pools whose every other slot is poison: what attention is tested on."""

from __future__ import annotations

from dataclasses import dataclass

import kernel_definition as definition
import torch

from pagewire.kernels import kv_elements
from pagewire.kernels.ragged import Ragged

NOWHERE = 1 << 40  # a block where no memory is


def laid_out(pool: torch.Tensor, head_outer: bool) -> torch.Tensor:
    """Return a pool `[N, L, 2, Hk, B, D]` with this content, in memory as it is or heads outermost."""
    if not head_outer:
        return pool
    return pool.permute(0, 3, 1, 2, 4, 5).contiguous().permute(0, 2, 3, 1, 4, 5)  # through [N, Hk, L, 2, B, D]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """Queries and what they attend to, on shuffled blocks of the last of two layers."""

    q: torch.Tensor  # [T, Hq, D], rows of a wider tensor, as a fused projection leaves them
    pool: torch.Tensor  # [N, 2, 2, Hk, B, D], in which every slot without a token is NaN
    ragged: Ragged
    window: int
    dense: tuple[torch.Tensor, ...]  # [2, n, Hk, D] of each sequence, as the pool keeps it

    def expected(self, scale: float, softcap: float = 0.0, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Return attention by its definition, float64 `[T, Hq, D]`."""
        ragged, out = self.ragged, []
        for start, length, kv_len, kv in zip(
            ragged.query_starts, ragged.query_lens, ragged.kv_lens, self.dense, strict=True
        ):
            rows = self.q[start : start + length].cpu()
            out.append(definition.attention(rows, kv[0], kv[1], kv_len - length, self.window, scale, softcap, sinks))
        return torch.cat(out)


def paged_batch(
    lengths: list[tuple[int, int]], *, heads: tuple[int, int], head_dim: int, block_size: int, dtype: torch.dtype,
    stored: torch.dtype | None = None, window: int = 0, head_outer: bool = False, seed: int = 0,
    device: str = "cpu",
) -> PagedBatch:  # fmt: skip
    """Return random sequences of (query tokens, tokens in all), with `heads` query and KV heads.

    The block table says `NOWHERE` for whatever no row sees.
    """
    generator = torch.Generator().manual_seed(seed)
    stored = stored or dtype
    (num_q_heads, num_kv_heads), counts = heads, [-(-kv_len // block_size) for _, kv_len in lengths]
    width = head_dim + 2 if stored in kv_elements.LARGEST else head_dim
    shape = (sum(counts) + 1, 2, 2, num_kv_heads, block_size, width)
    pool = torch.full((*shape[:-1], width * stored.itemsize), 0xFF, dtype=torch.uint8).view(stored)  # NaN, each
    order = torch.randperm(shape[0], generator=generator).tolist()
    table = torch.full((len(lengths), max(counts)), NOWHERE)
    dense = []
    for sequence, ((length, kv_len), count) in enumerate(zip(lengths, counts, strict=True)):
        ids = torch.tensor([order.pop() for _ in range(count)])
        place = torch.arange(kv_len)
        kv = torch.randn(2, kv_len, num_kv_heads, head_dim, generator=generator).to(dtype)
        for half in range(2):
            pool[:, 1, half][ids[place // block_size], :, place % block_size] = kv_elements.encode(kv[half], stored)
        dense.append(kv_elements.decode(kv_elements.encode(kv, stored), torch.float64))
        first_seen = max(0, kv_len - length - window + 1) if window else 0
        table[sequence, first_seen // block_size : count] = ids[first_seen // block_size :]
    ragged = Ragged(
        query_lens=tuple(length for length, _ in lengths), kv_lens=tuple(kv_len for _, kv_len in lengths),
        block_table=table.to(device), block_size=block_size,
    )  # fmt: skip
    fused = torch.randn(ragged.num_rows, num_q_heads + 2 * num_kv_heads, head_dim, generator=generator)
    return PagedBatch(
        q=fused.to(device, dtype)[:, :num_q_heads], pool=laid_out(pool, head_outer).to(device), ragged=ragged,
        window=window, dense=tuple(dense),
    )  # fmt: skip
