"""An engine's commands, carried out in the order in which they came, and answered at once.

Knows messages and the loop; nothing of sockets and of processes. Invariant: every command that has an answer is
answered by the loop, or by the desk in its name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from pagewire.core.engine_messages import (
    Abort,
    Add,
    Become,
    Bind,
    EngineMessage,
    Hold,
    Join,
    Keep,
    Ping,
    Release,
    Reserve,
    Reserved,
    Stop,
)
from pagewire.core.errors import Cancelled, ErrorInfo, PagewireError, PeerMismatch
from pagewire.core.sampling import Grammar
from pagewire.engine.engine_loop import EngineLoop


class Connection(Protocol):
    """The way to the front."""

    def send(self, message: EngineMessage) -> None:
        """Send a message."""
        ...

    def receive(self) -> EngineMessage | None:
        """Return the next message, None once the front has closed."""
        ...


class Desk(Protocol):
    """Where a command waits until its grammar is compiled."""

    def submit(self, request_id: str, grammar: Grammar | None, go: Callable[[PagewireError | None], None]) -> None:
        """Have `go` called once the grammar is there, or cannot be."""
        ...

    def withdraw(self, request_id: str) -> None:
        """Whoever waits under that name is called with Cancelled."""
        ...

    def withdraw_all(self) -> None:
        """Whoever waits is called with Cancelled."""
        ...

    def close(self) -> None:
        """Compile nothing more."""
        ...


class CommandReader:
    """Reads commands until the front closes, then closes the loop; `error` is what ended it otherwise."""

    def __init__(self, front: Connection, loop: EngineLoop, desk: Desk) -> None:
        self._front = front
        self._loop = loop
        self._desk = desk
        self.error: Exception | None = None

    def run(self) -> None:
        """Serve until the front closes or something breaks."""
        try:
            while (message := self._front.receive()) is not None:
                self.serve(message)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it closed before it was answered
        except Exception as error:  # carried to the main thread, which ends the process with it
            self.error = error
        finally:
            self._desk.close()
            self._loop.close()

    def serve(self, message: EngineMessage) -> None:
        """Carry out a command; raises PeerMismatch on what is none."""
        match message:
            case Add(spec=spec):
                self._desk.submit(spec.request_id, spec.sampling.grammar, partial(self._add, message))
            case Reserve(spec=spec):
                self._desk.submit(spec.request_id, spec.sampling.grammar, partial(self._reserve, message))
            case Bind():
                self._front.send(self._loop.bind(message))
            case Hold():
                self._front.send(self._loop.hold(message))
            case Keep():
                self._loop.keep(message)
            case Join():
                self._loop.join(message)
            case Stop():
                self._loop.stop(message)
            case Abort():
                self._desk.withdraw(message.request_id)
                freed = self._loop.abort(message.request_id)
                if freed is not None:
                    self._front.send(freed)
            case Release():
                self._loop.release(message.request_id)
            case Become():
                self._desk.withdraw_all()  # of the role before nothing is left
                self._loop.become(message.role)
            case Ping():
                self._loop.ping(message.nonce)
            case _:
                raise PeerMismatch(f"a front does not send {type(message).__name__}")

    def _add(self, command: Add, error: PagewireError | None) -> None:
        if error is None:
            self._loop.add(command)
        elif not isinstance(error, Cancelled):  # the abort has an answer of its own
            self._loop.refuse(command.spec.request_id, error)

    def _reserve(self, command: Reserve, error: PagewireError | None) -> None:
        if error is None:
            answer = self._loop.reserve(command)
        else:
            answer = Reserved(request_id=command.spec.request_id, error=ErrorInfo.of(error))
        self._front.send(answer)
