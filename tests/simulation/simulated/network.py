"""The wires between processes: connections whose messages take time, and what may go wrong with each message.

A connection is what TCP gives: two ends, messages in order both ways, and an end that each side learns of by itself, at
its own time, perhaps long after the other. What spoils messages is asked of `meddle` for each one. Knows no protocol.
Invariant: nothing arrives before it was sent, nothing at an end that has learnt that the connection is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from simulated.loop import Process, SimulatedLoop

LATENCY_S = 0.0003
JITTER_S = 0.0007

Handler = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that arrives, `late_s` seconds later than it would; out of order it lets others pass."""

    payload: Any
    late_s: float = 0.0
    is_in_order: bool = True


Meddle = Callable[["End", Any], Iterable[Delivery] | None]
"""Says what becomes of a message that an end sends; None: nothing happens to it."""


class End:
    """One side of a connection. Whoever has it sets `on_message` and `on_end`, which are called as its process."""

    def __init__(self, network: Network, process: Process, edge: str) -> None:
        self.process = process
        self.edge = edge
        self.on_message: Handler = lambda payload: None
        self.on_end: Callable[[str], None] = lambda reason: None
        self.is_over = False  # as far as this side knows
        self.peer: End = self
        self._network = network
        self._free_s = 0.0  # when what was sent before has arrived

    @property
    def names(self) -> tuple[str, str]:
        """Who sends, and to whom."""
        return self.process.name, self.peer.process.name

    def send(self, payload: Any) -> None:
        """Send a message; to nobody, where the connection is over."""
        if not self.is_over:
            self._network.carry(self, payload)

    def close(self, reason: str = "closed") -> None:
        """Be done with it; the other side hears of that behind all messages."""
        if not self.is_over:
            self.is_over = True
            self._network.carry(self, _Over(reason))

    def reset(self, reason: str) -> None:
        """Have this side hear, at once, that the connection broke."""
        if not self.is_over and self.process.is_alive:
            self.is_over = True
            self.process.soon(self.on_end, reason)

    def take(self, payload: Any) -> None:
        """A message arrives."""
        if self.is_over or not self.process.is_alive:
            return
        if isinstance(payload, _Over):
            self.reset(payload.reason)
        else:
            self.process.soon(self.on_message, payload)


@dataclass(frozen=True, slots=True)
class _Over:
    reason: str


@dataclass(frozen=True, slots=True)
class Listener:
    """Who accepts connections at an address."""

    process: Process
    accept: Callable[[End], None]


class Network:
    """All addresses and connections of a world."""

    def __init__(self, loop: SimulatedLoop, draw: Random) -> None:
        self.meddle: Meddle = lambda end, payload: None
        self.tap: Callable[[End, Any], None] = lambda end, payload: None  # sees all that is sent
        self.ends: list[End] = []  # those that dialled
        self._loop = loop
        self._uniform = draw.random
        self._listeners: dict[str, Listener] = {}
        self._cut: set[frozenset[str]] = set()
        self._held: list[tuple[End, Any, float]] = []  # what waits for a cut to heal

    def listen(self, address: str, listener: Listener) -> None:
        """Accept connections to an address, in the place of whoever did."""
        self._listeners[address] = listener

    def hush(self, address: str, process: Process) -> None:
        """Accept no more, unless somebody else does there by now."""
        listener = self._listeners.get(address)
        if listener is not None and listener.process is process:
            del self._listeners[address]

    def dial(self, process: Process, address: str, edge: str) -> End:
        """Open a connection; that nobody listens is heard of a little later, as any end is."""
        near = End(self, process, edge)
        listener = self._listeners.get(address)
        if listener is None or not listener.process.is_alive:
            self._loop.at(self._loop.true_s + self._delay_s(), near.reset, "connection refused")
            return near
        far = End(self, listener.process, edge)
        near.peer, far.peer = far, near
        self.ends.append(near)
        listener.process.run(listener.accept, far)
        return near

    def carry(self, end: End, payload: Any) -> None:
        """Bring a message to the other side, or not."""
        self.tap(end, payload)
        told = None if isinstance(payload, _Over) else self.meddle(end, payload)
        if told is None:
            self._bring(end, payload, 0.0, True)
            return
        for delivery in told:
            self._bring(end, delivery.payload, delivery.late_s, delivery.is_in_order)

    def cut(self, one: str, other: str) -> None:
        """Let nothing pass between two processes; it waits, as TCP has it."""
        self._cut.add(frozenset((one, other)))

    def heal(self, one: str, other: str) -> None:
        """Let pass what waited."""
        self._cut.discard(frozenset((one, other)))
        held, self._held = self._held, []
        for end, payload, late_s in held:
            self._bring(end, payload, late_s, True)

    def is_cut(self, end: End) -> bool:
        """Return whether nothing passes where an end is."""
        return bool(self._cut) and frozenset(end.names) in self._cut

    def break_all(self, process: Process, *, silently: bool) -> None:
        """A process is gone. Its peers hear of it, or, where its machine went with it, have to find out."""
        self._listeners = {at: each for at, each in self._listeners.items() if each.process is not process}
        mine = [end for end in self.ends if process in (end.process, end.peer.process)]
        self.ends = [end for end in self.ends if end not in mine]
        for end in mine:
            other = end.peer if end.process is process else end
            if not silently:
                self._loop.at(self._loop.true_s + self._delay_s(), other.reset, "the peer is gone")

    def _bring(self, end: End, payload: Any, late_s: float, is_in_order: bool) -> None:
        if self._cut and self.is_cut(end):
            self._held.append((end, payload, late_s))
            return
        at_s = self._loop.true_s + self._delay_s() + late_s
        if is_in_order:
            at_s = end._free_s = max(at_s, end._free_s)
        self._loop.at(at_s, end.peer.take, payload)

    def _delay_s(self) -> float:
        return LATENCY_S + JITTER_S * self._uniform()
