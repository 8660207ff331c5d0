"""What a token costs the loop in Python, counted in calls: times would be those of the machine.

While the device computes a step, the host accounts for the one before, tells of it, and launches the next: with 256
sequences that is to take less than the step, or the device stands still.
"""

from __future__ import annotations

import random
import sys
from types import FrameType

from engine_runs import greedy, spec
from late_device import LateDevice

from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Add
from pagewire.core.messages import Role
from pagewire.engine import engine_loop, frames
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import policy_of
from pagewire.engine.scheduler import Scheduler

NUM_SEQUENCES = 64
OURS = engine_loop.__file__.rpartition("/engine/")[0]
MOST_CALLS = 40  # of a token, and as much less as a step's own leave it


def calls_of_a_step(loop: EngineLoop) -> int:
    """Return how many of our functions a step and its message call; those of made-up devices are not ours."""
    count = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        name = frame.f_code.co_filename
        count += event == "call" and name.startswith((OURS, "<"))

    sys.setprofile(note)
    try:
        done = loop.step()
        assert done is not None
        frames.pack(done)
    finally:
        sys.setprofile(None)
    assert len(done.records) == NUM_SEQUENCES
    return count


def test_a_token_of_a_step_that_follows_another_costs_few_calls() -> None:
    limits = Limits(
        max_num_batched_tokens=4096, max_num_seqs=NUM_SEQUENCES, chunk_size=4096, block_size=16, max_model_len=1024,
        vocab_size=256,
    )  # fmt: skip
    device = LateDevice(16, random.Random(0))
    scheduler = Scheduler(BlockPool(1000), limits, policy_of(Role.DECODE))
    loop = EngineLoop(scheduler, device, ManualClock(), launcher=device)
    for number in range(NUM_SEQUENCES):
        loop.add(Add(spec=spec(f"request-{number}", [number] * 20, greedy(200))))
    for _ in range(4):
        loop.step()
    before = device.num_ahead
    calls = calls_of_a_step(loop)
    assert device.num_ahead == before + 1
    assert calls / NUM_SEQUENCES < MOST_CALLS
