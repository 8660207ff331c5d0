"""A subscription's life: tried again until its first event, and then whatever breaks it ends it."""

from __future__ import annotations

import pytest

from pagewire.client.attempts import Attempts
from pagewire.client.cluster import Block, KvEvent, KvEventKind
from pagewire.client.listening import Listening
from pagewire.client.retry import RetryBudget, RetryPolicy
from pagewire.client.routers import Routers
from pagewire.core.errors import DeadlineExceeded, EngineFailed, Forbidden, PagewireError, RouterLost
from pagewire.protos import inference_pb2 as pb

ASKED = pb.SubscribeKvEventsRequest()
GAP = pb.KvEvent(pod_id="d0", sequence=4, gap=pb.KvGap(reason="pod_lost"))
CHANGE = pb.KvEvent(
    pod_id="d0",
    incarnation="one",
    sequence=5,
    change=pb.KvChange(stored=[pb.KvBlock(hash=b"a", depth=2, tier=1)], evicted=[b"b"]),
)


def listening(*, budget: RetryBudget | None = None, routers: Routers | None = None) -> Listening:
    """Return a call of five seconds that begins at 100 s."""
    attempts = Attempts(
        timeout_s=5.0,
        policy=RetryPolicy(max_attempts=3, first_backoff_s=1.0),
        budget=budget or RetryBudget(),
        routers=routers or Routers(1),
        now_s=100.0,
    )
    return Listening(ASKED, attempts)


def test_it_asks_for_the_events_and_for_nothing_else() -> None:
    life = listening()
    assert (life.method, life.request, life.metadata, life.is_finished) == ("SubscribeKvEvents", ASKED, (), False)
    assert life.begin(101.0) == (0, 4.0)
    with pytest.raises(DeadlineExceeded):
        life.begin(105.0)


def test_events_come_as_they_were_told() -> None:
    life = listening()
    life.begin(100.0)
    assert life.on_response(GAP) == KvEvent(
        kind=KvEventKind.GAP, pod_id="d0", incarnation="", sequence=4, reason="pod_lost"
    )
    assert life.on_response(CHANGE) == KvEvent(
        kind=KvEventKind.CHANGE,
        pod_id="d0",
        incarnation="one",
        sequence=5,
        stored=(Block(hash=b"a", depth=2, tier=1),),
        evicted=(b"b",),
    )
    assert not life.is_finished
    with pytest.raises(EngineFailed, match="neither"):
        life.on_response(pb.KvEvent())


def test_before_the_first_event_it_is_tried_again_at_the_next_router() -> None:
    routers = Routers(2)
    life = listening(routers=routers)
    assert life.begin(100.0)[0] == 0
    assert life.on_error("UNAVAILABLE", "gone", (), now_s=100.0, draw=0.5) == 0.0
    assert life.begin(100.0)[0] == 1
    assert life.on_error("RESOURCE_EXHAUSTED", "full", (), now_s=100.0, draw=0.25) == 0.5
    with pytest.raises(Forbidden, match="no"):
        life.on_error("PERMISSION_DENIED", "no", (), now_s=100.0, draw=0.5)


def test_after_it_an_error_is_final_and_the_router_is_left() -> None:
    routers = Routers(2)
    life = listening(routers=routers)
    life.begin(100.0)
    life.on_response(GAP)
    with pytest.raises(RouterLost, match="gone") as caught:
        life.on_error("UNAVAILABLE", "gone", (), now_s=102.0, draw=0.5)
    assert caught.value.request_id == ""
    assert routers.choose(102.0) == 1
    assert not routers.has_other(106.0, avoid=[1]), "it rests from when it was lost"
    assert routers.has_other(107.0, avoid=[1])


def test_the_first_event_alone_earns_a_part_of_a_retry() -> None:
    budget = RetryBudget(size=2.0, earned_per_success=0.25)
    budget.left = 0.0
    life = listening(budget=budget)
    life.begin(100.0)
    for _ in range(3):
        life.on_response(GAP)
    assert budget.left == 0.25


def test_a_router_that_ends_the_events_is_lost() -> None:
    with pytest.raises(RouterLost, match="ended the events"):
        listening().result()


def test_an_error_is_given_no_name() -> None:
    error = PagewireError("x")
    assert listening().named(error) is error
    assert error.request_id == ""
