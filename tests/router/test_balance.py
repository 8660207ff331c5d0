"""What several policies do alike: who has no room comes last, who is first, and who stands behind."""

from __future__ import annotations

import pytest

from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.policies.balance import FULL_S, costs_with_room, first, in_order
from pagewire.router.policies.view import Demand, PodView


def pod(name: str, *, in_flight: int = 0, free: int | None = None) -> PodView:
    load = Load() if free is None else Load(blocks_total=99, blocks_free=free)
    return PodView(pod_id=name, address="a", role=Role.DECODE, load=load, in_flight=in_flight)


def test_a_pod_without_room_costs_more_than_any_other_and_what_it_holds_counts_as_room() -> None:
    demand = Demand(num_tokens=64, block_size=16, num_sequences=2, cached={"d3": 32, "d4": 16})
    # Six blocks are needed, of the pods that hold something four and five.
    pods = [pod("d0", free=6), pod("d1", free=5), pod("d2"), pod("d3", free=4), pod("d4", free=4), pod("d5", free=7)]
    costs = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert costs_with_room(demand, pods, costs) == [1.0, 2.0 + FULL_S, 3.0, 4.0, 5.0 + FULL_S, 6.0]


def test_of_equal_costs_the_pod_with_the_fewest_requests_is_first_and_then_the_one_of_the_least_id() -> None:
    pods = [pod("d2", in_flight=2), pod("d1", in_flight=1), pod("d0", in_flight=1), pod("d3")]
    assert first(pods, [1.0, 2.0, 2.0, 2.0]).pod_id == "d2"
    assert first(pods, [2.0, 1.0, 1.0, 2.0]).pod_id == "d0"
    assert first(pods, [2.0, 1.0, 2.0, 1.0]).pod_id == "d3"
    assert first(pods, [1.0, 1.0, 2.0, 2.0]).pod_id == "d1"


@pytest.mark.parametrize(
    ("costs", "count", "names"),
    [
        ([3.0, 1.0, 2.0, 4.0], 3, ["d1", "d0", "d2"]),
        ([3.0, 1.0, 2.0, 4.0], 1, ["d1"]),
        ([3.0, 1.0, 2.0, 4.0], 4, ["d1", "d0", "d2", "d3"]),
        ([3.0, 1.0, 2.0, 4.0], 9, ["d1", "d0", "d2", "d3"]),
        ([1.0, 1.0, 1.0, 1.0], 2, ["d0", "d1"]),  # ties by id, whatever their order
        ([2.0, 1.0, 1.0, 2.0], 3, ["d0", "d1", "d2"]),
    ],
)
def test_the_cheapest_come_in_the_order_of_their_costs(costs: list[float], count: int, names: list[str]) -> None:
    pods = [pod("d2", in_flight=1), pod("d1", in_flight=9), pod("d0"), pod("d3")]
    assert [each.pod_id for each in in_order(pods, costs, count)] == names
    assert in_order([], [], count) == []
