"""An engine loop on a made-up model, without tensors: what happens when is the test's to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagewire.core.clock import ManualClock
from pagewire.core.messages import Role
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.limits import Limits
from pagewire.engine.moves import Move
from pagewire.engine.role_policy import policy_of
from pagewire.engine.runner import OnGroup
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.step import Computed, Step


class MadeUpModel:
    """Says 1 for the first sequence of a request, 2 for the second and so on.

    `during` runs inside a step, `poison` names requests that break one.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.during: Callable[[Step], None] = lambda step: None
        self.poison: set[str] = set()
        self.is_broken = False  # for good
        self.unlucky_batches = 0
        self.steps: list[Step] = []
        self.rehearsals: list[float] = []  # when they began
        self.rehearsal_s = 0.0
        self.num_recaptures = 0

    def rehearse(self) -> None:
        """Take the time that a rehearsal takes."""
        if self.is_broken:
            raise RuntimeError("the device has failed")
        self.rehearsals.append(self.clock.now())
        self.clock.advance(self.rehearsal_s)

    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        """Take the time that the step's tokens take."""
        self.steps.append(step)
        self.during(step)
        if self.is_broken:
            raise RuntimeError("the device has failed")
        self.clock.advance(0.001 * step.num_tokens)
        if self.unlucky_batches and len(step.grants) > 1:
            self.unlucky_batches -= 1
            raise RuntimeError("a bad batch")
        for grant in step.grants:
            if grant.request_id in self.poison:
                raise RuntimeError(f"{grant.request_id} is poison")
        return {name: Computed(token=1 + draw.index) for grant in step.grants for name, draw in grant.draws().items()}


class IdleMover:
    """Moves nothing: there are no bytes."""

    def move(self, moves: Sequence[Move]) -> None:
        """Do nothing."""


class Rig:
    """A loop on the made-up model."""

    def __init__(self, role: Role = Role.DECODE, num_blocks: int = 32) -> None:
        limits = Limits(
            max_num_batched_tokens=64, max_num_seqs=8, chunk_size=32, block_size=16, max_model_len=200, vocab_size=100
        )
        clock = ManualClock()
        self.model = MadeUpModel(clock)
        self.scheduler = Scheduler(BlockPool(num_blocks), limits, policy_of(role))
        self.loop = EngineLoop(self.scheduler, self.model, clock, IdleMover())
