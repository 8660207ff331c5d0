"""The tensors of one step, built whole from its grants."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagewire.engine.batch_numbers import BatchNumbers, Numbers
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
    numbers: BatchNumbers | None = None  # what it was made of on the host, None where that is no batch of its own

    @classmethod
    def of(cls, step: Step, block_size: int, device: torch.device, host: torch.Tensor | None = None) -> Batch:
        """Return the batch of a step; what is spilled lies in `host` `[slots, L, 2, Hk, B, D]`."""
        grants = step.grants
        made = BatchNumbers.of(grants, block_size)

        def there(numbers: Numbers) -> torch.Tensor:
            return torch.from_numpy(numbers).to(device)

        return cls(
            token_ids=there(made.token_ids),
            positions=there(made.positions),
            slots=there(made.slots),
            ragged=Ragged(
                query_lens=made.query_lens,
                kv_lens=made.kv_lens,
                block_table=there(made.block_table),
                block_size=block_size,
                spilled=spilled_of(grants, host),
            ),
            logit_rows=there(made.logit_rows),
            draws=draws_of(grants),
            scorings=scorings_of(grants),
            adapted=adapted_rows(grants),
            numbers=made,
        )


def draws_of(grants: Sequence[Grant]) -> dict[str, Draw]:
    """Return all draws of a step, by the names that `Grant.draws` gives them."""
    return {name: draw for grant in grants for name, draw in grant.draws().items()}


def scorings_of(grants: tuple[Grant, ...]) -> dict[str, Scoring]:
    """Return what is to be said of prompts, by the sequence's name."""
    return {grant.request_id: grant.scoring for grant in grants if grant.scoring is not None}


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


def spilled_of(grants: tuple[Grant, ...], host: torch.Tensor | None) -> Spilled | None:
    """Return where the first blocks of the only sequence lie, None where all are in the pool."""
    if not any(grant.spilled for grant in grants):
        return None
    assert len(grants) == 1, "a sequence that spills is alone in its step"
    assert host is not None, "there is no host memory that blocks could lie in"
    return Spilled(memory=host, slots=grants[0].spilled)
