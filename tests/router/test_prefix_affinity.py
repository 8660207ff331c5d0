"""The costs by which prefix affinity ranks pods, and its limits: read from the reasons that it gives, and from what
it takes at a border."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.config import RouterConfig
from pagewire.router.policies.named import policy_named
from pagewire.router.policies.prefix_affinity import PrefixAffinity
from pagewire.router.policies.view import Demand, PodView

LOAD = Load(prefill_s_per_token=1 / 16, step_s=1 / 4)
DEMAND = Demand(num_tokens=100, block_size=16, explain=True)


def pod(name: str, load: Load = LOAD, *, in_flight: int = 0, pending: int = 0) -> PodView:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    return PodView(pod_id=name, address="a", role=role, load=load, in_flight=in_flight, pending_tokens=pending)


def reasons(
    demand: Demand, decode: Sequence[PodView], prefill: Sequence[PodView] = (), policy: PrefixAffinity | None = None
) -> dict[tuple[str, str], str]:
    """Return why each option was not taken, by its decode pod and its prefill pod; "" for the one that was."""
    placed = (policy or PrefixAffinity()).place(demand, decode, prefill)
    return {(option.decode, option.prefill): option.reason for option in placed.options}


def test_a_decode_pod_that_builds_costs_its_steps_its_queue_and_what_is_not_cached() -> None:
    decode = [
        pod("d0", in_flight=1),
        pod("d1", in_flight=3, pending=32),
        pod("d2", in_flight=2),
        pod("d3", in_flight=4),
    ]
    demand = replace(DEMAND, cached={"d2": 40, "d3": 40, "p0": 80}, on_host={"d3": 20})
    assert reasons(demand, decode) == {
        ("d2", ""): "",  # 0.5 s + 60 tokens
        ("d3", ""): "its cost is 4.8750 s, the chosen one's 4.2500 s",  # 1 s + 60 tokens + a tenth of 20
        ("d0", ""): "its cost is 6.5000 s, the chosen one's 4.2500 s",
        ("d1", ""): "its cost is 9.0000 s, the chosen one's 4.2500 s",  # 0.75 s + a queue of 2 s + 100 tokens
    }


def test_a_decode_pod_behind_a_builder_costs_its_steps_and_the_transfer_of_what_it_does_not_hold() -> None:
    decode = [pod("d0", in_flight=1), pod("d1", in_flight=3, pending=99), pod("d2", in_flight=2), pod("d3")]
    prefill = [pod("p0", pending=16), pod("p1"), pod("p2"), pod("p3", in_flight=9)]
    demand = replace(DEMAND, cached={"d2": 80, "d0": 40, "p1": 40, "p2": 40}, on_host={"d0": 40, "p1": 20})
    away = "prompts go to prefill pods, or the decode pod compares"
    assert reasons(demand, decode, prefill) == {
        ("d2", "p2"): "its cost is 0.6250 s, the chosen one's 0.6250 s",  # 0.5 s + a tenth of 20 tokens
        ("d0", "p2"): "its cost is 0.8750 s, the chosen one's 0.6250 s",  # 0.25 s + a tenth of 60 + a tenth of 40
        ("d1", "p2"): "its cost is 1.3750 s, the chosen one's 0.6250 s",  # its own queue is nobody's here
        ("d3", "p2"): "",
        ("d3", "p1"): "its cost is 3.8750 s, the chosen one's 3.7500 s",  # 60 tokens + a tenth of 20
        ("d3", "p3"): "its cost is 6.2500 s, the chosen one's 3.7500 s",  # requests there do not matter
        ("d3", "p0"): "its cost is 7.2500 s, the chosen one's 3.7500 s",
        ("d3", ""): away,
    }


def test_reasons_of_pods_that_are_out() -> None:
    full = replace(LOAD, blocks_total=99, blocks_free=7)  # needs 8
    decode = [pod("d0", full), pod("d1", in_flight=1), pod("d2", in_flight=18), pod("d3", full, in_flight=18)]
    prefill = [pod("p0"), pod("p1", in_flight=17)]
    room, crowd = "it has no room now", "it has too many requests beside the least loaded one"
    for builders, builder in (((), ""), (prefill, "p0")):
        found = reasons(DEMAND, decode, builders)
        assert found["d1", builder] == ""
        assert [found[name, builder] for name in ("d0", "d2", "d3")] == [room, crowd, room]
    assert reasons(DEMAND, decode, prefill)["d1", "p1"] == crowd
    # Where none has room, the least cost is taken all the same.
    assert reasons(DEMAND, [pod("d0", full, in_flight=1), pod("d1", full)]).keys() == {("d0", ""), ("d1", "")}
    assert PrefixAffinity().place(DEMAND, [pod("d0", full, in_flight=1), pod("d1", full)], []).decode == "d1"
    # What is out as much as the chosen one differs from it in its cost alone.
    assert reasons(DEMAND, [pod("d0", full), pod("d1", full, in_flight=1)])["d1", ""].startswith("its cost is")
    found = reasons(DEMAND, [pod("d0", full), pod("d1", in_flight=17), pod("d2", in_flight=18)])
    assert found["d1", ""] == ""
    assert found["d2", ""].startswith("its cost is")
    assert found["d0", ""] == room


@pytest.mark.parametrize(
    ("threshold", "ratio", "least", "most"),
    [(16, 1.5, 0, 16), (16, 1.5, 32, 48), (16, 1.5, 33, 49), (16, 1.5, 40, 60), (0, 1.0, 5, 5), (3, 1.0, 5, 8),
     (0, 2.0, 5, 10)],
)  # fmt: skip
def test_a_pod_may_have_so_many_requests_beside_the_least_loaded_one(
    threshold: int, ratio: float, least: int, most: int
) -> None:
    policy = PrefixAffinity(threshold=threshold, ratio=ratio)
    demand = Demand(num_tokens=9999, block_size=16, cached={"d0": 9984, "p0": 9984})
    for busy, is_taken in ((most, True), (most + 1, False)):
        decode = [pod("d0", in_flight=busy), pod("d1", in_flight=least)]
        prefill = [pod("p0", in_flight=busy), pod("p1", in_flight=least)]
        assert policy.place(demand, decode, []).decode == ("d0" if is_taken else "d1")
        assert policy.place(demand, [pod("d")], prefill).candidates[0].pod_id == ("p0" if is_taken else "p1")


@pytest.mark.parametrize("limits", [{"threshold": -1}, {"ratio": 0.99}])
def test_limits_that_no_pod_could_keep_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="make no sense"):
        PrefixAffinity(**limits)  # type: ignore[arg-type]


def test_it_has_the_limits_of_the_settings_where_it_is_given_none() -> None:
    chance, named = random.Random(1), policy_named(RouterConfig(model=("m",), cluster_secret="s"))
    assert isinstance(named, PrefixAffinity)
    demand = Demand(num_tokens=9999, block_size=16, cached={"d0": 9984})
    for _ in range(200):
        least = chance.randrange(60)
        decode = [pod("d0", in_flight=least + chance.randrange(14, 34)), pod("d1", in_flight=least)]
        assert PrefixAffinity().place(demand, decode, []) == named.place(demand, decode, [])
