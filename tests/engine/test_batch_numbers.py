"""The numbers of a step against their definitions, token by token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_runs import greedy
from hypothesis import given
from hypothesis import strategies as st

from pagewire.engine.batch import Batch
from pagewire.engine.batch_numbers import BatchNumbers
from pagewire.engine.block import table_of
from pagewire.engine.packed_batch import pack
from pagewire.engine.step import Draw, Grant, Scoring, Step

CPU = torch.device("cpu")
DRAW = Draw(sampling=greedy(3), index=0, position=0)


@st.composite
def grants(draws: st.DrawFn, block_size: int) -> tuple[Grant, ...]:
    """Sequences of any lengths, in blocks in any order, with draws of all kinds."""
    found = []
    for number in range(draws(st.integers(1, 6))):
        start, count = draws(st.integers(0, 3 * block_size)), draws(st.integers(1, 2 * block_size + 1))
        num_blocks = -(-(start + count) // block_size) + draws(st.integers(0, 1))
        blocks = draws(st.lists(st.integers(0, 40), min_size=num_blocks, max_size=num_blocks, unique=True))
        num_checks = draws(st.integers(0, min(2, count - 1)))
        num_targets = draws(st.integers(0, count))
        drawn = draws(st.booleans())
        found.append(
            Grant(
                request_id=f"r{number}",
                tokens=tuple(draws(st.lists(st.integers(0, 99), min_size=count, max_size=count))),
                start=start,
                block_ids=table_of(blocks),
                draw=DRAW if drawn else None,
                forks=tuple(replace(DRAW, index=1 + each) for each in range(draws(st.integers(0, 2)))) if drawn else (),
                checks=(DRAW,) * num_checks if drawn else (),
                scoring=Scoring(first_row=count - num_targets, targets=(7,) * num_targets, num_top=0)
                if num_targets
                else None,
            )
        )
    return tuple(found)


@given(data=st.data(), block_size=st.sampled_from([1, 2, 16]))
def test_every_number_is_that_of_its_token(data: st.DataObject, block_size: int) -> None:
    made_of = data.draw(grants(block_size))
    made = BatchNumbers.of(made_of, block_size)
    rows = [(grant, place) for grant in made_of for place in range(grant.start, grant.start + len(grant.tokens))]
    assert made.token_ids.tolist() == [grant.tokens[place - grant.start] for grant, place in rows]
    assert made.positions.tolist() == [place for _, place in rows]
    assert made.slots.tolist() == [
        grant.block_ids[place // block_size] * block_size + place % block_size for grant, place in rows
    ]
    assert made.query_lens == tuple(len(grant.tokens) for grant in made_of)
    assert made.kv_lens == tuple(grant.start + len(grant.tokens) for grant in made_of)
    for row, grant in zip(made.block_table.tolist(), made_of, strict=True):
        count = len(grant.block_ids)
        assert (table_of(row[:count]), set(row[count:])) == (
            grant.block_ids,
            {grant.block_ids[-1]} if row[count:] else set(),
        )
    drawn, scored, end = [], [], 0
    for grant in made_of:
        first, end = end, end + len(grant.tokens)
        for name in grant.draws():
            place = int(name.partition("\x1e")[2]) + 1 if "\x1e" in name else 0
            drawn.append(end - 1 - len(grant.checks) + place)
        if grant.scoring is not None:
            scored += [first + grant.scoring.first_row + each for each in range(len(grant.scoring.targets))]
    assert made.logit_rows.tolist() == drawn + scored


@given(data=st.data())
def test_both_batches_hold_these_numbers(data: st.DataObject) -> None:
    step = Step(grants=data.draw(grants(16)))
    made = BatchNumbers.of(step.grants, 16)
    for batch in (Batch.of(step, 16, CPU), pack(step, 16, CPU)):
        for name in ("token_ids", "positions", "slots", "logit_rows"):
            there = getattr(batch, name)
            assert there.dtype == torch.int64
            assert np.array_equal(there.numpy(), getattr(made, name)), name
        assert np.array_equal(batch.ragged.block_table.numpy(), made.block_table)
        assert (batch.ragged.query_lens, batch.ragged.kv_lens) == (made.query_lens, made.kv_lens)
        assert list(batch.draws) == [name for grant in step.grants for name in grant.draws()]


def test_a_token_that_is_none_is_an_error_and_no_other_token() -> None:
    grant = Grant(request_id="a", tokens=(1 << 70,), start=0, block_ids=table_of((0,)), draw=DRAW)
    with pytest.raises(OverflowError):
        BatchNumbers.of((grant,), 16)
