"""The step-time target on a pretended engine: step times follow a law that the pace does not know, with noise."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from engine_runs import spec
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.engine import progress
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.step import Computed
from pagewire.engine.step_cost import StepCost, StepShape
from pagewire.engine.step_pace import StepPace

LEAST, MOST = 16, 2048


@dataclass(frozen=True, slots=True)
class Law:
    """Seconds of a step: fixed, per prompt token, per decode, per attended pair; relative noise; rare stalls."""

    fixed_s: float
    prefill_s: float
    decode_s: float
    attended_s: float
    noise: float = 0.03
    stalls: float = 0.005

    def mean_s(self, shape: StepShape) -> float:
        seconds = self.fixed_s + self.prefill_s * shape.prefill_tokens + self.decode_s * shape.decodes
        return seconds + self.attended_s * shape.attended

    def step_s(self, shape: StepShape, chance: random.Random) -> float:
        stall = 10.0 if chance.random() < self.stalls else 1.0
        return self.mean_s(shape) * stall * max(0.5, chance.gauss(1.0, self.noise))


LAWS = st.builds(
    Law, st.floats(1e-3, 8e-3), st.floats(2e-5, 1e-3), st.floats(1e-5, 2e-4), st.floats(0.0, 5e-8), st.floats(0.0, 0.05)
)


@dataclass(slots=True)
class Seen:
    steps: list[tuple[float, StepShape, int]]  # seconds, shape, how much prefill was allowed
    ended: int


def simulate(law: Law, target_s: float, *, seed: int = 0, num_steps: int = 600, slower: float = 1.0) -> Seen:
    """Prompts stream in beside running decodes; half way all steps become `slower` times as long."""
    chance = random.Random(seed)
    limits = Limits(
        max_num_batched_tokens=MOST + 32, max_num_seqs=32, chunk_size=MOST, block_size=16, max_model_len=4000,
        vocab_size=100,
    )  # fmt: skip
    scheduler = Scheduler(BlockPool(8000), limits, policy_of(Role.DECODE))
    pace, seen = StepPace(target_s, least=LEAST, most=MOST), Seen([], 0)
    for number in range(num_steps):
        if len(scheduler.waiting) < 4:
            sampling = SamplingParams(max_tokens=chance.randrange(20, 80), temperature=0.0)
            length = chance.choice((20, 200, 1500, 3500))
            scheduler.add(spec(str(number), [number % 90] * length, sampling))
        allowed = pace.most_prefill(*scheduler.decodes_ahead())
        step = scheduler.schedule(allowed)
        assert step is not None
        shape = StepShape.of(step)
        elapsed_s = law.step_s(shape, chance) * (slower if number > num_steps // 2 else 1.0)
        pace.observe(shape, elapsed_s)
        seen.steps.append((elapsed_s, shape, allowed))
        for grant in step.grants:
            computed = Computed(token=7 if grant.draw is not None else None)
            done = progress.commit(
                scheduler, scheduler.sequences[grant.request_id], grant, {grant.request_id: computed}
            )
            seen.ended += done.end is not None
    return seen


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * len(seconds))]


@settings(max_examples=20, deadline=None)
@given(law=LAWS, seed=st.integers(0, 99))
def test_steps_stay_near_the_target_and_prompts_advance(law: Law, seed: int) -> None:
    least = StepShape(prefill_tokens=LEAST, decodes=31, attended=31 * 3000 + LEAST * 3500)
    target_s = 2 * law.step_s(least, random.Random(0)) / (1 - 3 * law.noise)  # it can be met at all
    calm = Law(law.fixed_s, law.prefill_s, law.decode_s, law.attended_s, law.noise, stalls=0.0)
    seen = simulate(calm, target_s, seed=seed)
    warm = seen.steps[60:]
    assert p99([seconds for seconds, _, _ in warm]) <= 1.2 * target_s
    assert all(allowed >= LEAST for _, _, allowed in seen.steps)
    assert all(shape.prefill_tokens <= allowed for _, shape, allowed in seen.steps)
    full = [seconds for seconds, shape, allowed in warm if shape.prefill_tokens == allowed < MOST]
    assert not full or sum(full) / len(full) >= 0.6 * target_s, "time that was there is not used"


@pytest.mark.parametrize("slower", [0.4, 2.0])
def test_it_learns_that_the_machine_became_slower_or_faster_and_forgives_stalls(slower: float) -> None:
    law, target_s = Law(3e-3, 1e-4, 1e-4, 1e-8, stalls=0.02), 0.05
    seen = simulate(law, target_s, num_steps=800, slower=slower)
    usual = [each for each in seen.steps[600:] if each[0] < 3 * slower * law.mean_s(each[1])]
    assert p99([seconds for seconds, _, _ in usual]) <= 1.2 * target_s
    full = [seconds for seconds, shape, allowed in usual if shape.prefill_tokens == allowed < MOST]
    assert full
    assert sum(full) / len(full) >= 0.6 * target_s
    assert seen.ended > 20


def test_a_target_that_cannot_be_met_still_lets_prompts_advance() -> None:
    seen = simulate(Law(5e-3, 1e-3, 1e-4, 0.0), 1e-3, num_steps=400)
    assert {allowed for _, _, allowed in seen.steps[60:]} == {LEAST}
    prefill = sum(shape.prefill_tokens for _, shape, _ in seen.steps)
    assert prefill >= 0.9 * LEAST * len(seen.steps)


def test_the_fit_survives_a_thousand_equal_steps() -> None:
    """Decodes alone say nothing of prompts; what was known of those is known afterwards, and nothing overflows."""
    cost, chance = StepCost(), random.Random(1)
    law = Law(2e-3, 2e-4, 1e-4, 0.0, noise=0.0, stalls=0.0)
    for _ in range(100):
        shape = StepShape(prefill_tokens=chance.randrange(2, 500), decodes=chance.randrange(30), attended=1000)
        cost.observe(shape, law.step_s(shape, chance))
    asked = StepShape(prefill_tokens=300, decodes=8, attended=1000)
    before_s = cost.predict_s(asked)
    assert before_s == pytest.approx(law.step_s(asked, chance), rel=0.01)
    for _ in range(1000):
        shape = StepShape(decodes=8, attended=1000)
        cost.observe(shape, law.step_s(shape, chance))
    assert cost.predict_s(asked) == pytest.approx(before_s, rel=0.02)


def test_a_pace_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="aimed"):
        StepPace(0.0, least=1, most=2)
    with pytest.raises(ValueError, match="aimed"):
        StepPace(1.0, least=3, most=2)
    with pytest.raises(ValueError, match="aimed"):
        StepPace(1.0, least=0, most=2)
    assert StepPace(0.001, least=1, most=1).most_prefill(StepShape(), 0) == 1
    assert StepPace(1.0, least=2, most=2).least_prefill == 2


def test_however_much_time_there_is_no_more_than_twice_what_was_seen_goes_into_a_step() -> None:
    pace, alone = StepPace(1e9, least=16, most=2048), StepShape()
    assert pace.most_prefill(alone, 0) == 32
    for tokens, most in ((32, 64), (20, 64), (64, 128), (1500, 2048)):
        pace.observe(StepShape(prefill_tokens=tokens), 0.01)
        assert pace.most_prefill(alone, 0) == most
