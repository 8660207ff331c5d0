"""Policies by their names: those built in, and those that other distributions bring by an entry point.

    [project.entry-points."pagewire.policies"]
    mine = "my_package.my_module:make"

`make(config)` is called once for each model, with the router's settings, and returns a `Policy`. A built-in name cannot
be taken. Loads code that the operator installed and named; nothing that came over a wire has a part in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from pagewire.router.config import RouterConfig
from pagewire.router.policies.least_loaded import LeastLoaded
from pagewire.router.policies.placement import Policy
from pagewire.router.policies.prefix_affinity import PrefixAffinity
from pagewire.router.policies.round_robin import RoundRobin
from pagewire.router.policies.slo import Slo
from pagewire.router.policies.two_choices import TwoChoices
from pagewire.router.prediction import Targets

GROUP = "pagewire.policies"
BUILT_IN: Mapping[str, Callable[[RouterConfig], Policy]] = {
    "prefix_affinity": lambda config: PrefixAffinity(threshold=config.balance_threshold, ratio=config.balance_ratio),
    "slo": lambda config: Slo(targets_of(config)),
    "least_loaded": lambda _: LeastLoaded(),
    "two_choices": lambda config: TwoChoices(random.Random(config.policy_seed).randrange),
    "round_robin": lambda _: RoundRobin(),
}


def targets_of(config: RouterConfig) -> Targets:
    """Return what requests are promised."""
    return Targets(ttft_s=config.slo_ttft_s, gap_s=config.slo_gap_s, tpot_s=config.slo_tpot_s)


def policy_named(config: RouterConfig) -> Policy:
    """Return the policy that `config` names; raises ValueError where nobody knows it or it cannot be made."""
    name = config.policy
    if name in BUILT_IN:
        return BUILT_IN[name](config)
    found = entry_points(group=GROUP)
    if name not in found.names:
        known = ", ".join([*BUILT_IN, *sorted(found.names)])
        raise ValueError(f"policy {name!r} is not known; known are {known}")
    try:
        make = found[name].load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"policy {name!r} ({found[name].value}) cannot be loaded: {error}") from error
    policy: Policy = make(config)
    if not callable(getattr(policy, "place", None)):
        raise ValueError(f"policy {name!r} ({found[name].value}) made a {type(policy).__name__}, which places nothing")
    return policy
