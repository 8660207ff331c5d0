"""What a pod's front needs of a running engine, in whatever process it steps: commands in, steps out, the pool's bytes.

`EngineClient` is the one of production. Commands are carried out in the order in which they were given. Invariant:
every awaited command is answered, or fails with `EngineFailed` once the engine is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from pagewire.core.engine_messages import (
    Add,
    Bind,
    Bound,
    EngineReady,
    Held,
    Hold,
    Join,
    Keep,
    Reserve,
    Reserved,
    StepDone,
    Stop,
)
from pagewire.core.messages import Role
from pagewire.kvtransfer.transport import BlockMemory

OnStep = Callable[[StepDone], None]


class RunningEngine(Protocol):
    """A loaded engine. `on_step` hears of each step, in order, on the event loop; `exited` is set when it is gone.

    An `on_step` that raises has lost tokens of requests that nobody can tell: the engine is ended.
    """

    ready: EngineReady
    exited: asyncio.Event
    on_step: OnStep

    @property
    def pid(self) -> int:
        """The process that steps."""
        ...

    @property
    def pool(self) -> BlockMemory:
        """The bytes of the KV pool."""
        ...

    async def become(self, role: Role) -> None:
        """Have the engine go on with `role`, which is none of `ready.refused_roles`; what still runs is cut off.

        All that it caches comes in steps before this returns.
        """
        ...

    def add(self, command: Add) -> None:
        """Run a sequence; all that follows comes in steps. Raises EngineFailed when the engine is gone."""
        ...

    async def reserve(self, command: Reserve) -> Reserved:
        """Promise the blocks of a prompt; the answer says what is cached, or why not."""
        ...

    async def bind(self, command: Bind) -> Bound:
        """Turn promised blocks into ids."""
        ...

    async def hold(self, command: Hold) -> Held:
        """Pin cached blocks for another pod until `release` of the same id; the answer says which."""
        ...

    def keep(self, command: Keep) -> None:
        """Let the cache know what landed for a reserved sequence, so that other pods can have it."""
        ...

    def join(self, command: Join) -> None:
        """Let a reserved sequence run."""
        ...

    def stop(self, command: Stop) -> None:
        """Let one sequence of a request have no more tokens; one that has ended is ignored."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a sequence or a hold, known or not; returns when no step can touch its blocks any more."""
        ...

    def release(self, request_id: str) -> None:
        """Give back the blocks of a sequence that was handed off, or of a hold."""
        ...

    async def close(self) -> None:
        """End the engine and let go of its pool."""
        ...
