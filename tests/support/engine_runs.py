"""Drives engines in place: specs in, tokens out, with the pool's bookkeeping proved after every step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagewire.core.block_hash import root_hash
from pagewire.core.clock import MonotonicClock
from pagewire.core.engine_messages import Add, ChunkDone, SequenceEnd, StepDone
from pagewire.core.messages import Role
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine.assembly import Engine, assemble
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig
from pagewire.engine.engine_loop import EngineLoop
from pagewire.kernels.backend import Backend

ROOT = root_hash(model_digest="tiny", kv_fingerprint="tiny")
MAX_STEPS = 10_000
WAIT_S = 60.0


def greedy(max_tokens: int, **changes: Any) -> SamplingParams:
    """Return greedy sampling that only its length ends."""
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **changes})


def spec(
    request_id: str, tokens: Iterable[int], sampling: SamplingParams, *, adapter: str = "", **changes: Any
) -> SequenceSpec:
    """Return a spec on the tests' hash chain, or on that of an adapter."""
    root = root_hash(model_digest="tiny", kv_fingerprint="tiny", adapter=adapter)
    return SequenceSpec(
        request_id=request_id, tokens=tuple(tokens), sampling=sampling, root=root, adapter=adapter, **changes
    )


def engine(
    model: Path,
    role: Role = Role.COLOCATED,
    *,
    pool_fd: int = -1,
    backend: Backend | None = None,
    **settings: Any,
) -> Engine:
    """Return an idle fp32 engine with a small pool, in the file `pool_fd` or anonymous memory.

    `backend` computes in the place of the device's own.
    """
    defaults: dict[str, Any] = {"dtype": "float32", "kv_memory_bytes": 4 << 20, "max_model_len": 256}
    config = EngineConfig(model=str(model), role=role, **{**defaults, **settings})
    return assemble(config, MonotonicClock(), pool_fd, backend)


@dataclass(slots=True)
class Heard:
    """Everything that a loop said."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    chunks: list[ChunkDone] = field(default_factory=list)
    ends: dict[str, SequenceEnd] = field(default_factory=dict)
    steps: int = 0

    def hear(self, done: StepDone) -> None:
        """Take in one step; a gap, a repeat or a second end fails."""
        for record in done.records:
            known = self.tokens.setdefault(record.request_id, [])
            assert record.position == len(known), f"{record} after {len(known)} tokens"
            known.extend(record.tokens)
            if record.finish_reason is not None:
                self.reasons[record.request_id] = record.finish_reason
        self.chunks.extend(done.chunks)
        for end in done.ends:
            assert end.request_id not in self.ends
            self.ends[end.request_id] = end


class Ears:
    """Hears a client's steps and lets a test wait for something in them."""

    def __init__(self, client: EngineClient) -> None:
        self.heard = Heard()
        self._changed = asyncio.Condition()
        self._notices: set[asyncio.Task[None]] = set()
        client.on_step = self._hear

    def _hear(self, done: StepDone) -> None:
        self.heard.hear(done)
        task = asyncio.get_running_loop().create_task(self._notify())
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, holds: Callable[[Heard], bool]) -> Heard:
        """Wait until `holds` of everything heard, which is returned."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: holds(self.heard))
        return self.heard


def run_until_idle(loop: EngineLoop, heard: Heard | None = None) -> Heard:
    """Step until nothing advances; `check()` after every step."""
    heard = heard or Heard()
    for _ in range(MAX_STEPS):
        done = loop.step()
        loop.check()
        if done is None:
            return heard
        heard.steps += 1
        heard.hear(done)
    raise AssertionError(f"not idle after {MAX_STEPS} steps")


def run_all(loop: EngineLoop, specs: Sequence[SequenceSpec]) -> Heard:
    """Add all specs at once and run them to the end."""
    for one in specs:
        loop.add(Add(spec=one))
    return run_until_idle(loop)


def assert_at_rest(loop: EngineLoop) -> None:
    """Every block is free or cached, and nobody is promised any."""
    load = loop.load()
    assert (load.blocks_held, load.blocks_reserved, load.blocks_orphaned) == (0, 0, 0)
    assert load.blocks_free + load.blocks_cached + load.blocks_pinned == load.blocks_total
    loop.check()
