"""Computes the prefixes that a pod pins, with commands to its running engine, before anybody else may ask it anything.

Knows steps and holds; what is to be pinned is planned in `pin.py`. Invariant: when it returns, every block of every
prefix is in the pool for as long as the engine runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from pagewire.core.engine_messages import Add, Hold, SequenceEnd, StepDone
from pagewire.core.errors import EngineFailed
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine.pin import Pin
from pagewire.engine.running_engine import RunningEngine

log = logging.getLogger(__name__)

# An engine computes nothing without sampling once; one token ends a sequence on pods of every role.
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


async def compute(engine: RunningEngine, pins: Sequence[Pin], hear: Callable[[StepDone], None]) -> None:
    """Compute and pin one prefix after another on an engine that does nothing else; `hear` is told of each step.

    Raises EngineFailed when the engine dies, or cannot compute one.
    """
    listener = _Listener(engine, hear)
    try:
        for number, pin in enumerate(pins):
            name = f"pin-{number}"
            spec = SequenceSpec(
                request_id=name, tokens=pin.tokens, sampling=ONE_TOKEN, root=pin.root, adapter=pin.adapter
            )
            engine.add(Add(spec=spec))
            end = await listener.end()
            if end.error is not None:
                raise EngineFailed(f"prefix {pin.name!r} cannot be pinned: {end.error.message}")
            engine.release(name)  # a prefill pod's engine holds what it computed until it is told so
            held = await engine.hold(Hold(request_id=name, hashes=pin.hashes, for_good=True))
            if len(held.block_ids) != len(pin.hashes):
                raise EngineFailed(f"prefix {pin.name!r}: {len(held.block_ids)} of {len(pin.hashes)} blocks are cached")
            log.info("pinned %r: %d tokens in %d blocks", pin.name, len(pin.tokens), len(pin.hashes))
    finally:
        listener.close()


class _Listener:
    """Waits for the ends of sequences, or for that of the engine."""

    def __init__(self, engine: RunningEngine, hear: Callable[[StepDone], None]) -> None:
        self._hear = hear
        self._exited = engine.exited
        self._ends: list[SequenceEnd] = []
        self._moved = asyncio.Event()
        self._watching = asyncio.create_task(engine.exited.wait())
        self._watching.add_done_callback(lambda _watching: self._moved.set())
        engine.on_step = self._on_step

    async def end(self) -> SequenceEnd:
        """Return the next end; the engine's watch sees to it that there is one, or none will ever be."""
        while not self._ends:
            if self._exited.is_set():
                raise EngineFailed("the engine process died while prefixes were computed")
            await self._moved.wait()
            self._moved.clear()
        return self._ends.pop()

    def close(self) -> None:
        self._watching.cancel()

    def _on_step(self, step: StepDone) -> None:
        self._hear(step)
        self._ends.extend(step.ends)
        self._moved.set()
