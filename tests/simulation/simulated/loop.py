"""An event loop in virtual time on which several processes run, each with its own clock, and any of them may stop.

A process is a context: whatever a task starts belongs to its task's process, as `PROCESS` says. Within one process
callbacks run in the order in which they were scheduled, as asyncio promises; which process runs next is drawn from the
seed, callback by callback, as the machines of a cluster would have it. Time passes only when nobody can run.

Knows no network and no product. Invariants: the same seed and the same program give the same order; nothing of a dead
process runs, not even what would clean up after it; nothing of a frozen one does until it is thawed.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Callback = Callable[..., object]

EPOCH_S = 1_700_000_000.0  # of the wall clock, when a world begins


class Process:
    """One simulated process. Its clock runs at `rate` times the true one; its wall clock is `wall_s` seconds wrong."""

    def __init__(self, loop: SimulatedLoop, name: str, *, rate: float = 1.0, wall_s: float = 0.0) -> None:
        self.name = name
        self.rate = rate
        self.wall_s = wall_s
        self.is_alive = True
        self.lag_s = 0.0  # by which each of its timers is late: a machine that is too busy
        self.ready: deque[events.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []  # kept, so that nothing of a dead process is ever collected
        self._loop = loop
        self._is_frozen = False
        self.is_listed = False  # among those that can run
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    @property
    def is_frozen(self) -> bool:
        """True between `freeze` and `thaw`."""
        return self._is_frozen

    def now(self) -> float:
        """Return what its monotonic clock says, in seconds."""
        return self._loop.true_s * self.rate

    def true_s(self, when_s: float) -> float:
        """Return the first true time at which its monotonic clock says `when_s`, or the one at which it notices."""
        true_s = when_s / self.rate
        while true_s * self.rate < when_s:  # or who waits for a moment would wait for it for ever
            true_s = math.nextafter(true_s, math.inf)
        return true_s + self.lag_s

    def wall(self) -> float:
        """Return what its wall clock says, in seconds since the epoch."""
        return EPOCH_S + self._loop.true_s + self.wall_s

    def kill(self) -> None:
        """End it where it stands, as SIGKILL does."""
        self.is_alive = False
        self.ready.clear()

    def freeze(self) -> None:
        """Let nothing of it run, as SIGSTOP does."""
        self._is_frozen = True

    def thaw(self) -> None:
        """Let it go on."""
        self._is_frozen = False
        self._loop.list(self)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task of this process."""
        task = self._loop.create_task(coroutine, context=self.context)
        self.tasks.append(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.on_error(self, {"message": "a main task failed", "exception": error})

    def run(self, callback: Callable[..., T], *args: object) -> T:
        """Call something at once as this process."""
        before, self._loop.current = self._loop.current, self
        try:
            return self.context.copy().run(callback, *args)
        finally:
            self._loop.current = before

    def soon(self, callback: Callback, *args: object) -> None:
        """Have something called as this process."""
        self._loop.call_soon(callback, *args, context=self.context)


PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class Stuck(Exception):
    """The world's main task waits, and nothing will ever happen."""


class _Task(asyncio.Task[T]):
    """A task that sets of tasks hold in the order in which they were made, and not by where it lies in memory."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop. `main` belongs to the process `world`, whose clock is the true one."""

    def __init__(self, draw: Random) -> None:
        super().__init__()
        self.true_s = 0.0
        self.num_callbacks = 0
        self._below = draw.random
        self._runnable: list[Process] = []
        self._timers: list[tuple[float, int, events.Handle, Process]] = []
        self._num_timers = 0
        self._num_tasks = 0
        self.current = self.world = Process(self, "world")
        self.set_task_factory(self._numbered)
        self.on_error: Callable[[Process, dict[str, Any]], None] = lambda process, context: None
        self.connect: Callable[..., Coroutine[Any, Any, Any]] | None = None  # what `create_connection` does

    def __del__(self, _warn: object = None) -> None:
        """There is nothing to close."""

    # ----------------------------------------------------------------------------------------------- what asyncio asks

    def time(self) -> float:
        """Return the monotonic clock of whoever asks."""
        return self.current.now()

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> events.Handle:
        """See asyncio; goes to the process whose context it is."""
        handle = events.Handle(callback, args, self, context)
        self._queue(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> events.TimerHandle:
        """See asyncio; `when` is on the clock of the process whose context it is."""
        handle: Any = events.TimerHandle(when, callback, args, self, context)
        process: Process = handle._context.get(PROCESS, self.world)
        handle._scheduled = True
        self._num_timers += 1
        heapq.heappush(self._timers, (process.true_s(when), self._num_timers, handle, process))
        return cast("events.TimerHandle", handle)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> events.TimerHandle:
        """See asyncio."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """Cancelled timers are passed over when their time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell the world of an error that nobody handled."""
        self.on_error(self.current, context)

    def get_debug(self) -> bool:
        """There is none: it would slow a world down."""
        return False

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Open a simulated TCP connection."""
        assert self.connect is not None, "this world has no TCP"
        return await self.connect(protocol_factory, host, port)

    # ------------------------------------------------------------------------------------------------------- the world

    def at(self, true_s: float, callback: Callback, *args: object) -> None:
        """Call something as the world, at a true time that is not over."""
        self._num_timers += 1
        handle = events.Handle(callback, args, self, self.world.context)
        heapq.heappush(self._timers, (max(true_s, self.true_s), self._num_timers, handle, self.world))

    def list(self, process: Process) -> None:
        """A process may have something to run."""
        if process.ready and not process.is_listed and process.is_alive and not process.is_frozen:
            process.is_listed = True
            self._runnable.append(process)

    def run_world(self, main: Coroutine[Any, Any, T], most_callbacks: int = 100_000) -> T:
        """Run until `main` returns, and return its result; what still runs then is left where it stands.

        Raises Stuck when it waits for what will never come, or when more callbacks run than a world may have.
        """
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            task = self.world.spawn(main)
            while not task.done():
                if not self._run_once_more() or self.num_callbacks > most_callbacks:
                    raise Stuck(f"after {self.true_s} s and {self.num_callbacks} callbacks")
            return task.result()
        finally:
            events._set_running_loop(before)

    def _numbered(self, _loop: Any, coroutine: Any, context: contextvars.Context | None = None) -> _Task[Any]:
        self._num_tasks += 1
        task = _Task(coroutine, loop=self, context=context)
        asyncio.tasks._unregister_task(task)  # from where those of all worlds would meet, whose numbers are the same
        task.number = self._num_tasks
        return task

    def _run_once_more(self) -> bool:
        runnable = self._runnable
        while not runnable:
            if not self._timers:
                return False
            when_s, _, handle, process = heapq.heappop(self._timers)
            if handle._cancelled or not process.is_alive:
                continue
            self.true_s = max(self.true_s, when_s)
            process.ready.append(handle)
            self.list(process)
        at = int(self._below() * len(runnable)) if len(runnable) > 1 else 0
        process = runnable[at]
        if process.ready and not process.is_frozen:
            handle = process.ready.popleft()
            if not handle._cancelled:
                self.num_callbacks += 1
                self.current = process
                handle._run()
                self.current = self.world
        if not process.ready or process.is_frozen:
            process.is_listed = False
            if runnable[at] is process:  # it may have listed others behind itself, never before
                runnable[at] = runnable[-1]
                runnable.pop()
        return True

    def _queue(self, handle: Any) -> None:
        process: Process = handle._context.get(PROCESS, self.world)
        if process.is_alive:
            process.ready.append(handle)
            if not process.is_listed:
                self.list(process)
