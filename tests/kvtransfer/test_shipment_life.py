"""Both ends of a shipment, and the pools behind them, through random orders of everything that can happen.

The two real state machines face each other over a fake link (in order, may break) and a fake bulk stream (loses,
duplicates, reorders, spoils and delays parts of blocks, and takes its time to write them). Blocks travel whole, or in
layer groups that may be told of before their chunk is done, or not, or twice. Model pools stand for the engines:
they fail a test that frees a block twice, writes into one that is not the shipment's, or reads one that is not pinned.
Proves ownership, not timing.
"""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagewire.core.errors import StreamLost
from pagewire.kvtransfer.effects import (
    Announce,
    AskBind,
    AskResend,
    Detach,
    Effects,
    HandOver,
    Outcome,
    Purge,
    Release,
    SendBlocks,
    SendFence,
    SendFenced,
    SendLanded,
    Verdict,
)
from pagewire.kvtransfer.outgoing import OutgoingShipment, OutgoingState
from pagewire.kvtransfer.shipment import IncomingShipment, IncomingState

FIRST = 2


class ShipmentLife(RuleBasedStateMachine):
    """P's block of chain index i is 100 + i, D's is 200 + i; contents are the part's index, -1 where spoilt."""

    @initialize(num_blocks=st.integers(1, 6), room=st.integers(0, 2), num_groups=st.integers(1, 3))
    def begin(self, num_blocks: int, room: int, num_groups: int) -> None:
        self.now_s = 0.0
        self.num_groups = num_groups
        self.num_blocks = num_blocks
        self.incoming = IncomingShipment(
            request_id="r", generation=1, shipment_id=5, first_block=FIRST, max_blocks=num_blocks + room,
            deadline_s=50.0, fence_s=5.0, num_groups=num_groups,
        )  # fmt: skip
        self.outgoing = OutgoingShipment(
            request_id="r", generation=1, shipment_id=5, peer_id="D", first_block=FIRST, num_groups=num_groups
        )
        self.to_d: deque[tuple[object, ...]] = deque([("accepted",)])
        self.to_p: deque[tuple[object, ...]] = deque()
        self.flying: list[tuple[int, int]] = []  # (index, contents) on the bulk stream
        self.queued: list[tuple[int, int]] = []  # (index, part id) at P's sender
        self.waiting: list[tuple[int, int]] = []  # at D, for ids
        self.writing: dict[int, int] = {}  # at D, claimed: index -> contents
        self.link_up = True
        self.attached = True
        self.bind_to = 0
        self.computed = 0
        self.last_chunk = 0  # blocks of the chunk that computes, once its groups are told of
        self.groups: deque[int] = deque()
        self.prompt_done = False
        self.p_pinned = True
        self.purge_due = self.free_due = False
        self.d_owner = "shipment"
        self.d_memory: dict[int, int] = {}
        self.handed: list[HandOver] = []

    # --- effects

    def on_d(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case AskBind(num_blocks=num_blocks):
                    self.bind_to = num_blocks
                case AskResend(first_block=first, num_blocks=num, group=group):
                    self.say(self.to_p, "resend", first, num, group)
                case Detach():
                    assert self.attached, "detached twice"
                    self.attached = False
                    self.waiting.clear()
                case SendFence():
                    self.say(self.to_p, "fence")
                case SendLanded():
                    self.say(self.to_p, "landed")
                case HandOver():
                    assert not self.attached, "handed over while bytes could still be placed"
                    assert self.d_owner == "shipment", "handed over twice"
                    assert not self.writing, "handed over while blocks were still written"
                    self.d_owner = effect.outcome
                    self.handed.append(effect)
                    kept = range(FIRST * self.num_groups, (FIRST + effect.kept_blocks) * self.num_groups)
                    assert [self.d_memory.get(self.at_d(index)) for index in kept] == list(kept), (
                        "kept what is not there"
                    )
                case _:
                    raise AssertionError(f"{effect} is not for a decode pod")

    def on_p(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case SendBlocks(blocks=blocks):
                    assert not self.purge_due
                    self.queued.extend(blocks)
                case Announce(first_block=first, num_blocks=num, group=group):
                    self.say(self.to_d, "chunk", first, num, group)
                case Purge():
                    self.purge_due = True
                case Release():
                    assert self.p_pinned, "released twice"
                    assert not self.queued, "released what the transport may still read"
                    self.p_pinned = False
                    self.free_due = True
                case SendFenced():
                    assert not self.p_pinned
                    self.say(self.to_d, "fenced")
                case _:
                    raise AssertionError(f"{effect} is not for a prefill pod")

    def say(self, queue: deque[tuple[object, ...]], *what: object) -> None:
        if self.link_up:
            queue.append(what)

    def at_p(self, index: int) -> int:
        return 100 * self.num_groups + index

    def at_d(self, index: int) -> int:
        return 200 * self.num_groups + index

    # --- the prefill pod

    @precondition(lambda self: self.p_pinned and not self.prompt_done and not self.last_chunk)
    @rule(num=st.integers(1, 3), told=st.lists(st.integers(0, 2), max_size=5))
    def begin_last_chunk(self, num: int, told: list[int]) -> None:
        if self.computed + num >= self.num_blocks:
            self.last_chunk = self.num_blocks - self.computed
            self.groups.extend([*range(self.num_groups), *(group for group in told if group < self.num_groups)])

    @precondition(lambda self: self.p_pinned and self.groups)
    @rule()
    def group_done(self) -> None:
        start = FIRST + self.computed
        ids = tuple(100 + index for index in range(start, start + self.last_chunk))
        self.on_p(self.outgoing.chunk_done(start, ids, self.groups.popleft()))

    @precondition(lambda self: self.p_pinned and not self.prompt_done)
    @rule(num=st.integers(1, 3))
    def step(self, num: int) -> None:
        start = FIRST + self.computed
        num = self.last_chunk or min(num, self.num_blocks - self.computed)
        self.groups.clear()
        self.computed += num
        self.on_p(self.outgoing.chunk_done(start, tuple(100 + index for index in range(start, start + num))))
        if self.computed == self.num_blocks:
            self.prompt_done = True
            self.on_p(self.outgoing.prompt_done(is_finished=False))
            if self.outgoing.state is OutgoingState.SHIPPING:
                self.say(self.to_d, "first_token", self.num_blocks)

    @rule()
    def transmit(self) -> None:
        if self.queued:
            index, part_id = self.queued.pop(0)
            assert self.p_pinned, "read after release"
            assert part_id == self.at_p(index)
            self.flying.append((index, index))

    @precondition(lambda self: self.purge_due)
    @rule()
    def purge(self) -> None:
        self.purge_due = False
        self.queued.clear()
        self.on_p(self.outgoing.purged())

    @precondition(lambda self: self.free_due)
    @rule()
    def free(self) -> None:
        self.free_due = False
        self.on_p(self.outgoing.freed())

    @precondition(lambda self: not self.p_pinned)
    @rule()
    def said_again(self) -> None:
        self.on_p(self.outgoing.purged())
        if not self.free_due:
            self.on_p(self.outgoing.freed())

    @rule(which=st.sampled_from(["lease", "failed"]))
    @precondition(lambda self: self.now_s > 10)
    def p_gives_up(self, which: str) -> None:
        if which == "failed" and self.outgoing.state is OutgoingState.SHIPPING:
            self.say(self.to_d, "failed")
        self.on_p(self.outgoing.lease_expired() if which == "lease" else self.outgoing.failed())

    # --- the link

    @rule()
    def d_hears(self) -> None:
        if not self.to_d:
            return
        match self.to_d.popleft():
            case ("accepted",):
                self.on_d(self.incoming.accepted())
            case ("chunk", int(first), int(num), (int() | None) as group):
                self.on_d(self.incoming.chunk_ready(first, num, self.now_s, group))
            case ("first_token", int(num)):
                self.on_d(self.incoming.first_token(num, self.now_s))
            case ("failed",):
                self.on_d(self.incoming.prefill_failed())
            case ("fenced",):
                self.on_d(self.incoming.fenced())

    @rule()
    def p_hears(self) -> None:
        if not self.to_p:
            return
        match self.to_p.popleft():
            case ("resend", int(first), int(num), (int() | None) as group):
                self.on_p(self.outgoing.resend(first, num, group))
            case ("fence",):
                self.on_p(self.outgoing.fence())
            case ("landed",):
                self.on_p(self.outgoing.landed())

    @precondition(lambda self: self.link_up and self.now_s > 5)
    @rule()
    def link_breaks(self) -> None:
        self.link_up = False
        self.to_d.clear()
        self.to_p.clear()
        self.on_d(self.incoming.peer_lost())
        self.on_p(self.outgoing.peer_lost())

    # --- the bulk stream

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), spoil=st.sampled_from([False, False, False, True]), keep=st.booleans())
    def block_arrives(self, data: st.DataObject, spoil: bool, keep: bool) -> None:
        at = data.draw(st.integers(0, len(self.flying) - 1))
        index, contents = self.flying[at]
        if not keep:  # else it comes once more later
            del self.flying[at]
        self.place(index, -1 if spoil else contents)

    def place(self, index: int, contents: int) -> None:
        if not self.attached:
            return
        claim = self.incoming.claim(index)
        if claim.verdict is Verdict.PLACE:
            assert claim.block_id == self.at_d(index)
            assert index not in self.writing, "written by two at a time"
            self.writing[index] = contents
        elif claim.verdict is Verdict.WAIT:
            self.waiting.append((index, contents))

    @precondition(lambda self: self.writing)
    @rule(data=st.data())
    def written(self, data: st.DataObject) -> None:
        """The transport has stopped writing a block; that may be long after the shipment has ended."""
        index = data.draw(st.sampled_from(sorted(self.writing)))
        self.settle(index)

    def settle(self, index: int) -> None:
        contents = self.writing.pop(index)
        assert self.d_owner == "shipment", "written after it was handed over"
        assert self.d_memory.get(self.at_d(index)) != index, "written after it was right"
        self.d_memory[self.at_d(index)] = contents
        self.on_d(self.incoming.settle(index, contents == index, self.now_s))

    @precondition(lambda self: self.bind_to)
    @rule()
    def engine_binds(self) -> None:
        table, self.bind_to = tuple(range(200, 200 + self.bind_to)), 0
        self.on_d(self.incoming.bound(table))
        held, self.waiting = self.waiting, []
        for index, contents in held:
            self.place(index, contents)

    # --- the decode pod

    @rule(seconds=st.floats(0, 8))
    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.on_d(self.incoming.expired(self.now_s))

    @precondition(lambda self: self.now_s > 5)
    @rule(what=st.sampled_from(["cancel", "stream", "close"]))
    def d_changes_its_mind(self, what: str) -> None:
        if what == "cancel":
            self.on_d(self.incoming.cancel(self.now_s))
        elif what == "stream":
            self.flying.clear()
            self.queued.clear()
            self.on_d(self.incoming.stream_lost(StreamLost("the test says so"), self.now_s))
        else:
            self.incoming.close()

    @rule(rounds=st.integers(1, 8))
    def all_goes_well(self, rounds: int) -> None:
        """Random orders alone hardly ever finish anything."""
        for _ in range(rounds * self.num_groups):
            if self.p_pinned and self.groups:
                self.group_done()
            elif self.p_pinned and not self.prompt_done:
                self.step(1)
            self.transmit()
            self.d_hears()
            self.p_hears()
            if self.bind_to:
                self.engine_binds()
            if self.flying:
                self.place(*self.flying.pop(0))
            for index in sorted(self.writing):
                self.settle(index)

    # --- what holds always, and in the end

    @invariant()
    def one_owner(self) -> None:
        owned = self.incoming.state in (IncomingState.RESERVED, IncomingState.SHIPPING, IncomingState.FENCING)
        assert owned == (self.d_owner == "shipment")
        assert len(self.handed) == (0 if owned else 1)
        written = {index // self.num_groups for index in self.writing}
        assert self.incoming.num_quarantined == (len(written) if not self.attached else 0)
        assert 0.0 <= self.incoming.transfer_s <= self.now_s
        assert 0.0 <= self.incoming.exposed_s <= self.now_s
        if self.d_owner == Outcome.LANDED:
            assert self.handed[0].kept_blocks == self.num_blocks

    def teardown(self) -> None:
        """Whatever happened: once time passes and messages are delivered, nobody holds anything."""
        if not hasattr(self, "incoming"):
            return
        for _ in range(40):
            self.advance(60.0)
            self.on_p(self.outgoing.lease_expired())
            self.d_hears()
            self.p_hears()
            if self.purge_due:
                self.purge()
            if self.free_due:
                self.free()
        if self.writing:
            assert self.d_owner == "shipment", "quarantine ends with the last write, not with time"
        for index in sorted(self.writing):
            self.settle(index)
        for _ in range(3):
            self.advance(60.0)
            self.d_hears()
            self.p_hears()
        self.incoming.close()
        assert self.incoming.state is IncomingState.CLOSED
        assert self.outgoing.state is OutgoingState.CLOSED
        assert not self.p_pinned
        assert self.d_owner != "shipment"
        self.one_owner()


ShipmentLife.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestShipmentLife = ShipmentLife.TestCase
