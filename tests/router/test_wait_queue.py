"""The queue before the pods, and the blocks that are promised: order, bounds, and nobody starves."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagewire.core.load import Load
from pagewire.core.sequence_spec import MAX_PRIORITY
from pagewire.engine import scheduling_policy
from pagewire.router.kv_room import KvNeed, KvRoom
from pagewire.router.refusals import Reason, Refused
from pagewire.router.wait_queue import S_PER_PRIORITY, SPAN_S, Waiter, WaitQueue

B = 16


def all_free(_what: object) -> dict[str, bool]:
    return {"d0": True}


def test_a_lower_priority_goes_first_and_of_equal_ones_who_came_first() -> None:
    queue: WaitQueue[str] = WaitQueue(9)
    waiters = {}
    for name, priority in (("a", 0), ("b", 5), ("c", -5), ("d", 0)):
        waiters[name], _ = queue.join(name, arrived_s=0.0, priority=priority, now_s=0.0)
    order = []
    while (found := queue.next(all_free, 1)) is not None:
        order.append(found[0])
        queue.leave(waiters[found[0]], 1.0, is_served=True)
    assert order == ["c", "a", "d", "b"]


def test_the_least_wanted_is_first_after_the_span() -> None:
    queue: WaitQueue[str] = WaitQueue(9)
    queue.join("old", arrived_s=0.0, priority=MAX_PRIORITY, now_s=0.0)
    queue.join("new", arrived_s=SPAN_S - 1, priority=-MAX_PRIORITY, now_s=0.0)
    assert queue.next(all_free, 1) == ("new", frozenset())
    queue.join("newer", arrived_s=SPAN_S + 1, priority=-MAX_PRIORITY, now_s=0.0)
    assert list(queue) == ["new", "old", "newer"]


def test_nobody_is_overtaken_where_it_could_go_itself_and_elsewhere_others_pass() -> None:
    queue: WaitQueue[str] = WaitQueue(9)
    queue.join("large", arrived_s=0.0, priority=0, now_s=0.0)
    queue.join("small", arrived_s=1.0, priority=0, now_s=1.0)
    rooms = {"large": {"d0": False}, "small": {"d0": True, "d1": True}}
    assert queue.next(rooms.__getitem__, 2) == ("small", frozenset({"d0"}))
    rooms["small"] = {"d0": True}
    assert queue.next(rooms.__getitem__, 2) is None
    rooms["large"] = {"d0": True}
    assert queue.next(rooms.__getitem__, 2) == ("large", frozenset())
    rooms["large"] = {}  # it waits for a pod that is not there: in nobody's way
    assert queue.next(rooms.__getitem__, 2) == ("small", frozenset())


def test_a_full_queue_refuses_or_sends_the_last_one_away_but_none_that_streams() -> None:
    queue: WaitQueue[str] = WaitQueue(2)
    queue.join("a", arrived_s=0.0, priority=0, now_s=0.0)
    queue.join("b", arrived_s=0.0, priority=0, now_s=0.0)
    with pytest.raises(Refused) as raised:
        queue.join("c", arrived_s=0.0, priority=0, now_s=0.0)
    assert raised.value.reason is Reason.QUEUE_FULL
    _, evicted = queue.join("d", arrived_s=0.0, priority=-1, now_s=0.0)
    assert evicted is not None
    assert evicted.what == "b"
    queue.join("e", arrived_s=0.0, priority=9, now_s=0.0, is_let_in=True)
    _, evicted = queue.join("f", arrived_s=0.0, priority=-2, now_s=0.0)
    assert evicted is not None
    assert evicted.what == "a"
    assert len(queue) == 3


def test_a_tenant_that_fills_the_queue_makes_room_for_others_up_to_as_much_as_they_have() -> None:
    queue: WaitQueue[str] = WaitQueue(4)
    for place in range(4):
        queue.join(f"a{place}", arrived_s=0.0, priority=0, now_s=0.0, tenant="a")
    for name, gone in (("b0", "a3"), ("b1", "a2")):
        _, evicted = queue.join(name, arrived_s=1.0, priority=0, now_s=1.0, tenant="b")
        assert evicted is not None
        assert evicted.what == gone
    for tenant in "ab":  # each has half
        with pytest.raises(Refused, match="4 requests wait") as raised:
            queue.join("more", arrived_s=2.0, priority=0, now_s=2.0, tenant=tenant)
        assert raised.value.reason is Reason.QUEUE_FULL
    _, evicted = queue.join("c0", arrived_s=2.0, priority=0, now_s=2.0, tenant="c")
    assert evicted is not None
    assert evicted.what == "b1"
    _, evicted = queue.join("urgent", arrived_s=3.0, priority=-1, now_s=3.0, tenant="a")
    assert evicted is not None
    assert evicted.what == "a1", "of its own, which has most"
    assert list(queue) == ["urgent", "a0", "b0", "c0"]


def test_who_is_less_urgent_leaves_for_who_has_more() -> None:
    queue: WaitQueue[str] = WaitQueue(2)
    queue.join("low", arrived_s=0.0, priority=1, now_s=0.0, tenant="a")
    queue.join("first", arrived_s=0.0, priority=0, now_s=0.0, tenant="b")
    _, evicted = queue.join("second", arrived_s=0.0, priority=0, now_s=0.0, tenant="b")
    assert evicted is not None
    assert evicted.what == "low"
    with pytest.raises(Refused):
        queue.join("low", arrived_s=0.0, priority=1, now_s=0.0, tenant="c")


def test_what_is_told_follows_from_how_fast_the_queue_was_served() -> None:
    queue: WaitQueue[int] = WaitQueue(100)
    waiters = [queue.join(i, arrived_s=0.0, priority=0, now_s=0.0)[0] for i in range(100)]
    queue.wait(0.0)
    for i in range(90):
        queue.leave(waiters[i], 3.0 * (i + 1), is_served=True)
    assert queue.retry_after_s(270.0) == pytest.approx(33.0, rel=0.05)


def test_those_that_are_let_in_take_nobodys_place() -> None:
    queue: WaitQueue[str] = WaitQueue(1)
    for name in ("streams", "streams too"):
        assert queue.join(name, arrived_s=9.0, priority=0, now_s=9.0, is_let_in=True)[1] is None
    assert queue.join("new", arrived_s=9.0, priority=0, now_s=9.0)[1] is None
    with pytest.raises(Refused, match="1 requests wait"):
        queue.join("newer", arrived_s=9.0, priority=0, now_s=9.0)
    assert list(queue) == ["streams", "streams too", "new"]


def test_who_waits_is_told_of_the_silence_since_it_does() -> None:
    queue: WaitQueue[str] = WaitQueue(9)
    queue.join("a", arrived_s=0.0, priority=0, now_s=0.0)
    queue.wait(5.0)
    queue.wait(10.0)
    assert queue.retry_after_s(20.0) == 2 * 15.0


@pytest.mark.parametrize(("num_pods", "asked"), [(1, "abc"), (2, "abcd")])
def test_behind_those_that_wait_for_all_pods_nobody_is_looked_at(num_pods: int, asked: str) -> None:
    queue: WaitQueue[str] = WaitQueue(9)
    for name in "abcde":
        queue.join(name, arrived_s=0.0, priority=0, now_s=0.0)
    looked: list[str] = []

    def pods_of(name: str) -> dict[str, bool]:
        looked.append(name)
        return {"a": {}, "b": {}, "c": {"d0": False}}.get(name, {"d0": True, f"d{num_pods - 1}": False})

    assert queue.next(pods_of, num_pods) is None
    assert "".join(looked) == asked


def test_a_step_of_priority_is_as_many_seconds_as_on_a_pod() -> None:
    assert S_PER_PRIORITY == scheduling_policy.S_PER_PRIORITY


class QueueMachine(RuleBasedStateMachine):
    """Requests of different sizes come, wait, are served, give up; pods come free, one unit of room at a time."""

    MAX = 6

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.queue: WaitQueue[int] = WaitQueue(self.MAX)
        self.waiters: dict[int, Waiter[int]] = {}
        self.size: dict[int, int] = {}
        self.room = {"d0": 3, "d1": 0}
        self.names = 0

    @rule(size=st.integers(1, 5), priority=st.integers(-1, 1), tenant=st.sampled_from("aab"), is_let_in=st.booleans())
    def join(self, size: int, priority: int, tenant: str, is_let_in: bool) -> None:
        self.names += 1
        name = self.names
        rank = (self.now_s + priority * S_PER_PRIORITY, name)
        fresh = [w for w in self.waiters.values() if not w.is_let_in]
        come = Waiter(name, rank, priority, tenant, is_let_in)
        evicted: Waiter[int] | None = come
        with contextlib.suppress(Refused):
            self.waiters[name], evicted = self.queue.join(
                name, arrived_s=self.now_s, priority=priority, now_s=self.now_s, tenant=tenant, is_let_in=is_let_in
            )
            self.size[name] = size
        if evicted is None:
            assert is_let_in or len(fresh) < self.MAX
            return
        assert len(fresh) == self.MAX
        self.leaves_rightly(evicted, [*fresh, come])
        if evicted is not come:
            del self.waiters[evicted.what]
            self.queue.leave(evicted, self.now_s, is_served=False)

    def leaves_rightly(self, evicted: Waiter[int], waiters: list[Waiter[int]]) -> None:
        number_of = Counter(each.tenant for each in waiters)
        assert evicted.priority >= max(waiters, key=lambda each: each.rank).priority
        for each in waiters:
            if each.priority >= evicted.priority:
                assert number_of[each.tenant] <= number_of[evicted.tenant], "one that has more is to leave before"
                assert each.tenant != evicted.tenant or each.rank <= evicted.rank, "its own last one is"
        if len({each.priority for each in waiters}) == 1:
            assert number_of[evicted.tenant] * len(number_of) > self.MAX, "all have their share of the places"

    def rooms(self, name: int) -> dict[str, bool]:
        return {key: room >= self.size[name] for key, room in self.room.items()}

    @rule()
    def serve(self) -> None:
        found = self.queue.next(self.rooms, len(self.room))
        in_order = sorted(self.waiters.values(), key=lambda w: w.rank)
        if found is None:
            # Only the first counts here, since all may use all pods.
            assert not in_order or not any(self.rooms(in_order[0].what).values())
            return
        name, closed = found
        assert name == in_order[0].what
        key = next(key for key, has_room in self.rooms(name).items() if key not in closed)
        assert self.room[key] >= self.size[name]
        self.room[key] -= self.size[name]
        self.queue.leave(self.waiters.pop(name), self.now_s, is_served=True)

    @precondition(lambda self: self.waiters)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiters)))
        self.queue.leave(self.waiters.pop(name), self.now_s, is_served=False)

    @rule(key=st.sampled_from(["d0", "d1"]), blocks=st.integers(1, 5), seconds=st.floats(0, 20))
    def room_comes(self, key: str, blocks: int, seconds: float) -> None:
        self.now_s += seconds
        self.room[key] = min(5, self.room[key] + blocks)

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.queue) == len(self.waiters)
        fresh = [w for w in self.waiters.values() if not w.is_let_in]
        assert len(fresh) <= self.MAX
        assert 1.0 <= self.queue.retry_after_s(self.now_s) <= 60.0

    def teardown(self) -> None:
        # Nobody starves: once nothing comes any more, all are served, in the order of their ranks.
        order = [w.what for w in sorted(self.waiters.values(), key=lambda w: w.rank)]
        for name in order:
            self.room = {"d0": 5, "d1": 5}
            found = self.queue.next(self.rooms, 2)
            assert found is not None
            assert found[0] == name
            self.queue.leave(self.waiters[name], self.now_s, is_served=True)
        assert len(self.queue) == 0


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@given(prompt=st.integers(1, 500), answer=st.integers(0, 500), n=st.integers(1, 8))
def test_the_need_is_what_sequences_that_share_full_blocks_hold_at_their_ends(prompt: int, answer: int, n: int) -> None:
    need = KvNeed.of(prompt_tokens=prompt, answer_tokens=answer, num_sequences=n, block_size=B)
    slots = [[("prompt", i) if i < prompt // B * B else (j, i) for i in range(prompt + answer)] for j in range(n)]
    blocks = {(sequence[start][0], start // B) for sequence in slots for start in range(0, len(sequence), B)}
    assert need.blocks == len(blocks)
    assert need.prompt <= need.blocks
    assert need.without(1).blocks == max(0, need.prompt - 1) + need.answer


@pytest.mark.parametrize(
    ("prompt", "answer", "n", "need"),
    [
        (B, 0, 3, (1, 0)),  # full blocks are shared
        (B - 1, 0, 3, (3, 0)),
        (B - 1, 1, 3, (3, 0)),
        (B, 1, 3, (4, 0)),  # what the first token is written to is there from the beginning
        (B, B, 3, (4, 0)),
        (B, B + 1, 3, (4, 3)),
        (2 * B + 5, 3 * B, 2, (4, 6)),
    ],
)
def test_the_need_at_once_is_the_prompts_and_a_block_for_each_to_write_on(
    prompt: int, answer: int, n: int, need: tuple[int, int]
) -> None:
    found = KvNeed.of(prompt_tokens=prompt, answer_tokens=answer, num_sequences=n, block_size=B)
    assert (found.prompt, found.answer) == need


def test_what_is_cached_is_not_needed_and_more_than_all_is_nothing() -> None:
    need = KvNeed(prompt=3, answer=4)
    left = [need.without(cached) for cached in (0, 1, 3, 9)]
    assert [(each.prompt, each.answer) for each in left] == [(3, 4), (2, 4), (0, 4), (0, 4)]


def test_before_a_pod_has_spoken_only_promises_count_and_they_leave_nothing_behind() -> None:
    room = KvRoom()
    assert room.blocks == 0
    room.promise("a", KvNeed(prompt=2, answer=3), lambda: 0.0)
    assert room.blocks == -5
    assert room.has_room(10**9)
    room.release("a")
    assert room.blocks == 0


@pytest.mark.parametrize(
    ("shares", "unseen"),
    [
        ([0.0], 10),
        ([0.0, 0.0], 8),  # the second report shows the prompt
        ([0.01], 8),  # an answer that has begun shows it too
        ([0.5], 4),
        ([0.99], 1),
        ([1.0], 0),
        ([1.5], 0),
        ([-1.0], 10),
    ],
)
def test_a_report_shows_what_is_written_and_the_second_one_the_prompt(shares: list[float], unseen: int) -> None:
    room, told = KvRoom(), iter(shares)
    room.promise("a", KvNeed(prompt=2, answer=8), lambda: next(told))
    for _ in shares:
        room.report(Load(blocks_total=100, blocks_free=60, blocks_cached=30, blocks_reserved=20))
    assert room.blocks == 60 + 30 - 20 - unseen
    room.release("a")
    assert room.blocks == 70 - unseen + 10  # what the report shows of it comes back too


@pytest.mark.parametrize(
    ("load", "is_promised", "has_room"),
    [
        (Load(), True, True),  # nobody knows
        (Load(blocks_total=1, blocks_free=1), True, False),
        (Load(blocks_total=1), False, True),  # it does nothing
        (Load(blocks_total=1, num_running=1), False, False),
        (Load(blocks_total=1, num_waiting=1), False, False),
        (Load(blocks_total=1, blocks_free=1, num_running=1), False, True),
    ],
)
def test_a_block_may_be_promised_by_who_has_it_is_idle_or_unknown(
    load: Load, is_promised: bool, has_room: bool
) -> None:
    room = KvRoom()
    room.report(load)
    if is_promised:
        room.promise("a", KvNeed(prompt=1, answer=0), lambda: 0.0)
    assert room.has_room(1) is has_room


def test_a_promise_counts_until_reports_show_it() -> None:
    room, written = KvRoom(), 0.0
    load = Load(blocks_total=100, blocks_free=60, blocks_cached=40, num_running=1)
    room.report(load)
    room.promise("a", KvNeed(prompt=10, answer=20), lambda: written)
    assert room.blocks == 70
    room.report(load)  # it may have been under way
    assert room.blocks == 70
    room.report(Load(blocks_total=100, blocks_free=50, blocks_cached=40, num_running=1))
    assert room.blocks == 70
    written = 0.5
    room.report(Load(blocks_total=100, blocks_free=40, blocks_cached=40, num_running=1))
    assert room.blocks == 70
    room.release("a")
    assert room.blocks == 100
    assert room.has_room(100)
    room.report(load)
    room.release("a")
    assert room.blocks == 100


def test_who_does_nothing_takes_anything_and_who_has_not_spoken_is_asked() -> None:
    room = KvRoom()
    assert room.has_room(10**9)
    room.report(Load(blocks_total=10, blocks_free=8, blocks_pinned=2))
    assert room.has_room(50)
    room.promise("a", KvNeed(prompt=1, answer=0), lambda: 0.0)
    assert not room.has_room(8)
    assert room.has_room(7)
    room.release("a")
    room.report(Load(blocks_total=10, blocks_free=8, num_waiting=1))
    assert not room.has_room(9)


class RoomMachine(RuleBasedStateMachine):
    """A pod that grants what it is asked, and reports; this router alone uses it."""

    TOTAL = 40

    def __init__(self) -> None:
        super().__init__()
        self.room = KvRoom()
        self.needs: dict[str, KvNeed] = {}
        self.written: dict[str, float] = {}
        self.names = 0
        self.report()
        self.room.promise("first", KvNeed(prompt=1, answer=0), lambda: 1.0)
        self.needs["first"], self.written["first"] = KvNeed(prompt=1, answer=0), 1.0

    @rule()
    def report(self) -> None:
        held = sum(need.prompt + int(need.answer * self.written[name]) for name, need in self.needs.items())
        self.room.report(Load(blocks_total=self.TOTAL, blocks_free=self.TOTAL - held, num_running=len(self.needs)))

    @rule(prompt=st.integers(1, 10), answer=st.integers(0, 20))
    def place(self, prompt: int, answer: int) -> None:
        need = KvNeed(prompt=prompt, answer=answer)
        if self.room.has_room(need.blocks):
            self.names += 1
            name = str(self.names)
            self.needs[name], self.written[name] = need, 0.0
            self.room.promise(name, need, lambda: self.written[name])

    @precondition(lambda self: len(self.needs) > 1)
    @rule(data=st.data())
    def write_or_end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.needs) - {"first"})))
        share = data.draw(st.sampled_from([0.25, 0.5, 1.0]))
        if share == 1.0:
            del self.needs[name], self.written[name]
            self.room.release(name)
        else:
            self.written[name] = max(share, self.written[name])

    @invariant()
    def never_more_than_there_is(self) -> None:
        # All that was let in fits to its completion, whatever was reported when.
        assert sum(need.blocks for need in self.needs.values()) <= self.TOTAL
        assert self.room.num_promises == len(self.needs)
        assert self.room.blocks <= self.TOTAL


TestRoom = RoomMachine.TestCase
TestRoom.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
