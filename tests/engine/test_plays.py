"""Requests of all kinds at once, in every order that chance has: what each is told is what it would be told alone.

On a device that computes as late as it may, on a memory of tokens in the place of KV (`engine_play.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from engine_play import Play, Scene

from pagewire.engine.scheduling_policy import PolicyName

SCENES = {
    "room": Scene(is_mixed=True),
    "short": Scene(is_mixed=True, num_blocks=17),
    "swapping": Scene(is_mixed=True, num_blocks=17, host_slots=20),
    "little-host": Scene(is_mixed=True, num_blocks=17, host_slots=3),
    "swapping-failing": Scene(is_mixed=True, num_blocks=17, host_slots=12, fails=0.2),
    "spilling": Scene(is_mixed=True, num_blocks=8, host_slots=40, spills=True),
    "window": Scene(is_mixed=True, num_blocks=17, window=7),
    "roles": Scene(is_mixed=True, num_blocks=20, host_slots=10, roles=True, fails=0.2),
    "brownout": Scene(is_mixed=True, num_blocks=17, host_slots=60, brownout=True),
    "drafted": Scene(is_mixed=True, num_blocks=17, host_slots=12, most_drafted=9),
    "few-places": Scene(is_mixed=True, num_blocks=17, places=3),
    "tight": Scene(is_mixed=True, num_blocks=10, host_slots=40, launches=False),
}


@pytest.mark.parametrize("policy", PolicyName)
@pytest.mark.parametrize("name", SCENES)
def test_everybody_is_told_what_it_would_be_told_alone(name: str, policy: PolicyName) -> None:
    whole: Counter[str] = Counter()
    preempted = 0
    for seed in range(10):
        play = Play(seed, replace(SCENES[name], policy=policy))
        play.run()
        play.check()
        whole += play.whole
        preempted += play.scheduler.num_preemptions
    assert min(whole[kind] for kind in ("plain", "searched", "scored", "gone on")) > 1, whole
    assert preempted > 0
