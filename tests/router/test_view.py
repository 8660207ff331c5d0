"""What follows from a pod's load, and what a demand needs of it, in numbers reckoned by hand (fractions of two)."""

from __future__ import annotations

import math

import pytest

from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.calibration import Calibration
from pagewire.router.policies.view import CROWD_SHARE, PRIORS, SHIP_SHARE, Demand, PodView, Priors

MEASURED = Load(
    num_running=3, num_waiting=2, waiting_tokens=100, blocks_total=64, blocks_free=10, blocks_cached=20,
    blocks_reserved=5, prefill_s_per_token=1 / 1024, step_s=1 / 64, step_sequences=4.0, step_s_per_sequence=1 / 512,
    link_rtt_s=1 / 256, link_s_per_token=1 / 4096,
)  # fmt: skip


def view(load: Load, *, in_flight: int = 0, pending: int = 0, priors: Priors = PRIORS) -> PodView:
    return PodView(
        pod_id="d", address="a", role=Role.DECODE, load=load, in_flight=in_flight, pending_tokens=pending, priors=priors
    )


def test_what_a_pod_measured_is_taken() -> None:
    pod = view(MEASURED)
    assert (pod.busy, pod.token_s, pod.queue_s) == (5, 1 / 1024, 100 / 1024)
    assert (pod.step_s, pod.crowd_s, pod.boarding_s) == (1 / 64, 1 / 512, 1 / 128)
    assert pod.tpot_s == 1 / 64 + (5 - 4) / 512
    assert pod.spare_blocks == 10 + 20 - 5
    assert (pod.rtt_s, pod.ship_s, pod.spared_s) == (1 / 256, 1 / 4096, 1 / 1024 - 1 / 4096)


def test_the_larger_of_its_own_word_and_this_routers_counts_is_believed() -> None:
    assert view(MEASURED, in_flight=4).busy == 5
    assert view(MEASURED, in_flight=7).busy == 7
    assert view(MEASURED, pending=60).queue_s == 100 / 1024
    assert view(MEASURED, pending=300).queue_s == 300 / 1024


def test_what_it_did_not_measure_is_taken_from_the_priors() -> None:
    pod = view(Load(), in_flight=2, pending=3, priors=Priors(token_s=1 / 32, step_s=1 / 8, rtt_s=1 / 4))
    assert (pod.token_s, pod.queue_s, pod.step_s, pod.rtt_s) == (1 / 32, 3 / 32, 1 / 8, 1 / 4)
    assert pod.crowd_s == CROWD_SHARE / 8
    assert pod.ship_s == SHIP_SHARE / 32
    assert pod.spared_s == 1 / 32 - SHIP_SHARE / 32
    assert pod.spare_blocks == math.inf
    idle = view(Load())
    assert (idle.busy, idle.queue_s, idle.boarding_s) == (0, 0.0, 0.0)


def test_the_priors_are_of_the_order_of_a_pods() -> None:
    """A prompt of a thousand tokens in less than a second, some tens of tokens a second, an exchange within a step."""
    assert 0 < 1000 * PRIORS.token_s < 1
    assert 0 < PRIORS.rtt_s < PRIORS.step_s < 0.1
    assert 0 < SHIP_SHARE < 1
    assert 0 < CROWD_SHARE < 1


@pytest.mark.parametrize(
    ("in_flight", "measured_with", "tpot"),
    [
        (4, 4.0, 16),
        (8, 4.0, 24),
        (2, 4.0, 12),
        (0, 6.0, 4),  # 16 - 6 x 2, just a quarter of the step
        (0, 5.5, 5),
        (0, 7.0, 4),  # never less
        (0, 40.0, 4),
    ],
)
def test_a_step_grows_and_shrinks_with_who_is_there_but_not_to_nothing(
    in_flight: int, measured_with: float, tpot: int
) -> None:
    load = Load(step_s=16 / 1024, step_s_per_sequence=2 / 1024, step_sequences=measured_with)
    assert view(load, in_flight=in_flight).tpot_s == tpot / 1024


def test_a_pool_that_is_full_has_no_blocks_to_spare_and_one_that_promised_too_much_fewer() -> None:
    assert view(Load(blocks_total=1)).spare_blocks == 0
    assert view(Load(blocks_total=8, blocks_free=1, blocks_reserved=3)).spare_blocks == -2


@pytest.mark.parametrize(
    ("tokens", "cached", "sequences", "blocks"),
    [(1, 0, 1, 2), (16, 0, 1, 2), (17, 0, 1, 3), (17, 1, 1, 2), (64, 32, 1, 3), (64, 64, 1, 1),
     (16, 64, 2, 2), (33, 0, 4, 7)],
)  # fmt: skip
def test_a_prompt_needs_the_blocks_that_are_not_cached_and_one_for_each_sequence(
    tokens: int, cached: int, sequences: int, blocks: int
) -> None:
    demand = Demand(num_tokens=tokens, block_size=16, num_sequences=sequences, cached={"d": cached, "other": 16})
    assert demand.blocks_on(view(Load())) == blocks
    for spare, fits in ((blocks - 1, False), (blocks, True), (blocks + 1, True)):
        assert demand.fits(view(Load(blocks_total=99, blocks_free=spare))) is fits
    assert demand.fits(view(Load()))  # whose pool nobody knows


def test_a_plain_demand_is_of_one_answer_on_a_prompt_that_nobody_holds() -> None:
    demand = Demand(num_tokens=32, block_size=16)
    assert demand.blocks_on(view(Load())) == 3
    assert Demand(num_tokens=33, block_size=16).blocks_on(view(Load())) == 4
    assert (demand.may_be_local, demand.explain, demand.sources) == (False, False, ())
    assert demand.answer_tokens == Calibration().answer_tokens  # as long as answers are until there were some
    pod = PodView(pod_id="d", address="a", role=Role.DECODE, load=Load())
    assert (pod.in_flight, pod.pending_tokens, pod.key) == (0, 0, "")
