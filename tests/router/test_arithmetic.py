"""The predicted parts of a placement against sums made by hand, in fractions of two that floats hold exactly."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.policies.arithmetic import (
    RELAY_S,
    build_s,
    build_times,
    exposed_s,
    places_of,
    predict,
    room_s,
)
from pagewire.router.policies.view import SHIP_SHARE, Demand, PodView
from pagewire.router.prediction import Correction, Factors, Prediction

TICK = 1 / 1024
# A token is computed in a tick and copied in a quarter of one, after an exchange of 16.
LOAD = Load(
    prefill_s_per_token=TICK, link_s_per_token=TICK / 4, link_rtt_s=16 * TICK, step_s=64 * TICK, step_sequences=2.0,
    step_s_per_sequence=4 * TICK, prefill_budget=128,
)  # fmt: skip


def pod(name: str, load: Load = LOAD, *, in_flight: int = 0, pending: int = 0) -> PodView:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    return PodView(pod_id=name, address=name, role=role, load=load, in_flight=in_flight, pending_tokens=pending)


def test_a_relay_takes_moments() -> None:
    assert 0 < RELAY_S < 0.01


def test_a_local_prompt_waits_for_room_and_the_queue_and_is_computed_where_it_decodes() -> None:
    full = replace(LOAD, blocks_total=99, blocks_free=10)
    decode = pod("d", full, in_flight=3, pending=32)
    demand = Demand(
        num_tokens=256, block_size=16, num_sequences=2, cached={"d": 64}, block_s=8 * TICK,
        correction=Correction(local=Factors(queue_s=2.0, prefill_s=4.0, relay_s=8.0, gap_s=0.5, tpot_s=16.0)),
    )  # fmt: skip
    # (256 - 64) / 16 + 2 = 14 blocks, 4 more than it has; 3 run and 2 join, measured with 2.
    tpot_s = (64 + 4 * (3 - 2) + 4 * 2) * TICK
    assert predict(demand, decode, None) == Prediction(
        queue_s=2 * (4 * 8 + 32) * TICK, prefill_s=4 * 192 * TICK, relay_s=8 * RELAY_S, gap_s=0.5 * tpot_s,
        tpot_s=16 * tpot_s,
    )  # fmt: skip


def test_a_remote_prompt_waits_at_its_builder_and_its_transfer_is_in_the_gap() -> None:
    decode = pod("d", replace(LOAD, blocks_total=99, blocks_free=12), in_flight=3, pending=999)
    prefill = pod("p", replace(LOAD, link_s_per_token=2 * TICK), pending=32)  # how it fetches is nothing to `decode`
    demand = Demand(
        num_tokens=256, block_size=16, num_sequences=2, cached={"d": 64, "p": 128}, block_s=8 * TICK,
        correction=Correction(remote=Factors(queue_s=2.0, prefill_s=4.0, relay_s=8.0, gap_s=0.5, tpot_s=16.0)),
    )  # fmt: skip
    tpot_s = (64 + 4 * (3 - 2) + 4 * 2) * TICK
    exposed = 128 / 4 * TICK  # the last chunk's; the others are hidden by 128 ticks of computing
    assert predict(demand, decode, prefill) == Prediction(
        queue_s=2 * (2 * 8 + 32) * TICK, prefill_s=4 * 128 * TICK, relay_s=8 * (RELAY_S + 16 * TICK),
        gap_s=0.5 * (exposed + 32 * TICK + tpot_s), tpot_s=16 * tpot_s,
    )  # fmt: skip
    alone = pod("d")  # nobody's step has to end first
    assert predict(replace(demand, correction=Correction()), alone, prefill).gap_s == exposed + (64 - 8 + 8) * TICK


@pytest.mark.parametrize(
    ("held", "sources", "seconds"),
    [
        (0, (), 256),
        (96, (), 160),
        (96, (("other", 96),), 160),  # no more than is here
        (96, (("other", 64),), 160),
        (0, (("other", 128),), 16 + 32 + 128),
        (64, (("other", 192),), 16 + 32 + 64),
        (64, (("other", 80),), 192),  # 16 more are not worth an exchange
        (64, (("other", 80), ("third", 128)), 16 + 16 + 128),  # the longest is not the one that pays
        (64, (("third", 128), ("other", 80)), 16 + 16 + 128),
        (0, (("d", 192),), 256),  # nobody fetches from itself
        (0, (("d", 192), ("other", 128)), 16 + 32 + 128),
    ],
)
def test_a_prompt_is_built_from_what_is_here_or_fetched_whichever_is_sooner(
    held: int, sources: tuple[tuple[str, int], ...], seconds: int
) -> None:
    demand = Demand(num_tokens=256, block_size=16, cached={"d": held} if held else {}, sources=sources)
    assert build_s(demand, pod("d")) == seconds * TICK


def test_tokens_in_host_memory_cost_a_share_of_their_computing() -> None:
    demand = Demand(num_tokens=256, block_size=16, cached={"d": 96}, on_host={"d": 32})
    assert build_s(demand, pod("d")) == (256 - 96 + 32 * SHIP_SHARE) * TICK
    assert build_s(demand, pod("e")) == 256 * TICK


def test_who_holds_no_more_is_no_source_however_slow_links_and_host_memory_are() -> None:
    slow = replace(LOAD, link_s_per_token=2 * TICK)
    held = Demand(num_tokens=256, block_size=16, cached={"d": 96}, sources=(("other", 64),))
    assert build_s(held, pod("d", slow)) == 160 * TICK
    on_host = Demand(num_tokens=256, block_size=16, cached={"d": 240}, on_host={"d": 240}, sources=(("other", 240),))
    assert build_s(on_host, pod("d")) == (16 + 240 * SHIP_SHARE) * TICK  # an exchange would be 16


@pytest.mark.parametrize("held", [0, 16, 21, 22, 128, 256])
def test_many_pods_build_as_long_as_each_alone(held: int) -> None:
    """21 1/3 tokens are those from which on a fetch pays: 16 ticks for the exchange, 3/4 saved of each token."""
    pods = [pod(f"d{at}", replace(LOAD, prefill_s_per_token=TICK * (1 + at % 2))) for at in range(6)]
    sources = (("d1", held), ("d3", held // 2)) if held else ()
    demand = Demand(num_tokens=256, block_size=16, cached=dict(sources), sources=sources)
    assert build_times(demand, pods) == [build_s(demand, each) for each in pods]
    assert build_times(demand, []) == []


@pytest.mark.parametrize("count", [1, 19, 20, 21, 39, 40, 41, 100])
@pytest.mark.parametrize("names", [[], ["d000"], ["d018", "c", "e"], ["d005", "d0050", "d099"]])
def test_pods_are_found_by_their_names_among_few_and_many(count: int, names: list[str]) -> None:
    pods = [pod(f"d{at:03}") for at in range(count)]
    assert sorted(places_of(pods, names)) == sorted(int(name[1:]) for name in names if name in {p.pod_id for p in pods})


@pytest.mark.parametrize(
    ("tokens", "cached", "budget", "built", "exposed"),
    [
        (256, 0, 64, 999, 16),  # the last chunk's 64 tokens
        (256, 0, 64, 48, 16),  # all that is shipped takes 64 ticks, and 48 of them are hidden
        (256, 0, 64, 47, 17),
        (256, 0, 64, 0, 64),
        (256, 0, 0, 999, 64),  # a prompt that is computed at once hides nothing
        (256, 128, 64, 999, 16),
        (256, 128, 64, 8, 24),
        (256, 208, 64, 999, 12),  # less than a chunk is missing
        (256, 256, 64, 0, 0),
    ],
)
def test_what_of_a_transfer_is_exposed(tokens: int, cached: int, budget: int, built: int, exposed: int) -> None:
    demand = Demand(num_tokens=tokens, block_size=16, cached={"d": cached} if cached else {})
    builder = pod("p", replace(LOAD, prefill_budget=budget))
    assert exposed_s(demand, pod("d"), builder, built * TICK) == exposed * TICK


@pytest.mark.parametrize(("free", "missing"), [(0, 6), (5, 1), (6, 0), (7, 0), (60, 0)])
def test_room_takes_as_long_as_the_missing_blocks(free: int, missing: int) -> None:
    demand = Demand(num_tokens=80, block_size=16, block_s=3 * TICK)
    assert room_s(demand, pod("d", Load(blocks_total=99, blocks_free=free))) == missing * 3 * TICK
    assert room_s(demand, pod("d", Load())) == 0.0
    assert math.isfinite(room_s(demand, pod("d", Load())))
