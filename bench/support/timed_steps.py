"""Steps for a model runner alone, and how long it takes over them: no queue, no blocks but those that are named."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from unittest import mock

from pagewire.core.clock import MonotonicClock
from pagewire.core.sampling import SamplingParams
from pagewire.engine.assembly import Engine, assemble, warm_up
from pagewire.engine.block import table_of
from pagewire.engine.config import EngineConfig
from pagewire.engine.step import Draw, Grant, Step
from pagewire.kernels.cpu_backend import CpuBackend


def engine_of(config: EngineConfig, *, is_native: bool = True) -> Engine:
    """Load an engine with the native ops, or without, and warm it up."""
    if is_native:
        engine = assemble(config, MonotonicClock())
    else:
        with mock.patch.object(CpuBackend, "load", return_value=None):
            engine = assemble(config, MonotonicClock())
    warm_up(engine)
    return engine


def step_of(engine: Engine, num_sequences: int, start: int, num_tokens: int) -> Step:
    """Grant every sequence `num_tokens` from `start` on, with blocks of its own."""
    per = engine.cache.layout.num_blocks(start + num_tokens)
    draw = Draw(sampling=SamplingParams(temperature=0.0), index=0, position=0)
    return Step(
        grants=tuple(
            Grant(
                request_id=str(number),
                tokens=tuple((number * 7 + at * 13) % 1000 + 5 for at in range(num_tokens)),
                start=start,
                block_ids=table_of(range(1 + number * per, 1 + (number + 1) * per)),
                draw=draw,
            )
            for number in range(num_sequences)
        )
    )


def milliseconds(engine: Engine, steps: Sequence[Step]) -> float:
    """Run steps one after another; return the time of all."""
    start_s = time.perf_counter()
    for step in steps:
        engine.runner.run(step, lambda _step, _group: None)
    return (time.perf_counter() - start_s) * 1e3


def timed(engine: Engine, step: Step) -> Callable[[int], float]:
    """Return what runs a step and returns its milliseconds, in whatever turn."""
    return lambda _turn: milliseconds(engine, [step])
