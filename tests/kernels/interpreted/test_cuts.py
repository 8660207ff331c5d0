"""Where the kernels cut a row is where the reference's filters do, whatever the row, and a short list is enough."""

from __future__ import annotations

import math
import random
from typing import Any
from unittest import mock

import pytest
import torch

from pagewire.kernels import sampling as reference
from pagewire.kernels.gpu import cuts
from pagewire.kernels.gpu.cuts import Cuts, find_cuts
from pagewire.kernels.sampling_columns import SamplingColumns
from pagewire.kernels.sampling_rows import SamplingRows

CPU = torch.device("cpu")
LARGE = torch.finfo(torch.float32).max


def rows(*each: dict[str, Any]) -> SamplingRows:
    off = {
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
        "seed": 7, "index": 0, "position": 0,
    }  # fmt: skip
    return SamplingRows(**{name: tuple({**off, **one}[name] for one in each) for name in off})


def left(logits: torch.Tensor, asked: SamplingRows, found: Cuts) -> list[list[int]]:
    """Return the ids that are left of each row."""
    ids = torch.arange(logits.shape[1])
    floors, lasts = found.floors[:, None], found.lasts[:, None]
    stays = (logits > floors) | ((logits == floors) & (ids <= lasts))
    stays &= logits.double() / torch.tensor(asked.temperature, dtype=torch.float64)[:, None] >= found.bounds[:, None]
    return [ids[row].tolist() for row in stays & (logits > -torch.inf)]


def left_by_definition(logits: torch.Tensor, asked: SamplingRows) -> list[list[int]]:
    values, ids = reference.keep(logits.double() / torch.tensor(asked.temperature, dtype=torch.float64)[:, None], asked)
    return [sorted(some[kept].tolist()) for some, kept in zip(ids, values > -torch.inf, strict=True)]


def find(logits: torch.Tensor, asked: SamplingRows, tile: int = 64, share: int = 2) -> Cuts:
    return find_cuts(logits, SamplingColumns.of(asked, CPU), tile=tile, share=share)


def any_asked(count: int, chance: random.Random) -> SamplingRows:
    return rows(
        *(
            {
                "temperature": chance.choice([1e-5, 0.05, 0.6, 1.0, 1.7, 100.0]),
                "top_k": chance.choice([0, 0, 2, 3, 7, 50, 250, 10**6]),
                "top_p": chance.choice([1.0, 1e-9, 0.2, 0.5, 0.9, 0.99, 1 - 1e-12]),
                "min_p": chance.choice([0.0, 0.0, 0.0, 0.3]),
            }
            for _ in range(count)
        )
    )


def spread(kind: str, count: int, vocab_size: int) -> torch.Tensor:
    """Return logits of a kind."""
    logits = torch.randn(count, vocab_size)
    if kind == "tied":
        return logits.mul(2).round()  # of both signs of zero, too
    if kind == "bf16":
        return logits.mul(4).bfloat16().float()
    if kind == "equal":
        return torch.full_like(logits, -2.5)
    if kind == "banned":  # most of them; and some are the lowest number there is
        logits[torch.rand(count, vocab_size) < 0.8] = -torch.inf
        logits[:, :: vocab_size // 5] = -LARGE
        logits[:, -1] = 0.0
        return logits
    if kind == "wild":  # as far apart as numbers are, and nearer to each other than 1e-30
        exponents = torch.randint(-44, 38, (count, vocab_size))
        logits *= torch.tensor(10.0, dtype=torch.float64).pow(exponents).float()
        logits[0, :2] = torch.tensor([LARGE, -LARGE])
        return logits
    return logits * {"peaked": 30.0, "flat": 1e-3}.get(kind, 3.0)


KINDS = ["usual", "peaked", "flat", "tied", "bf16", "equal", "banned", "wild"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capacity", [16, 1024])
def test_what_is_left_is_what_the_definition_leaves(poisoned: None, kind: str, capacity: int) -> None:
    """Also where a list does not hold what it would have to."""
    chance = random.Random(kind)
    logits, asked = spread(kind, 16, 300), any_asked(16, chance)
    with mock.patch.multiple(cuts, CAPACITY=capacity, LIST_TILE=64, BINS=32):
        found = find(logits, asked)
    assert left(logits, asked, found) == left_by_definition(logits, asked)


def test_cuts_are_the_same_to_the_last_bit_whoever_finds_them(poisoned: None) -> None:
    """Alone or among others, by however many programs."""
    logits, asked = spread("usual", 5, 700), any_asked(5, random.Random(3))
    expected = find(logits, asked)
    for share in (1, 5, 100):
        found = find(logits, asked, share=share)
        assert torch.equal(found.floors, expected.floors)
        assert torch.equal(found.lasts, expected.lasts)
        assert torch.equal(found.bounds, expected.bounds)
    for row in range(5):
        alone = find(logits[row : row + 1], asked.take([row]))
        assert float(alone.floors) == float(expected.floors[row])
        assert int(alone.lasts) == int(expected.lasts[row])
        assert float(alone.bounds) == float(expected.bounds[row])


@pytest.mark.parametrize("vocab_size", [100, 1024, 3000])
@pytest.mark.parametrize("value", [0.0, -2.5, 12.0, LARGE, -LARGE])
def test_the_few_that_a_grammar_leaves_stay_also_where_they_are_equal(
    poisoned: None, vocab_size: int, value: float
) -> None:
    logits = torch.full((4, vocab_size), -torch.inf)
    for row, count in enumerate((1, 2, 3, 1)):
        logits[row, torch.randperm(vocab_size)[:count]] = value
    asked = rows({"top_k": 20}, {"top_k": 20}, {"top_k": 4, "temperature": 0.3}, {"top_k": 2, "top_p": 0.5})
    assert left(logits, asked, find(logits, asked)) == left_by_definition(logits, asked)


def test_nothing_is_cut_of_rows_that_ask_for_nothing_or_have_no_maximum(poisoned: None) -> None:
    logits = torch.randn(6, 100)
    logits[2, 5], logits[3, 5], logits[4] = math.nan, math.inf, -math.inf
    cut = {"top_k": 5, "top_p": 0.5, "min_p": 0.5}
    found = find(logits, rows({}, {**cut, "temperature": 0.0}, cut, cut, cut, {**cut, "top_k": 1}))
    assert found.floors.tolist() == [-LARGE] * 6
    assert found.lasts.tolist() == [100] * 6
    assert found.bounds.tolist() == [-math.inf] * 6


@pytest.mark.parametrize(
    ("kind", "asked", "most"),
    [
        ("usual", {"top_k": 50}, 100),
        ("usual", {"top_k": 5000}, 400),
        ("usual", {"top_k": 20, "top_p": 0.95, "temperature": 0.6}, 100),
        ("usual", {"top_p": 0.9}, 1000),
        ("bf16", {"top_p": 0.9}, 1000),
        ("peaked", {"top_p": 0.9}, 10),
        ("flat", {"top_p": 0.5}, 1000),
        ("banned", {"top_k": 10}, 50),
        ("banned", {"top_p": 0.5}, 1000),
    ],
)
def test_a_list_is_short_and_what_is_ahead_of_it_stays(
    poisoned: None, kind: str, asked: dict[str, Any], most: int
) -> None:
    """Of 20,000 logits: those of a few bins, between which the cut lies."""
    logits, every = spread(kind, 1, 20_000), rows(asked)
    settle = cuts._settle
    with mock.patch.object(cuts, "_settle") as last:
        find(logits, every, tile=1024)
    given = dict(zip(settle.arg_names, last.__getitem__.return_value.call_args.args, strict=False))
    ahead, listed = given["numbers"].sum(dim=(1, 2)).tolist()
    assert 0 < listed <= most
    kept = len(left_by_definition(logits, every)[0])
    assert ahead < kept <= ahead + listed
    ids = given["places"][0, :listed]
    assert torch.equal(ids, ids.sort().values)
    assert torch.equal(given["listed"][0, :listed], logits[0, ids])
