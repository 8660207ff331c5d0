"""Where a command waits for its grammar: compiled in threads beside the steps, within a deadline.

Knows commands as calls; nothing of engines. Invariant: every call that waits is made exactly once, with the error that
it met or None; after `withdraw` it has been made.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from pagewire.core.errors import Cancelled, EngineFailed, InvalidRequest, Overloaded, PagewireError
from pagewire.core.sampling import Grammar

log = logging.getLogger(__name__)

COMPILERS = 2
DEADLINE_S = 10.0  # the library's own bounds end a compilation in a fraction of it

Go = Callable[[PagewireError | None], None]


class Compiler(Protocol):
    """What compiles grammars."""

    def knows(self, grammar: Grammar) -> bool:
        """True when there is nothing to compile."""
        ...

    def compile(self, grammar: Grammar) -> object:
        """Compile, and remember it; raises InvalidRequest."""
        ...


@dataclass(slots=True, eq=False)
class _Waiting:
    go: Go
    work: Future[None] | None = None
    timer: threading.Timer | None = None


class GrammarDesk:
    """The commands that wait, by the request that they are about."""

    def __init__(self, compiler: Compiler, deadline_s: float = DEADLINE_S) -> None:
        self._compiler = compiler
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(COMPILERS, thread_name_prefix="grammar")
        self._lock = threading.Lock()  # held while a call is made, so that `withdraw` comes before it or after
        self._waiting: dict[str, _Waiting] = {}

    def submit(self, request_id: str, grammar: Grammar | None, go: Go) -> None:
        """Make the call at once where there is nothing to compile, else from another thread."""
        if grammar is None or self._compiler.knows(grammar):
            go(None)
            return
        waiting = _Waiting(go)
        waiting.timer = threading.Timer(self._deadline_s, self._expire, (request_id, waiting, grammar))
        waiting.timer.daemon = True
        with self._lock:
            self._waiting[request_id] = waiting
            waiting.work = self._threads.submit(self._compile, request_id, waiting, grammar)
        waiting.timer.start()

    def withdraw(self, request_id: str) -> None:
        """Make the call with `Cancelled` if it still waits."""
        with self._lock:
            waiting = self._waiting.get(request_id)
        if waiting is not None:
            self._settle(request_id, waiting, Cancelled("aborted while its grammar was compiled"))

    def withdraw_all(self) -> None:
        """Make all calls that still wait with `Cancelled`."""
        with self._lock:
            names = tuple(self._waiting)
        for request_id in names:
            self.withdraw(request_id)

    def close(self) -> None:
        """Compile nothing more."""
        with self._lock:
            timers = [waiting.timer for waiting in self._waiting.values() if waiting.timer is not None]
            self._waiting.clear()
        for timer in timers:
            timer.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, request_id: str, waiting: _Waiting, grammar: Grammar) -> None:
        error: PagewireError | None = None
        try:
            self._compiler.compile(grammar)
        except PagewireError as refused:
            error = refused
        except Exception as broken:  # whatever the library raises ends the one request, by name
            log.exception("a grammar could not be compiled")
            error = EngineFailed(f"{type(broken).__name__}: {broken}")
        self._settle(request_id, waiting, error)

    def _expire(self, request_id: str, waiting: _Waiting, grammar: Grammar) -> None:
        if waiting.work is not None and waiting.work.cancel():
            self._settle(request_id, waiting, Overloaded("too many grammars are to be compiled", retry_after_s=1.0))
            return
        text = f"{grammar.field} takes more than {self._deadline_s:g} s to compile"
        self._settle(request_id, waiting, InvalidRequest(text, field=grammar.field))

    def _settle(self, request_id: str, waiting: _Waiting, error: PagewireError | None) -> None:
        with self._lock:
            if self._waiting.get(request_id) is not waiting:
                return
            del self._waiting[request_id]
            if waiting.timer is not None:
                waiting.timer.cancel()
            if waiting.work is not None:
                waiting.work.cancel()
            waiting.go(error)
