"""A real engine that steps in a thread of the test's process, where `EngineClient` has a process: starts in no time.

Loop, scheduler, pool and model are the real ones, and so is the memory that the front writes. What it cannot show:
sockets, frames and processes (tests/engine/test_process.py does). In return a test may stop it between two steps.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from engine_runs import engine as build_engine

from pagewire.core.engine_messages import (
    Add,
    Became,
    Bind,
    Bound,
    EngineMessage,
    Freed,
    Held,
    Hold,
    Join,
    Keep,
    Reserve,
    Reserved,
    StepDone,
    Stop,
)
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Role
from pagewire.engine.assembly import Engine
from pagewire.kvtransfer.memory import PoolMemory

Answer = TypeVar("Answer", bound=EngineMessage)


class ThreadedEngine:
    """A `RunningEngine`. `allow(n)` lets it compute n steps more and no further, `let_go()` as many as there are."""

    def __init__(self, engine: Engine, pool_fd: int | None = None) -> None:
        self.engine = engine
        self.loop = engine.loop
        self.ready = engine.ready
        self.pid = os.getpid()
        self.pool = PoolMemory(
            memoryview(engine.cache.memory[0].numpy().data),
            block_bytes=engine.ready.layout.block_bytes,
            num_blocks=engine.ready.num_blocks,
            fd=pool_fd,
        )
        self.exited = asyncio.Event()
        self.on_step: Callable[[StepDone], None] = lambda step: None
        self.counts: Callable[[StepDone], bool] = lambda step: bool(step.records or step.chunks)  # as one of `allow`'s
        self.num_steps = 0
        self.answering = asyncio.Event()  # while cleared, reservations are made and their answers stay on the way
        self.answering.set()
        self._asyncio = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._steps_left: float = math.inf
        self._closed = False
        self._waiting: dict[str, list[asyncio.Future[EngineMessage]]] = {}
        self.loop.on_group = self.tell_group
        self._thread = threading.Thread(target=self._run, name="engine")
        self._thread.start()

    @classmethod
    def assemble(cls, model: Path, role: Role, **settings: Any) -> ThreadedEngine:
        """Return one whose pool lies in a sealed file, as an engine process's does."""
        pool_fd = os.memfd_create("pagewire-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            engine = cls(build_engine(model, role, pool_fd=pool_fd, **settings), pool_fd)
        finally:
            os.close(pool_fd)
        engine.pool.seal()
        return engine

    # ------------------------------------------------------------------------------------------------ for the test

    def allow(self, num_steps: float) -> None:
        """Compute this many steps from now on, then stand still as in an endless step."""
        with self._changed:
            self._steps_left = num_steps
            self._changed.notify_all()

    def let_go(self) -> None:
        """Stand still no more."""
        self.allow(math.inf)

    def die(self) -> None:
        """End as a killed process does."""
        self._close()
        self.exited.set()
        for waiting in self._waiting.values():
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(EngineFailed("killed by the test"))
        self._waiting.clear()

    def tell_group(self, step: StepDone) -> None:
        """Tell of a layer group, from within a step; a test may put itself in between."""
        self._post(self._tell, step)

    # ----------------------------------------------------------------------------------------------- RunningEngine

    async def become(self, role: Role) -> None:
        self._alive()
        self.loop.become(role)
        await self._answer(role.value, None)

    def add(self, command: Add) -> None:
        self._alive()
        self.loop.add(command)

    async def reserve(self, command: Reserve) -> Reserved:
        self._alive()
        reserved = self.loop.reserve(command)
        await self.answering.wait()
        return await self._answer(command.spec.request_id, reserved)

    async def bind(self, command: Bind) -> Bound:
        self._alive()
        return await self._answer(command.request_id, self.loop.bind(command))

    async def hold(self, command: Hold) -> Held:
        self._alive()
        return await self._answer(command.request_id, self.loop.hold(command))

    def keep(self, command: Keep) -> None:
        self._alive()
        self.loop.keep(command)

    def join(self, command: Join) -> None:
        self._alive()
        self.loop.join(command)

    def stop(self, command: Stop) -> None:
        self._alive()
        self.loop.stop(command)

    async def abort(self, request_id: str) -> None:
        self._alive()
        freed = self.loop.abort(request_id)
        await self._answer(request_id, freed)

    def release(self, request_id: str) -> None:
        self._alive()
        self.loop.release(request_id)

    async def close(self) -> None:
        if not self._closed:
            self._close()
            self.exited.set()
        await asyncio.to_thread(self._thread.join)
        self.engine.close()
        self.pool.close()

    # -------------------------------------------------------------------------------------------------------- inside

    def _alive(self) -> None:
        if self._closed:
            raise EngineFailed("the engine is gone")

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.loop.close()

    async def _answer(self, request_id: str, answer: Answer | None) -> Answer:
        # Through the loop's queue, behind the steps that were computed before it: as through a socket.
        future: asyncio.Future[EngineMessage] = self._asyncio.create_future()
        self._waiting.setdefault(request_id, []).append(future)
        if answer is not None:
            self._asyncio.call_soon_threadsafe(self._settle, request_id, future, answer)
        return await future  # type: ignore[return-value]

    def _settle(self, request_id: str, future: asyncio.Future[EngineMessage], answer: EngineMessage) -> None:
        waiting = self._waiting.get(request_id, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop(request_id, None)
        if not future.done():
            future.set_result(answer)

    def _run(self) -> None:
        while self.loop.wait_for_work():
            with self._changed:
                self._changed.wait_for(lambda: self._steps_left > 0 or self._closed)
                if self._closed:
                    return
            done = self.loop.step()
            if done is not None:
                if self.counts(done):
                    with self._changed:
                        self._steps_left -= 1
                self._post(self._hear, done)
            for freed in self.loop.take_freed():
                self._post(self._free, freed)
            for role in self.loop.take_became():
                self._post(self._come, Became(role=role))

    def _post(self, what: Callable[..., None], message: StepDone | Freed | Became) -> None:
        if not self._asyncio.is_closed():
            self._asyncio.call_soon_threadsafe(what, message)

    def _hear(self, step: StepDone) -> None:
        if not self._closed:
            self.num_steps += self.counts(step)
            self._tell(step)

    def _tell(self, step: StepDone) -> None:
        if not self._closed:
            try:
                self.on_step(step)
            except Exception:
                self.die()  # as `EngineClient` does
                raise

    def _come(self, became: Became) -> None:
        for future in list(self._waiting.get(became.role.value, ())):
            self._settle(became.role.value, future, became)

    def _free(self, freed: Freed) -> None:
        for future in list(self._waiting.get(freed.request_id, ())):
            self._settle(freed.request_id, future, freed)
