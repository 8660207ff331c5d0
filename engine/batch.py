"""The tensors of one step, built whole from its grants."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagewire.engine.step import Grant, Step
from pagewire.kernels.ragged import Ragged, SamplingRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """T packed tokens of S sequences; the n sequences that sample are `logit_rows`, in the order of `drawing`."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64, slot i is slot i % B of block i // B
    ragged: Ragged
    logit_rows: torch.Tensor  # [n] int64
    drawing: tuple[str, ...]  # n request ids
    sampling: SamplingRows

    @classmethod
    def of(cls, step: Step, block_size: int, device: torch.device) -> Batch:
        """Return the batch of a step."""
        grants = step.grants
        token_ids = [token for grant in grants for token in grant.tokens]
        ragged = Ragged(
            query_lens=tuple(len(grant.tokens) for grant in grants),
            kv_lens=tuple(grant.start + len(grant.tokens) for grant in grants),
            block_table=_block_table(grants, device),
            block_size=block_size,
        )
        positions, slots, last_rows, row = [], [], [], 0
        for sequence, grant in enumerate(grants):
            places = torch.arange(grant.start, grant.start + len(grant.tokens), device=device)
            blocks = ragged.block_table[sequence, places // block_size]
            positions.append(places)
            slots.append(blocks * block_size + places % block_size)
            row += len(grant.tokens)
            last_rows.append(row - 1)
        rows = [last for last, grant in zip(last_rows, grants, strict=True) if grant.draw is not None]
        return cls(
            token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
            positions=torch.cat(positions),
            slots=torch.cat(slots),
            ragged=ragged,
            logit_rows=torch.tensor(rows, dtype=torch.int64, device=device),
            drawing=tuple(grant.request_id for grant in grants if grant.draw is not None),
            sampling=_sampling_rows(grants),
        )


def _block_table(grants: tuple[Grant, ...], device: torch.device) -> torch.Tensor:
    width = max(len(grant.block_ids) for grant in grants)
    # Padding repeats the last block: any valid id will do, nobody looks there.
    rows = [grant.block_ids + (width - len(grant.block_ids)) * grant.block_ids[-1:] for grant in grants]
    return torch.tensor(rows, dtype=torch.int64, device=device)  # [S, M]


def _sampling_rows(grants: tuple[Grant, ...]) -> SamplingRows:
    draws = [grant.draw for grant in grants if grant.draw is not None]
    return SamplingRows(
        temperature=tuple(draw.sampling.temperature for draw in draws),
        top_k=tuple(draw.sampling.top_k for draw in draws),
        top_p=tuple(draw.sampling.top_p for draw in draws),
        min_p=tuple(draw.sampling.min_p for draw in draws),
        seed=tuple(draw.sampling.seed for draw in draws),
        index=tuple(draw.index for draw in draws),
        position=tuple(draw.position for draw in draws),
    )
