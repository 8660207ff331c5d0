"""Worlds as wholes: a seed plays the same wherever and after whatever it is played, and a failing one is made small."""

from __future__ import annotations

from dataclasses import replace

from simulated.plan import Plan, draw_plan
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
    plan = draw_plan(2, kinds())
    assert len(plan.requests) > 2
    small = apart(smallest, plan)
    assert (small.faults, small.num_decode, small.num_routers, small.clock_rates) == ((), 1, 1, (1.0,))
    assert sorted(request.salt for request in small.requests) == ["", "other"]
    assert {(request.max_tokens, request.n) for request in small.requests} == {(1, 1)}


def requests_without_faults(plan: Plan) -> list[str]:
    played = play(replace(plan, faults=(), requests=tuple(replace(each, leaves_s=None) for each in plan.requests)))
    assert played.violations == []
    return [event.what["placement"] for event in played.history.of("finished")]


def test_without_faults_everything_is_answered_by_both_kinds_of_pods() -> None:
    placements: list[str] = []
    for seed in range(12):
        plan = draw_plan(seed, kinds())
        placements += apart(requests_without_faults, plan)
    assert {"remote", "local"} <= set(placements)
