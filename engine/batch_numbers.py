"""The numbers of one step, made on the host for all of its sequences at once: nothing is done row by row in Python.

Knows grants and arrays; no tensors and no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pagewire.engine.step import Grant

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumbers:
    """What `Batch` holds of T packed tokens of S sequences, whose longest has M blocks; n rows have logits."""

    query_lens: tuple[int, ...]  # S
    kv_lens: tuple[int, ...]  # S
    token_ids: Numbers  # [T]
    positions: Numbers  # [T]
    slots: Numbers  # [T]
    logit_rows: Numbers  # [n]
    block_table: Numbers  # [S, M]

    @classmethod
    def of(cls, grants: tuple[Grant, ...], block_size: int) -> BatchNumbers:
        """Return the numbers of a step's grants."""
        query_lens = tuple([len(grant.tokens) for grant in grants])
        kv_lens = tuple([grant.start + length for grant, length in zip(grants, query_lens, strict=True)])
        lengths, ends = numbers(query_lens), np.cumsum(query_lens)
        table = _block_table(grants)
        owners = np.repeat(np.arange(len(grants)), lengths)  # [T]
        positions = np.repeat(numbers(kv_lens) - ends, lengths) + np.arange(len(owners))  # [T]
        return cls(
            query_lens=query_lens,
            kv_lens=kv_lens,
            token_ids=_end_to_end([grant.tokens for grant in grants]),
            positions=positions,
            slots=table[owners, positions // block_size] * block_size + positions % block_size,
            logit_rows=numbers(logit_rows(grants)),
            block_table=table,
        )


def logit_rows(grants: tuple[Grant, ...]) -> list[int]:
    """Return the rows of sequences that draw, in the order of their draws, and behind them those that are scored."""
    drawn: list[int] = []
    scored: list[int] = []
    row = 0
    for grant in grants:
        if grant.scoring is not None:
            first = row + grant.scoring.first_row
            scored.extend(range(first, first + len(grant.scoring.targets)))
        row += len(grant.tokens)
        if grant.forks or grant.checks:
            drawn.extend(draw_rows(grant, row))
        elif grant.draw is not None:
            drawn.append(row - 1)
    return drawn + scored


def draw_rows(grant: Grant, end: int) -> list[int]:
    """Return the row of each draw of a grant that ends before row `end`: the last, or one of those drafted with it."""
    first = end - 1 - len(grant.checks)
    return [first] * (grant.num_draws - len(grant.checks)) + list(range(first + 1, end))


def numbers(values: list[int] | tuple[int, ...]) -> Numbers:
    """Return an array of them; numpy reads a list in a third of the time that torch takes."""
    return np.array(values, dtype=np.int64)


def _end_to_end(parts: list[tuple[int, ...]]) -> Numbers:
    return np.fromiter(chain.from_iterable(parts), dtype=np.int64)


def _block_table(grants: tuple[Grant, ...]) -> Numbers:
    tables = [grant.block_ids for grant in grants]
    width = max(map(len, tables))
    # Padding repeats the last block: any valid id will do, nobody looks there.
    rows = [table + table[-1:] * (width - len(table)) if len(table) < width else table for table in tables]
    return np.frombuffer(bytearray().join(rows), dtype=np.int64).reshape(len(grants), width)  # [S, M]
