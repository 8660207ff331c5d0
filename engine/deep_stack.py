"""A call on a stack of its own that is deep: of native code that descends into what a caller wrote, where a stack that
overflows ends the process.

Knows nothing of what is called. Invariant: the caller's thread waits, and hears what the call returns or raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from pagewire.core.errors import Overloaded

T = TypeVar("T")

STACK_BYTES = 64 << 20  # of addresses; memory is taken as it is touched

_starting = threading.Lock()  # the size is the process's


def on_deep_stack(call: Callable[[], T]) -> T:
    """Return what `call` returns, from a thread whose stack has STACK_BYTES; raises Overloaded where none can begin."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # the caller's, whatever it is
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="deep stack", daemon=True)
    with _starting:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:  # no thread more, or no addresses for its stack
            raise Overloaded(f"nothing can be compiled now: {error}", retry_after_s=1.0) from error
        finally:
            threading.stack_size(before)
    return outcome.result()
