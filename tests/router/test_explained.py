"""What stands beside a choice: which options, in which order, with what is told of each."""

from __future__ import annotations

import pytest

from pagewire.core.load import Load
from pagewire.core.messages import Candidate, Role
from pagewire.router.policies.arithmetic import predict
from pagewire.router.policies.explained import MAX_OPTIONS, explained, option
from pagewire.router.policies.placement import Option, Placement, placement
from pagewire.router.policies.view import Demand, PodView
from pagewire.router.prediction import UNPREDICTED, Way

DEMAND = Demand(num_tokens=100, block_size=16, cached={"d0": 16, "d1": 32, "p1": 64}, explain=True)


def pod(name: str, *, pending: int = 0, in_flight: int = 0, role: Role | None = None) -> PodView:
    role = role or (Role.PREFILL if name.startswith("p") else Role.DECODE)
    return PodView(
        pod_id=name, address=f"{name}:1", role=role, load=Load(), in_flight=in_flight, pending_tokens=pending
    )


D0, D1, D2, P0, P1 = pod("d0"), pod("d1", role=Role.COLOCATED), pod("d2"), pod("p0"), pod("p1", pending=90)


def test_an_option_tells_what_is_cached_where_it_is_computed_and_where_it_is_decoded() -> None:
    assert option(DEMAND, D1, P1) == Option(
        decode="d1", decode_role="colocated", prefill="p1", cached_tokens=64, decode_cached_tokens=32,
        prediction=predict(DEMAND, D1, P1), reason="",
    )  # fmt: skip
    assert option(DEMAND, D0, None) == Option(
        decode="d0", decode_role="decode", prefill="", cached_tokens=16, decode_cached_tokens=16,
        prediction=predict(DEMAND, D0, None), reason="",
    )  # fmt: skip
    nowhere = option(DEMAND, D2, P0)
    assert (nowhere.cached_tokens, nowhere.decode_cached_tokens) == (0, 0)
    assert (nowhere.way, option(DEMAND, D0, None).way) == (Way.REMOTE, Way.LOCAL)
    bare = Option(decode="d", decode_role="decode")
    assert (bare.cached_tokens, bare.decode_cached_tokens, bare.prediction) == (0, 0, UNPREDICTED)


def why(other: Option, ours: Option) -> str:
    return f"{other.decode}{other.prefill} is not {ours.decode}{ours.prefill}"


def test_beside_the_choice_stand_those_that_differ_in_one_pod_the_soonest_first() -> None:
    first, *others = explained(DEMAND, [D0, D1, D2], [P0, P1], D1, [P1, P0], why)
    assert first == option(DEMAND, D1, P1)
    pairs = [(each.decode, each.prefill) for each in others]
    # D1 has a hit and no queue, P0 no queue, and with P1 all decode pods are as soon: then TPOT, then the names.
    assert pairs == [("d1", ""), ("d1", "p0"), ("d0", "p1"), ("d2", "p1")]
    assert [each.reason for each in others] == [f"{decode}{prefill} is not d1p1" for decode, prefill in pairs]
    crowded = [pod("d0", in_flight=9), D1, D2]
    pairs = [(each.decode, each.prefill) for each in explained(DEMAND, crowded, [P0, P1], D1, [P1, P0], why)[1:]]
    assert pairs == [("d1", ""), ("d1", "p0"), ("d2", "p1"), ("d0", "p1")]
    twins = [pod("p2"), pod("p3"), P1]
    pairs = [(each.decode, each.prefill) for each in explained(DEMAND, [D1], twins, D1, [P1], why)[1:]]
    assert pairs == [("d1", ""), ("d1", "p2"), ("d1", "p3")]


def test_without_a_builder_the_decode_pods_stand_beside_one_another() -> None:
    found = explained(DEMAND, [D0, D1, D2], [], D0, [], why)
    assert [(each.decode, each.prefill) for each in found] == [("d0", ""), ("d1", ""), ("d2", "")]
    assert explained(Demand(num_tokens=100, block_size=16), [D0, D1], [P0], D0, [P0], why) == ()


@pytest.mark.parametrize("more", [-1, 0, 1, 5])
def test_so_many_come_back_at_most_with_the_choice_among_them(more: int) -> None:
    decode = [pod(f"d{at:02}", in_flight=at) for at in range(MAX_OPTIONS + more)]
    found = explained(DEMAND, decode, [], decode[-1], [], why)
    names = [decode[-1].pod_id, *[each.pod_id for each in decode[:-1]]]
    assert [each.decode for each in found] == names[:MAX_OPTIONS]


def test_a_placement_names_its_pods_what_they_hold_and_what_it_comes_to() -> None:
    builders = [P1, P0, pod("p2"), pod("p3")]
    options = (option(DEMAND, D0, P1),)
    assert placement(DEMAND, D0, builders, way=Way.REMOTE, options=options) == Placement(
        decode="d0",
        candidates=(
            Candidate(pod_id="p1", address="p1:1", queue_s=P1.queue_s, cached_tokens=64),
            Candidate(pod_id="p0", address="p0:1", queue_s=0.0, cached_tokens=0),
            Candidate(pod_id="p2", address="p2:1", queue_s=0.0, cached_tokens=0),
        ),
        cached_tokens=64, prediction=predict(DEMAND, D0, P1), way=Way.REMOTE, options=options,
    )  # fmt: skip
    assert placement(DEMAND, D1, []) == Placement(
        decode="d1", candidates=(), cached_tokens=32, prediction=predict(DEMAND, D1, None), way=None, options=()
    )
    assert placement(DEMAND, D2, [P0]).cached_tokens == placement(DEMAND, D2, []).cached_tokens == 0
    assert Placement(decode="d").cached_tokens == 0
