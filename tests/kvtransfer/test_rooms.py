"""Room for received messages: whoever keeps to a window always finds some, and nobody has us hold more than a bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.errors import ContractBroken
from pagewire.kvtransfer.transport import ShipmentKey
from pagewire.kvtransfer.transports.rooms import Rooms
from pagewire.kvtransfer.wire import Ready

WINDOW = 64
KEY = ShipmentKey(1, 1)


def message() -> Ready:
    return Ready(KEY, 0, (), block_ids=(1,))


@given(st.lists(st.tuples(st.integers(1, WINDOW), st.integers(0, 99)), max_size=200))
def test_a_source_that_keeps_to_its_window_always_finds_room(course: list[tuple[int, int]]) -> None:
    """Messages of any sizes, given back in any order."""
    rooms = Rooms(bytearray, 2 * WINDOW)
    taken: list[tuple[Ready, int]] = []
    for size, which in course:
        while sum(size for _, size in taken) + size > WINDOW:
            rooms.give_back(taken.pop(which % len(taken))[0])
        ready = message()
        room = rooms.take(ready, size)
        assert rooms.of(ready) is room
        assert all(rooms.of(other) is not room for other, _ in taken), "given to two"
        assert len(room) >= size
        taken.append((ready, size))
        kept = sum(size for size, _ in (*rooms._free, *rooms._taken.values()))
        assert kept == rooms._num_bytes <= 2 * WINDOW


def test_what_is_given_back_is_used_again_the_last_first() -> None:
    rooms = Rooms(bytearray, 100)
    one, two, three = message(), message(), message()
    first, second = rooms.take(one, 10), rooms.take(two, 12)
    rooms.give_back(two)
    rooms.give_back(one)
    rooms.give_back(one)  # twice is once
    assert rooms.of(one) is None
    assert rooms.take(three, 8) is first
    assert rooms.take(message(), 8) is second
    assert rooms._free == []


def test_what_is_kept_gives_way_and_what_is_in_use_does_not() -> None:
    rooms = Rooms(bytearray, 100)
    kept, used, other = message(), message(), message()
    rooms.take(kept, 60)
    rooms.take(used, 40)
    rooms.give_back(kept)
    assert len(rooms.take(other, 20)) == 20  # a third of what is kept: too much of it would be idle
    with pytest.raises(ContractBroken, match="100 bytes to be staged"):
        rooms.take(message(), 41)
    rooms.clear()
    assert rooms.of(used) is None
    assert len(rooms.take(message(), 100)) == 100
