"""Levels of service: no flapping, one at a time, all the way back; then what each does to a real loop and its pool."""

from __future__ import annotations

import itertools

import pytest
from engine_runs import assert_at_rest, greedy, run_until_idle, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.block_hash import chain
from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Add, Bind, Reserve
from pagewire.core.load import BrownoutLevel
from pagewire.core.messages import Role, Submit
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.brownout import (
    CALM_S,
    LEVELS,
    OFFLOADS_PER_STEP,
    RISE_S,
    THRESHOLDS,
    Brownout,
    pressure_of,
    shorten,
)
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.limits import Limits
from pagewire.engine.moves import Move
from pagewire.engine.prefix_cache import HOST
from pagewire.engine.role_policy import policy_of
from pagewire.engine.runner import OnGroup
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.step import Computed, Step

PRESSURE = st.floats(0.0, 1.5)
SIGNAL = st.lists(st.tuples(PRESSURE, st.floats(0.01, 2.0)), min_size=1, max_size=60)


def at(level: BrownoutLevel) -> tuple[Brownout, float]:
    """Return a machine that has come to `level`, and the time."""
    brownout, now_s = Brownout(least_prefill=16), 0.0
    while brownout.level is not level:
        brownout.observe(THRESHOLDS[LEVELS[LEVELS.index(brownout.level) + 1]].enter, now_s)
        now_s += RISE_S
    return brownout, now_s


def test_every_level_has_a_band() -> None:
    thresholds = [THRESHOLDS[level] for level in LEVELS[1:]]
    assert all(each.leave < each.enter for each in thresholds)
    assert all(low.enter < high.enter and low.leave < high.leave for low, high in itertools.pairwise(thresholds))


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=100, deadline=None)
@given(signal=SIGNAL)
def test_nothing_changes_within_the_band(level: BrownoutLevel, signal: list[tuple[float, float]]) -> None:
    brownout, now_s = at(level)
    place = LEVELS.index(level)
    low = THRESHOLDS[level].leave if place else 0.0
    high = THRESHOLDS[LEVELS[place + 1]].enter if place + 1 < len(LEVELS) else 9.0
    for pressure, seconds in signal:
        now_s += seconds
        assert brownout.observe(low + (high - low) * min(pressure, 1.49) / 1.5, now_s) is level


@settings(max_examples=200, deadline=None)
@given(signal=SIGNAL)
def test_levels_change_one_at_a_time_after_their_time_and_service_comes_back(signal: list[tuple[float, float]]) -> None:
    brownout, now_s, changed_s = Brownout(least_prefill=16), 0.0, -1e9
    for pressure, seconds in signal:
        now_s += seconds
        before = LEVELS.index(brownout.level)
        after = LEVELS.index(brownout.observe(pressure, now_s))
        assert abs(after - before) <= 1
        if after > before:
            assert pressure >= THRESHOLDS[LEVELS[after]].enter
        if after < before:
            assert pressure < THRESHOLDS[LEVELS[before]].leave
        if after != before:
            assert now_s - changed_s >= (RISE_S if after > before else CALM_S) - 1e-9
            changed_s = now_s
    gone_s = now_s
    while brownout.is_active:
        now_s += 0.1
        brownout.observe(0.5, now_s)
        assert now_s - gone_s <= CALM_S * (len(LEVELS) - 1) + 0.1 * len(LEVELS), "it does not come back"


@settings(max_examples=100, deadline=None)
@given(low=st.floats(0.0, 1.5), high=st.floats(0.0, 1.5), period_s=st.floats(0.02, RISE_S / 2 - 0.01))
def test_a_pressure_that_swings_faster_than_the_times_changes_no_level(
    low: float, high: float, period_s: float
) -> None:
    """Up and down within less than RISE_S: it stays where it is unless both ends ask for the same."""
    brownout = Brownout(least_prefill=16)
    seen = {brownout.observe((low, high)[number % 2], number * period_s) for number in range(200)}
    if min(low, high) < THRESHOLDS[BrownoutLevel.OFFLOAD].enter:
        assert seen == {BrownoutLevel.NORMAL}


def test_pressure_is_the_larger_of_memory_and_queue() -> None:
    pool = BlockPool(10)
    pool.reserve(2)
    pool.allocate(3)
    assert pressure_of(pool, 0.0) == 0.5
    assert pressure_of(pool, 9.0) == 0.9


def test_what_is_pinned_is_no_part_of_the_pool() -> None:
    pool = BlockPool(10)
    pinned = pool.allocate(2)
    pool.register(pinned, chain(spec("x", [1], greedy(1)).root, range(32), 16))
    pool.pin(pinned)
    pool.release(pinned)
    pool.allocate(4)
    assert pressure_of(pool, 0.0) == 0.5
    whole = BlockPool(1)
    (block,) = whole.allocate(1)
    assert pressure_of(whole, 0.0) == 1.0
    whole.register([block], chain(spec("x", [1], greedy(1)).root, range(16), 16))
    whole.pin([block])
    whole.release([block])
    assert pressure_of(whole, 5.0) == 0.5, "nothing is left to be had, and nothing of it is held"


def test_a_full_pool_is_pressure_enough_for_every_level() -> None:
    assert all(each.enter <= 1.0 for each in THRESHOLDS.values())


def test_pressure_must_last_and_each_level_has_its_own_time() -> None:
    brownout, enter = Brownout(least_prefill=16), THRESHOLDS[BrownoutLevel.OFFLOAD].enter
    above = THRESHOLDS[BrownoutLevel.SMALL_PREFILL].enter
    seen = [
        brownout.observe(pressure, 100.0 + seconds)
        for pressure, seconds in (
            (enter, 0.0), (enter, 0.25), (0.5, 0.375), (enter, 0.5), (enter, 0.875), (enter, 1.0),
            (0.8, 1.125), (above, 1.25), (above, 1.625), (above, 1.75),
        )
    ]  # fmt: skip
    normal, offload = BrownoutLevel.NORMAL, BrownoutLevel.OFFLOAD
    assert seen == [normal] * 5 + [offload] * 4 + [BrownoutLevel.SMALL_PREFILL]


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_level_is_left_below_its_threshold_and_not_at_it(level: BrownoutLevel) -> None:
    brownout, now_s = at(level)
    leave, below = THRESHOLDS[level].leave, LEVELS[LEVELS.index(level) - 1]
    assert [brownout.observe(leave, now_s + later_s) for later_s in (0.0, 2 * CALM_S)] == [level] * 2
    now_s += 2 * CALM_S
    assert brownout.observe(leave - 0.001, now_s) is level
    assert brownout.observe(leave - 0.001, now_s + CALM_S - 0.125) is level
    assert brownout.observe(leave - 0.001, now_s + CALM_S) is below


def test_prompts_get_a_share_of_a_step_where_prefill_is_small() -> None:
    expected = {10: 10, 16: 16, 40: 16, 64: 16, 68: 17, 400: 100}
    for level in LEVELS:
        brownout, _ = at(level)
        is_small = LEVELS.index(level) >= LEVELS.index(BrownoutLevel.SMALL_PREFILL)
        assert brownout.is_active == (level is not BrownoutLevel.NORMAL)
        assert {most: brownout.most_prefill(most) for most in expected} == (
            expected if is_small else {most: most for most in expected}
        )


def test_idle_blocks_make_room_bit_by_bit_up_to_a_share_of_the_pool() -> None:
    pool = BlockPool(400, 100)
    blocks = pool.allocate(400)
    pool.register(blocks, chain(spec("x", [1], greedy(1)).root, range(800), 2))
    pool.release(blocks)
    Brownout(least_prefill=16).relieve(pool)
    assert pool.num_free == 0
    brownout, _ = at(BrownoutLevel.OFFLOAD)
    free = []
    for _ in range(5):
        brownout.relieve(pool)
        free.append(pool.num_free)
    assert free == [min((number + 1) * OFFLOADS_PER_STEP, 40) for number in range(5)]
    assert pool.host.num_parked == 40


@settings(max_examples=50, deadline=None)
@given(level=st.sampled_from(LEVELS), max_tokens=st.integers(1, 50), asked=st.integers(1, 90), is_new=st.booleans())
def test_only_a_new_long_answer_is_shortened_and_never_silently(
    level: BrownoutLevel, max_tokens: int, asked: int, is_new: bool
) -> None:
    submit = Submit(spec=spec("a", [1], greedy(asked), output=() if is_new else (3,)))
    shortened, notes = shorten(submit, level, max_tokens)
    applies = level is BrownoutLevel.SHORT_ANSWERS and is_new and asked > max_tokens
    assert shortened.spec.sampling.max_tokens == (max_tokens if applies else asked)
    assert bool(notes) == applies
    assert not notes or all(word in notes[0] for word in ("short_answers", str(max_tokens), str(asked)))


def test_a_least_length_is_kept() -> None:
    shortened, (note,) = shorten(Submit(spec=spec("a", [1], greedy(90, min_tokens=9))), LEVELS[-1], 4)
    shortened.spec.sampling.validate()
    assert (shortened.spec.sampling.max_tokens, "is 9 instead of 90" in note) == (9, True)


class Runner:
    """Says 1 for everybody; each step takes a tenth of a second."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.prefills: list[int] = []
        self.num_recaptures = 0

    def rehearse(self) -> None:
        """Nothing is cold."""

    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        self.clock.advance(0.1)
        self.prefills.append(sum(len(grant.tokens) for grant in step.grants if len(grant.tokens) > 1))
        return {grant.request_id: Computed(token=1) for grant in step.grants if grant.draw is not None}


class Mover:
    """Moves nothing: bytes are not looked at here."""

    def move(self, moves: tuple[Move, ...]) -> None:
        assert moves


def test_a_loop_under_pressure_goes_down_the_levels_and_all_the_way_back() -> None:
    limits = Limits(
        max_num_batched_tokens=64, max_num_seqs=8, chunk_size=64, block_size=16, max_model_len=600, vocab_size=100
    )
    clock = ManualClock()
    runner = Runner(clock)
    scheduler = Scheduler(BlockPool(40, 30), limits, policy_of(Role.DECODE))
    loop = EngineLoop(scheduler, runner, clock, Mover(), brownout=Brownout(least_prefill=16))  # type: ignore[arg-type]
    loop.add(Add(spec=spec("idle session", range(80), greedy(1))))
    run_until_idle(loop)
    cached = chain(spec("x", [1], greedy(1)).root, range(80), 16)
    loop.reserve(Reserve(spec=spec("big", [1] * 540, greedy(4))))  # 35 of 40 blocks are promised
    levels, queue = [], [f"queue {number}" for number in range(20)]
    for name in "abcdefgh":
        loop.add(Add(spec=spec(name, [2] * 30, greedy(60))))
    for number in range(40):
        if number == 20:
            for name in queue:
                loop.add(Add(spec=spec(name, [3] * 550, greedy(4))))
        loop.step()
        loop.check()
        levels.append(loop.load().brownout)
        if levels[-1] is BrownoutLevel.OFFLOAD:
            loop.bind(Bind(request_id="big", num_blocks=30))
    assert [level for level, _ in itertools.groupby(levels)] == list(LEVELS)
    assert loop.load().prefill_budget == 16
    tiers = {block.block_hash: block.tier for block in scheduler.pool.cached_chain()}
    assert [tiers[each] for each in cached].count(HOST) >= 4, "the idle session made room, and is not lost"
    for name in ("big", *queue, *"abcdefgh"):
        loop.abort(name)
    back = []
    for _ in range(120):
        clock.advance(0.1)
        loop.step()
        back.append(loop.load().brownout)
    assert [level for level, _ in itertools.groupby(back)] == list(LEVELS[::-1])
    assert loop.load().prefill_budget == 64
    assert_at_rest(loop)


def test_an_idle_loop_in_brownout_wakes_by_itself() -> None:
    limits = Limits(
        max_num_batched_tokens=64, max_num_seqs=8, chunk_size=64, block_size=16, max_model_len=600, vocab_size=100
    )
    clock = ManualClock()
    brownout, now_s = at(BrownoutLevel.OFFLOAD)
    clock.advance(now_s)
    loop = EngineLoop(Scheduler(BlockPool(40), limits, policy_of(Role.DECODE)), Runner(clock), clock, brownout=brownout)
    loop.step()
    assert loop.wait_for_work(), "it would sleep for ever"
    clock.advance(CALM_S)
    done = loop.step()
    assert done is not None
    assert done.load is not None
    assert done.load.brownout is BrownoutLevel.NORMAL
