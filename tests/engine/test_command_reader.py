"""The engine's commands, on a made-up model: what waits for its grammar when the role changes is of the role before."""

from __future__ import annotations

import threading

from engine_runs import spec
from made_up_engine import IdleMover, MadeUpModel

from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Become, EngineMessage, Reserve, Reserved
from pagewire.core.messages import Role
from pagewire.core.sampling import Grammar, GrammarKind, SamplingParams
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.command_reader import CommandReader
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.grammar_desk import GrammarDesk
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import policy_of
from pagewire.engine.role_terms import RoleTerms
from pagewire.engine.scheduler import Scheduler

LIMITS = Limits(
    max_num_batched_tokens=64, max_num_seqs=8, chunk_size=32, block_size=16, max_model_len=200, vocab_size=100
)


class Front:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[EngineMessage] = []

    def send(self, message: EngineMessage) -> None:
        self.told.append(message)

    def receive(self) -> EngineMessage | None:
        return None


class SlowCompiler:
    """Compiles once `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()

    def knows(self, _grammar: Grammar) -> bool:
        return False

    def compile(self, _grammar: Grammar) -> None:
        self.begun.set()
        assert self.go.wait(10)


def test_what_waits_for_its_grammar_does_not_outlive_the_role_that_it_was_for() -> None:
    scheduler, clock = Scheduler(BlockPool(32), LIMITS, policy_of(Role.PREFILL)), ManualClock()
    front, compiler = Front(), SlowCompiler()
    roles = {
        role: RoleTerms(policy=policy_of(role), limits=LIMITS, least_prefill=1) for role in (Role.PREFILL, Role.DECODE)
    }
    loop, desk = EngineLoop(scheduler, MadeUpModel(clock), clock, IdleMover(), roles=roles), GrammarDesk(compiler)
    reader = CommandReader(front, loop, desk)
    guided = SamplingParams(max_tokens=20, temperature=0.0, grammar=Grammar(kind=GrammarKind.REGEX, text="a+"))
    reader.serve(Reserve(spec=spec("r", range(40), guided)))
    assert compiler.begun.wait(10)
    reader.serve(Become(role=Role.DECODE))
    (reserved,) = front.told
    assert isinstance(reserved, Reserved)
    assert reserved.error is not None
    assert reserved.error.cause == "cancelled"
    loop.step()
    assert loop.take_became() == (Role.DECODE,)
    compiler.go.set()
    reader.run()  # the front has closed
    desk._threads.shutdown()
    assert (dict(scheduler.sequences), scheduler.pool.num_reserved, len(front.told)) == ({}, 0, 1)
