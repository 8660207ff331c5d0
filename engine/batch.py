"""The tensors of one step, built whole from its grants."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from pagewire.engine.step import Draw, Grant, Scoring, Step
from pagewire.kernels.low_rank import AdaptedRows
from pagewire.kernels.ragged import Ragged, Spilled


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """T packed tokens of S sequences, and the n rows among them whose logits are needed.

    First the rows of the sequences that draw a token, in the order of `draws`, then those of each of `scorings`. None
    stands for all rows, in their order.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64, slot i is slot i % B of block i // B
    ragged: Ragged
    logit_rows: torch.Tensor | None  # [n] int64
    draws: dict[str, Draw]  # by the sequence's name
    scorings: dict[str, Scoring]  # by the sequence's name
    adapted: tuple[AdaptedRows, ...] = ()

    @classmethod
    def of(cls, step: Step, block_size: int, device: torch.device, host: torch.Tensor | None = None) -> Batch:
        """Return the batch of a step; what is spilled lies in `host` `[slots, L, 2, Hk, B, D]`."""
        grants = step.grants
        token_ids = [token for grant in grants for token in grant.tokens]
        ragged = Ragged(
            query_lens=tuple(len(grant.tokens) for grant in grants),
            kv_lens=tuple(grant.start + len(grant.tokens) for grant in grants),
            block_table=_block_table(grants, device),
            block_size=block_size,
            spilled=spilled_of(grants, host),
        )
        drawn, scored = logit_rows(grants)
        places = [place for grant in grants for place in range(grant.start, grant.start + len(grant.tokens))]
        positions = torch.tensor(places, dtype=torch.int64, device=device)
        owners = [sequence for sequence, grant in enumerate(grants) for _ in grant.tokens]
        blocks = ragged.block_table[torch.tensor(owners, dtype=torch.int64, device=device), positions // block_size]
        return cls(
            token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
            positions=positions,
            slots=blocks * block_size + positions % block_size,
            ragged=ragged,
            logit_rows=torch.tensor(drawn + scored, dtype=torch.int64, device=device),
            draws={name: draw for grant in grants for name, draw in grant.draws().items()},
            scorings={grant.request_id: grant.scoring for grant in grants if grant.scoring is not None},
            adapted=adapted_rows(grants),
        )


def adapted_rows(grants: tuple[Grant, ...]) -> tuple[AdaptedRows, ...]:
    """Return the rows that have an adapter, those of one side by side together."""
    if not any(grant.adapter for grant in grants):
        return ()
    found: list[AdaptedRows] = []
    row = 0
    for number, group in itertools.groupby(grants, key=lambda grant: grant.adapter):
        first, row = row, row + sum(len(grant.tokens) for grant in group)
        if number:
            found.append(AdaptedRows(first=first, end=row, number=number))
    return tuple(found)


def draw_rows(grant: Grant, end: int) -> list[int]:
    """Return the row of each draw of a grant that ends before row `end`: the last, or one of those drafted with it."""
    first = end - 1 - len(grant.checks)
    return [first] * (grant.num_draws - len(grant.checks)) + list(range(first + 1, end))


def logit_rows(grants: tuple[Grant, ...]) -> tuple[list[int], list[int]]:
    """Return the rows of sequences that draw, and those of prompts that are scored."""
    drawn: list[int] = []
    scored: list[int] = []
    row = 0
    for grant in grants:
        if grant.scoring is not None:
            first = row + grant.scoring.first_row
            scored.extend(range(first, first + len(grant.scoring.targets)))
        row += len(grant.tokens)
        drawn.extend(draw_rows(grant, row))
    return drawn, scored


def spilled_of(grants: tuple[Grant, ...], host: torch.Tensor | None) -> Spilled | None:
    """Return where the first blocks of the only sequence lie, None where all are in the pool."""
    if not any(grant.spilled for grant in grants):
        return None
    assert len(grants) == 1, "a sequence that spills is alone in its step"
    assert host is not None, "there is no host memory that blocks could lie in"
    return Spilled(memory=host, slots=grants[0].spilled)


def _block_table(grants: tuple[Grant, ...], device: torch.device) -> torch.Tensor:
    width = max(len(grant.block_ids) for grant in grants)
    # Padding repeats the last block: any valid id will do, nobody looks there.
    rows = [grant.block_ids + (width - len(grant.block_ids)) * grant.block_ids[-1:] for grant in grants]
    return torch.tensor(rows, dtype=torch.int64, device=device)  # [S, M]
