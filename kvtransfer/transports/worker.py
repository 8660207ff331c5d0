"""One thread beside the event loop for calls of a library that block: one after another, in the order of asking.

Knows nothing of what it runs. Invariants: a call that began runs to its end, whoever stopped waiting for it; after
`close` nothing begins, and whoever waits is told at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from pagewire.core.errors import StreamLost

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """A thread that is started by its first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_closed = False

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the call returns. Raises what it raises, and StreamLost when `close` comes first."""
        call, ended = self._begin(function, *args, **kwargs)
        self._waiting.add(ended)
        try:
            await ended
        finally:
            self._waiting.discard(ended)
        return call.result()

    async def finish(
        self, give_up: Callable[[], None], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `run`, but return only when the call has ended, also when cancelled: `give_up` may hasten that then."""
        call, ended = self._begin(function, *args, **kwargs)
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError as error:
                cancelled = error
                give_up()
        if cancelled is not None:
            raise cancelled
        return call.result()

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Let nothing begin any more but `last`; does not wait for what runs."""
        if self._is_closed:
            return
        self._is_closed = True
        if last is not None:
            self._threads.submit(last)
        self._threads.shutdown(wait=False)
        for ended in self._waiting:
            if not ended.done():
                ended.set_exception(StreamLost(f"{self._name} is closed"))

    def _begin(
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Future[T], asyncio.Future[None]]:
        if self._is_closed:
            raise StreamLost(f"{self._name} is closed")

        def call() -> T:
            if self._is_closed:
                raise StreamLost(f"{self._name} is closed")
            return function(*args, **kwargs)

        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future = self._threads.submit(call)
        future.add_done_callback(lambda _: _tell(ended))
        return future, ended


def _tell(ended: asyncio.Future[None]) -> None:
    """Say from the thread that a call has ended; nobody listens on a loop that is closed."""
    with contextlib.suppress(RuntimeError):
        ended.get_loop().call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))
