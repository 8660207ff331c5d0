"""The columns of offers against their definition, option by option; borders by hand.

All times are fractions of ticks that floats hold exactly, so that sums come out the same in any order and a tie is one.
What a relay takes is no such number: it is factored out where that matters.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.policies.arithmetic import RELAY_S, predict
from pagewire.router.policies.offers import EPSILON, SLACK_S, SLACK_SHARE, Offers, broken_by, over
from pagewire.router.policies.view import Demand, PodView
from pagewire.router.prediction import NO_TARGETS, Correction, Factors, Prediction, Targets, Way

TICK = 1 / 1024
NO_RELAY = Correction(local=Factors(relay_s=0.0), remote=Factors(relay_s=0.0))


def pod(name: str, load: Load, *, in_flight: int = 0) -> PodView:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    return PodView(pod_id=name, address="a", role=role, load=load, in_flight=in_flight)


def load(
    *, token: float = 1, ship: float = 1 / 4, step: float = 16, crowd: float = 4, rtt: float = 1, budget: int = 0,
    waiting: int = 0, running: int = 0, free: int | None = None,
) -> Load:  # fmt: skip
    """Return a load by its ticks."""
    return Load(
        prefill_s_per_token=token * TICK, link_s_per_token=ship * TICK, step_s=step * TICK,
        step_s_per_sequence=crowd * TICK, link_rtt_s=rtt * TICK, prefill_budget=budget, waiting_tokens=waiting,
        num_running=running, step_sequences=float(running), blocks_total=0 if free is None else 999,
        blocks_free=free or 0,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- by definition


def soonest_first(demand: Demand, prefill: Sequence[PodView]) -> list[PodView]:
    decode = pod("d", load())
    return sorted(prefill, key=lambda each: predict(demand, decode, each).ttft_s)


def defined(
    demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView], targets: Targets, *, is_local_open: bool
) -> tuple[str, str | None]:
    """Return decode pod and builder by the rule: each pod's best option, then the soonest, then the rest."""
    kept = []
    for pod in decode:
        builders: list[PodView | None] = [*prefill, *([None] if is_local_open else [])]
        options = []
        for rank, builder in enumerate(builders):
            predicted = predict(demand, pod, builder)
            way = Way.LOCAL if builder is None else Way.REMOTE
            options.append((broken_by(targets, demand, pod, way, predicted), predicted.ttft_s, rank, predicted))
        kept.append(min(options, key=lambda each: each[:3]))
    least = min(by for by, *_ in kept)
    soonest_s = min(ttft_s for by, ttft_s, *_ in kept if by <= least + EPSILON)
    bound_s = soonest_s + max(SLACK_S, SLACK_SHARE * soonest_s)
    *_, at = min(
        (predicted.gap_s + max(0.0, demand.answer_tokens - 1) * predicted.tpot_s, ttft_s, at)
        for at, (by, ttft_s, _, predicted) in enumerate(kept)
        if by <= least + EPSILON and ttft_s <= bound_s
    )
    rank = kept[at][2]
    return decode[at].pod_id, prefill[rank].pod_id if rank < len(prefill) else None


def offered(
    demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView], targets: Targets, *, is_local_open: bool
) -> tuple[str, str | None]:
    offers = Offers(demand, decode, targets)
    if prefill:
        offers.build_elsewhere(prefill)
    if is_local_open:
        offers.build_here()
    best = offers.best()
    builder = offers.builders[best]
    return decode[best].pod_id, builder.pod_id if builder else None


def some_load(chance: random.Random) -> Load:
    pick = chance.choice
    return load(
        token=pick([0.5, 1, 1, 2]), ship=pick([1 / 8, 1 / 4, 1 / 2, 1, 2]), step=pick([8, 16, 16, 32]),
        crowd=pick([1, 2, 4]), rtt=pick([1, 4, 16]), budget=pick([0, 16, 32, 64, 128]),
        waiting=pick([0, 0, 8, 16, 64]), running=pick([0, 0, 1, 4]), free=pick([None, None, 99, 10, 17]),
    )  # fmt: skip


def some_factors(chance: random.Random) -> Factors:
    queue_s, prefill_s, gap_s, tpot_s = (chance.choice([0.5, 1.0, 1.0, 2.0]) for _ in range(4))
    return Factors(queue_s=queue_s, prefill_s=prefill_s, relay_s=0.0, gap_s=gap_s, tpot_s=tpot_s)


@pytest.mark.parametrize("num_prefill", range(5))
def test_the_option_that_is_taken_is_the_one_of_the_rule(num_prefill: int) -> None:
    chance = random.Random(num_prefill)
    for _ in range(250):
        alike = some_load(chance) if chance.random() < 0.3 else None
        decode = [pod(f"d{at}", alike or some_load(chance)) for at in range(chance.randrange(1, 5))]
        prefill = [pod(f"p{at}", some_load(chance)) for at in range(num_prefill)]
        tokens = chance.choice([64, 100, 256])
        cached = {each.pod_id: chance.randrange(0, tokens, 16) for each in (*decode, *prefill) if chance.random() < 0.3}
        sources = sorted(cached.items(), key=lambda each: (-each[1], each[0]))[:3]
        demand = Demand(
            num_tokens=tokens, block_size=16, num_sequences=chance.randrange(1, 4), cached=cached,
            sources=tuple(each for each in sources if each[1]), answer_tokens=chance.choice([1.0, 2.0, 8.0, 64.0]),
            block_s=TICK, correction=Correction(local=some_factors(chance), remote=some_factors(chance)),
        )  # fmt: skip
        targets = Targets(
            gap_s=TICK * chance.choice([0, 8, 16, 32, 64, 128]), tpot_s=TICK * chance.choice([0, 0, 8, 16, 32])
        )
        is_local_open = not prefill or chance.random() < 0.5
        prefill = soonest_first(demand, prefill)
        expected = defined(demand, decode, prefill, targets, is_local_open=is_local_open)
        found = offered(demand, decode, prefill, targets, is_local_open=is_local_open)
        assert found == expected, (demand, decode, prefill, targets)


# ----------------------------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("seconds", "target_s", "by"), [(1.0, 0.0, 0.0), (1.0, 2.0, 0.0), (2.0, 2.0, 0.0), (3.0, 2.0, 0.5), (6.0, 2.0, 2.0)]
)
def test_a_target_is_broken_by_the_time_over_it_less_one(seconds: float, target_s: float, by: float) -> None:
    assert over(seconds, target_s) == by


def test_an_option_breaks_targets_by_gap_and_tpot_and_by_how_it_stalls_those_that_run() -> None:
    demand = Demand(num_tokens=100, block_size=16, answer_tokens=8.0)
    predicted = Prediction(queue_s=99.0, prefill_s=16.0, relay_s=99.0, gap_s=3.0, tpot_s=5.0)
    idle, busy = pod("d", load()), pod("d", load(), in_flight=1)
    for targets, here, stalled in (
        (NO_TARGETS, 0.0, 0.0),
        (Targets(ttft_s=1.0), 0.0, 0.0),  # which excludes nothing
        (Targets(gap_s=2.0), 0.5, 0.5),
        (Targets(tpot_s=4.0), 0.25, 0.75),
        (Targets(gap_s=2.0, tpot_s=4.0), 0.75, 1.25),
    ):
        assert broken_by(targets, demand, idle, Way.LOCAL, predicted) == here
        assert broken_by(targets, demand, busy, Way.REMOTE, predicted) == here
        assert broken_by(targets, demand, busy, Way.LOCAL, predicted) == stalled


@pytest.mark.parametrize(
    ("soonest_s", "other_s", "is_as_soon"),
    [
        # two milliseconds of little, and a twentieth of much
        (0.0, 0.002, True),
        (0.0, 0.0021, False),
        (0.02, 0.0219, True),
        (0.02, 0.0221, False),
        (1.0, 1.049, True),
        (1.0, 1.051, False),
    ],
)
def test_who_is_as_soon_as_the_soonest_may_be_chosen_for_its_steps(
    soonest_s: float, other_s: float, is_as_soon: bool
) -> None:
    demand = Demand(num_tokens=1, block_size=16, cached={} if soonest_s else {"d0": 1}, correction=NO_RELAY)
    slow, quick = load(step=32), load(step=16)
    decode = [
        pod("d0", replace(slow, prefill_s_per_token=soonest_s)),
        pod("d1", replace(quick, prefill_s_per_token=other_s)),
    ]
    assert offered(demand, decode, [], NO_TARGETS, is_local_open=True) == ("d1" if is_as_soon else "d0", None)


@pytest.mark.parametrize(
    ("answer_tokens", "ships", "chosen"),
    [
        # d0: a step of 3 ticks and a gap of 6. d1: a step of 2 and a gap of 2 + `ships`.
        (0.5, 3.5, "d1"),
        (0.5, 4.5, "d0"),
        (1.0, 3.5, "d1"),
        (1.0, 4.5, "d0"),
        (2.0, 4.5, "d1"),
        (2.0, 5.5, "d0"),
        (3.0, 5.5, "d1"),
        (3.0, 6.5, "d0"),
    ],
)
def test_among_those_as_soon_the_gap_and_the_tokens_after_it_decide(
    answer_tokens: float, ships: float, chosen: str
) -> None:
    demand = Demand(num_tokens=1, block_size=16, answer_tokens=answer_tokens, correction=NO_RELAY)
    decode = [pod("d0", load(step=2, crowd=1, ship=3)), pod("d1", load(step=1, crowd=1, ship=ships))]
    assert offered(demand, decode, [pod("p0", load())], NO_TARGETS, is_local_open=False) == (chosen, "p0")


def test_where_each_computes_the_prompt_the_gap_is_a_step() -> None:
    demand = Demand(num_tokens=1, block_size=16, correction=NO_RELAY)
    decode = [pod("d0", load(step=16)), pod("d1", load(step=8)), pod("d2", load(step=12))]
    for answer_tokens in (1.0, 8.0):
        asked = replace(demand, answer_tokens=answer_tokens)
        assert offered(asked, decode, [], NO_TARGETS, is_local_open=True) == ("d1", None)


def test_targets_of_gap_and_tpot_weigh_alike() -> None:
    """d0 breaks that of the gap by a quarter, d1 that of TPOT by a half; and the other way round."""
    demand = Demand(num_tokens=16, block_size=16, correction=NO_RELAY)
    targets, builders = Targets(gap_s=16 * TICK, tpot_s=8 * TICK), [pod("p0", load())]
    for gap_ships, step, chosen in ((12 / 16, 8, "d0"), (18 / 16, 8, "d1"), (12 / 16, 5, "d1")):
        decode = [
            pod("d0", load(step=7, crowd=1, ship=gap_ships)),
            pod("d1", load(step=step + 3, crowd=1, ship=1 / 16)),
        ]
        assert offered(demand, decode, builders, targets, is_local_open=False)[0] == chosen


def test_a_later_builder_is_taken_only_where_the_gap_is_too_long_and_becomes_shorter() -> None:
    # 64 tokens, half a tick each to ship; all at once by p0, in chunks of 16 by p1.
    demand = Demand(num_tokens=64, block_size=16, correction=NO_RELAY)
    decode = [pod("d0", load(step=15, crowd=1, ship=1 / 2))]
    prefill = [pod("p0", load()), pod("p1", load(budget=16, waiting=8))]
    for target, builder in ((48, "p0"), (47, "p1"), (24, "p1"), (23, "p1"), (0, "p0")):
        found = offered(demand, decode, prefill, Targets(gap_s=target * TICK), is_local_open=False)
        assert found == ("d0", builder)
    # A step that is allowed to take seconds keeps nobody from it.
    both = Targets(gap_s=47 * TICK, tpot_s=2.0)
    assert offered(demand, decode, prefill, both, is_local_open=False) == ("d0", "p1")
    # The first that keeps the target is taken, and none behind it.
    three = [prefill[0], pod("p1", load(budget=32, waiting=8)), pod("p2", load(budget=16, waiting=16))]
    for target, builder in ((32, "p1"), (31, "p2")):
        found = offered(demand, decode, three, Targets(gap_s=target * TICK), is_local_open=False)
        assert found == ("d0", builder)
    alike = [prefill[0], pod("p1", load(waiting=8))]
    assert offered(demand, decode, alike, Targets(gap_s=TICK), is_local_open=False) == ("d0", "p0")
    # One that computes more slowly hides more, though its chunks are larger.
    far = [pod("d0", load(step=15, crowd=1, ship=2))]
    slower = [pod("p0", load(budget=16)), pod("p1", load(token=1.5, budget=24))]
    assert offered(demand, far, slower, Targets(gap_s=TICK), is_local_open=False) == ("d0", "p1")


def test_a_pod_whose_gap_is_shortened_stands_beside_one_that_breaks_the_other_target_as_much() -> None:
    demand = Demand(num_tokens=64, block_size=16)
    decode = [pod("d0", load(step=15, crowd=1, rtt=100)), pod("d1", load(step=15, crowd=1, ship=1 / 2))]
    prefill = [pod("p0", load()), pod("p1", load(budget=16, waiting=1))]
    targets = Targets(gap_s=32 * TICK, tpot_s=8 * TICK)
    assert offered(demand, decode, prefill, targets, is_local_open=False) == ("d1", "p1")


@pytest.mark.parametrize(("here", "there", "is_local"), [(30, 0, True), (32, 0, False), (32, 1, True), (34, 1, False)])
def test_what_a_relay_takes_is_part_of_both_ways(here: float, there: float, is_local: bool) -> None:
    """The prompt takes 64 ticks on either pod, and the prefill pod has 32 (31.25 ms) before it."""
    assert pytest.approx(0.001) == RELAY_S
    decode, prefill = pod("d0", load()), pod("p0", load(waiting=32))
    correction = Correction(local=Factors(relay_s=here), remote=Factors(relay_s=there))
    demand = Demand(num_tokens=64, block_size=16, correction=correction)
    found = offered(demand, [decode], [prefill], NO_TARGETS, is_local_open=True)
    assert found == ("d0", None if is_local else "p0")
    ttfts = [predict(demand, decode, builder).ttft_s for builder in (None, prefill)]
    assert (ttfts[0] < ttfts[1]) is is_local


def test_of_two_ways_that_are_as_soon_the_prompt_goes_to_the_builder() -> None:
    demand = Demand(num_tokens=64, block_size=16, correction=NO_RELAY)
    for here, expected in ((64, "p0"), (63, None)):
        decode = [pod("d0", load(token=here / 64))]
        assert offered(demand, decode, [pod("p0", load())], NO_TARGETS, is_local_open=True) == ("d0", expected)


def test_a_target_of_one_kind_alone_keeps_a_prompt_from_where_it_breaks_that() -> None:
    """Computed here it stalls who runs by half a tick a token; built elsewhere its gap is longer."""
    demand = Demand(num_tokens=64, block_size=16, answer_tokens=128.0, correction=NO_RELAY)
    decode = [pod("d0", load(step=8, crowd=1), in_flight=1)]
    prefill = [pod("p0", load(waiting=8))]
    tpot = 8 + 1 + 1
    for targets, expected in (
        (NO_TARGETS, None),
        (Targets(tpot_s=tpot * TICK), "p0"),
        (Targets(tpot_s=(tpot + 0.5) * TICK), None),
        (Targets(gap_s=tpot * TICK), None),
    ):
        assert offered(demand, decode, prefill, targets, is_local_open=True) == ("d0", expected)
    sooner = [pod("p0", load(token=1 / 2))]
    assert offered(demand, decode, sooner, NO_TARGETS, is_local_open=True) == ("d0", "p0")
    assert offered(demand, decode, sooner, Targets(gap_s=tpot * TICK), is_local_open=True) == ("d0", None)
