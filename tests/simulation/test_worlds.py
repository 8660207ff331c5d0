"""Worlds as wholes: a seed plays the same wherever and after whatever it is played, and a failing one is made small."""

from __future__ import annotations

from dataclasses import replace

from simulated.model import BLOCK
from simulated.plan import FaultPlan, Plan, RequestPlan, draw_plan
from simulated.runner import apart, kinds, outcomes, play
from simulated.saboteurs import tenants_share_a_cache
from simulated.shrink import shrink


def digests(seeds: list[int]) -> dict[int, str]:
    return {outcome.seed: outcome.digest for outcome in outcomes(seeds, processes=2)}


def test_a_seed_plays_the_same_after_others_and_in_another_process() -> None:
    seeds = list(range(60, 84))
    assert digests(seeds) == digests(seeds[::-1])


def test_seeds_differ() -> None:
    assert len(set(digests(list(range(5))).values())) == 5


def rules_broken(plan: Plan) -> set[str]:
    return {violation.rule for violation in play(plan).violations}


def smallest(plan: Plan) -> Plan:
    with tenants_share_a_cache():
        rules = rules_broken(plan)
        return shrink(plan, lambda smaller: bool(rules & rules_broken(smaller)))


def test_what_breaks_a_rule_is_made_as_small_as_it_goes() -> None:
    first = RequestPlan(name="r0", at_s=0.0, family=0, num_shared=3 * BLOCK, num_own=5, max_tokens=8)
    others = [replace(first, name=f"r{number}", at_s=0.3 * number, salt="other") for number in range(1, 6)]
    fault = FaultPlan(kind="redis_loses", at_s=0.1, lasts_s=1.0, target=0, other=0, share=1.0)
    plan = replace(draw_plan(2, kinds()), requests=(first, *others), faults=(fault,) * 3, clock_rates=(1.0, 1.01))
    small = apart(smallest, plan)
    assert (small.faults, small.num_decode, small.num_routers, small.clock_rates) == ((), 1, 1, (1.0,))
    assert sorted(request.salt for request in small.requests) == ["", "other"]


def requests_without_faults(plan: Plan) -> list[str]:
    played = play(replace(plan, faults=(), requests=tuple(replace(each, leaves_s=None) for each in plan.requests)))
    assert played.violations == []
    return [event.what["placement"] for event in played.history.of("finished")]


def test_without_faults_everything_is_answered_by_both_kinds_of_pods() -> None:
    placements: list[str] = []
    for seed in range(32, 44):
        plan = draw_plan(seed, kinds())
        placements += apart(requests_without_faults, plan)
    assert {"remote", "local"} <= set(placements)
