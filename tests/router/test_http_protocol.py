"""When a connection is given up whose other end takes nothing: in time that is made up, look by look."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pagewire.router import http_protocol
from pagewire.router.http_protocol import BoundedProtocol

STALL_S = 60.0


class Connection:
    """The protocol's view of a connection: a clock with its timers, and what its other end has taken and has not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.taken = 0
        self.waiting = 0
        self.is_aborted = False
        monkeypatch.setattr(http_protocol, "num_taken", lambda transport: transport.taken)
        monkeypatch.setattr(http_protocol, "num_waiting", lambda transport: transport.waiting)
        self._due: list[tuple[float, Callable[[], None]]] = []
        protocol: Any = object.__new__(BoundedProtocol.bounded(STALL_S, STALL_S))
        protocol.loop = protocol.transport = self
        protocol.flow = SimpleNamespace(read_paused=False)
        protocol._taken, protocol._took_s, protocol._waited = 0, 0.0, False
        protocol._look_later()

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._due.append((self.now_s + delay_s, callback))

    def abort(self) -> None:
        self.is_aborted = True

    def pass_until(self, at_s: float) -> None:
        """Let time pass, and the protocol look where that is due."""
        while self._due and self._due[0][0] <= at_s:
            self.now_s, look = self._due.pop(0)
            look()
        self.now_s = at_s


@pytest.mark.parametrize("written_s", [0.0, 0.1, 14.9, 15.1, 100.0, 104.9])
def test_nothing_taken_is_hung_up_on_after_the_bound_and_within_a_quarter_more(
    monkeypatch: pytest.MonkeyPatch, written_s: float
) -> None:
    connection = Connection(monkeypatch)
    connection.pass_until(written_s)
    connection.waiting = 100
    connection.pass_until(written_s + STALL_S - 0.01)
    assert not connection.is_aborted
    connection.pass_until(written_s + STALL_S * 1.25)
    assert connection.is_aborted


def test_who_takes_a_byte_now_and_then_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(monkeypatch)
    connection.waiting = 100
    for number in range(1, 20):
        connection.pass_until(number * 0.9 * STALL_S)
        connection.taken += 1
    assert not connection.is_aborted


def test_who_has_nothing_to_take_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(monkeypatch)
    connection.pass_until(20 * STALL_S)
    assert not connection.is_aborted
