"""The law that step times are fitted with, against its definition: sums of what each step told, in numpy's matrices."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.engine import step_cost
from pagewire.engine.block import table_of
from pagewire.engine.step import Grant, Step
from pagewire.engine.step_cost import StepCost, StepShape

Vector = npt.NDArray[np.float64]


def terms(shape: StepShape) -> Vector:
    values = (1, shape.prefill_tokens, shape.decodes, shape.attended)
    return np.array([value / unit for value, unit in zip(values, step_cost.UNITS, strict=True)])


class Naive:
    """The law by what is known of it, the inverse of its covariance: what a step tells is added to that."""

    def __init__(self) -> None:
        self.known = np.eye(4) / step_cost.PRIOR
        self.law = np.zeros(4)
        self.pace = 1.0
        self.usual_s = 0.0  # error of the steps so far
        self.count = 0

    def predict_s(self, shape: StepShape) -> float:
        return max(0.0, self.pace * float(self.law @ terms(shape)))

    def observe(self, shape: StepShape, elapsed_s: float) -> None:
        said_s = self.pace * float(self.law @ terms(shape))
        off_s = abs(elapsed_s - said_s)
        self.count += 1
        weight = 1.0
        if self.count > step_cost.WARM_UP:
            edge_s = step_cost.EDGE * max(self.usual_s, elapsed_s / 100)
            weight = min(1.0, edge_s / off_s) if off_s else 1.0
            self.usual_s = 0.95 * self.usual_s + 0.05 * min(off_s, 2 * edge_s)
            if said_s > 0 and elapsed_s > 0:
                most = math.exp(step_cost.MOST_SURPRISE)
                self.pace *= min(max(elapsed_s / said_s, 1 / most), most) ** step_cost.AGILITY
        if self.count == step_cost.WARM_UP:
            self.usual_s = off_s
        self.tell(terms(shape), elapsed_s / self.pace, weight)

    def tell(self, step: Vector, seconds: float, weight: float) -> None:
        if weight == 0:
            return
        along = np.linalg.solve(self.known, step)
        doubt = float(step @ along)
        self.law = self.law + along * (seconds - float(self.law @ step)) / (1 / weight + doubt)
        forget = step_cost.FORGET
        self.known = self.known + (forget - (1 - forget) / doubt) * np.outer(step, step)


SHAPES = st.builds(
    StepShape, prefill_tokens=st.integers(0, 600), decodes=st.integers(0, 64), attended=st.integers(0, 300_000)
)
SECONDS = st.one_of(st.just(0.0), st.floats(1e-3, 0.05), st.floats(0.5, 3.0))  # none, usual ones, and stalls
ASKED = (
    StepShape(),
    StepShape(prefill_tokens=512),
    StepShape(decodes=16),
    StepShape(attended=100_000),
    StepShape(prefill_tokens=100, decodes=8, attended=20_000),
)


def same(cost: StepCost, naive: Naive) -> None:
    assert cost.num_steps == naive.count
    assert cost.error_s == pytest.approx(naive.usual_s, rel=1e-5, abs=1e-9)
    for shape in ASKED:
        assert cost.predict_s(shape) == pytest.approx(naive.predict_s(shape), rel=1e-5, abs=1e-6)


@given(steps=st.lists(st.tuples(SHAPES, SECONDS), max_size=30))
def test_the_fit_is_that_of_its_definition(steps: list[tuple[StepShape, float]]) -> None:
    cost, naive = StepCost(), Naive()
    same(cost, naive)
    for shape, seconds in steps:
        cost.observe(shape, seconds)
        naive.observe(shape, seconds)
        same(cost, naive)


def told(seed: int, count: int, slower: float = 1.0, *, decode_s: float = 5e-5) -> Iterable[tuple[StepShape, float]]:
    """Steps of a machine with a law, its noise, and a stall now and then; it is `slower` from half way on."""
    chance = random.Random(seed)
    for number in range(count):
        shape = StepShape(
            prefill_tokens=chance.choice((0, 0, chance.randrange(2, 600))),
            decodes=chance.randrange(1, 33),
            attended=chance.randrange(200_000),
        )
        seconds = 3e-3 + 1e-4 * shape.prefill_tokens + decode_s * shape.decodes + 2e-8 * shape.attended
        seconds *= chance.uniform(0.9, 1.1) * (20.0 if chance.random() < 0.03 else 1.0)
        yield shape, seconds * (slower if number > count // 2 else 1.0)


@pytest.mark.parametrize("slower", [0.3, 1.0, 3.0])
def test_so_it_is_over_many_steps_with_noise_and_stalls_and_a_change(slower: float) -> None:
    cost, naive = StepCost(), Naive()
    for shape, seconds in told(7, 400, slower):
        cost.observe(shape, seconds)
        naive.observe(shape, seconds)
        same(cost, naive)


def learnt(slower: float = 1.0) -> StepCost:
    cost = StepCost()
    for shape, seconds in told(3, 300, slower):
        cost.observe(shape, seconds)
    return cost


def chunk(tokens: int, depth: int) -> StepShape:
    """What a prompt's next tokens are to the law: each looks at all before it and at itself."""
    attended = sum(depth + place for place in range(1, tokens + 1))
    return StepShape(prefill_tokens=tokens, attended=attended)


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_a_prompt_gets_as_many_tokens_as_the_time_is_enough_for(slower: float) -> None:
    cost = learnt(slower)
    alone_s = cost.predict_s(StepShape())
    for left_s, depth in itertools.product((1e-5, 1e-3, 0.01, 0.0234, 0.3), (0, 1, 77, 900, 6000)):
        most = cost.most_prefill(left_s, depth)
        assert cost.predict_s(chunk(most, depth)) - alone_s <= left_s + 1e-9
        assert cost.predict_s(chunk(most + 1, depth)) - alone_s > left_s - 1e-9


def test_without_time_there_is_no_prompt() -> None:
    cost = learnt()
    assert (cost.most_prefill(0.0, 0), cost.most_prefill(-1.0, 0), cost.most_prefill(-1.0, 500)) == (0, 0, 0)


def test_nothing_is_known_at_first_and_prompts_are_then_bounded_by_others() -> None:
    cost = StepCost()
    assert [cost.predict_s(shape) for shape in ASKED] == [0.0] * len(ASKED)
    assert (cost.num_steps, cost.error_s) == (0, 0.0)
    assert cost.most_prefill(0.001, 0) >= 100_000


def test_a_law_by_which_more_tokens_take_less_time_is_not_believed() -> None:
    cost = StepCost()
    for tokens in (2, 500, 100, 900, 3, 700) * 20:
        cost.observe(StepShape(prefill_tokens=tokens, attended=tokens * 100), 0.1 - tokens * 1e-4)
    assert cost.predict_s(StepShape(prefill_tokens=5000, attended=500_000)) == 0.0, "and no step takes less than none"
    assert cost.most_prefill(0.001, 4000) >= 100_000


def test_steps_that_took_no_time_are_borne() -> None:
    """A clock may stand still for as long as a step of a tiny model; then nothing is off, and nothing is usual."""
    cost = StepCost()
    for _ in range(step_cost.WARM_UP + 1):
        cost.observe(StepShape(decodes=1), 0.0)
    assert cost.predict_s(StepShape(decodes=1)) == 0.0
    cost.observe(StepShape(decodes=1), 1.0)
    cost.observe(StepShape(decodes=1), 0.0)
    assert cost.predict_s(StepShape(decodes=1)) >= 0.0


def test_no_single_step_makes_the_machine_another_one() -> None:
    cost, asked = learnt(), StepShape(decodes=16, attended=100_000)
    before_s = cost.predict_s(asked)
    cost.observe(asked, 20 * before_s)
    assert before_s < cost.predict_s(asked) < 1.06 * before_s


def test_what_was_learnt_long_ago_is_forgotten() -> None:
    cost, asked = learnt(), StepShape(decodes=32)
    for shape, seconds in told(5, 1500, decode_s=5e-4):
        cost.observe(shape, seconds)
    assert cost.predict_s(asked) == pytest.approx(3e-3 + 32 * 5e-4, rel=0.2)


def step(*sizes: tuple[int, int]) -> Step:
    """Return a step of grants, each from a place on with so many tokens."""
    return Step(
        grants=tuple(
            Grant(request_id=str(start), tokens=(1,) * count, start=start, block_ids=table_of(), draw=None)
            for start, count in sizes
        )
    )


@pytest.mark.parametrize("sizes", [(), ((0, 1),), ((7, 2),), ((0, 3), (10, 1), (4, 2), (5, 1), (6, 1))])
def test_the_shape_of_a_step_counts_what_each_token_looks_at(sizes: tuple[tuple[int, int], ...]) -> None:
    assert StepShape.of(step(*sizes)) == StepShape(
        prefill_tokens=sum(count for _, count in sizes if count > 1),
        decodes=len([count for _, count in sizes if count == 1]),
        attended=sum(start + 1 + at for start, count in sizes for at in range(count)),
    )


def test_the_shape_of_no_step_has_nothing() -> None:
    assert StepShape() == StepShape(prefill_tokens=0, decodes=0, attended=0)
