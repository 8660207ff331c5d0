"""An engine process: the product's loop, scheduler, pool and command reader, on the model that can be checked.

Steps take virtual time; commands come over a pipe, in order, and are carried out while a step computes, as the real
process's reader thread does. What the front has of it is the product's `EngineClient`, over that pipe. It
watches that a block which a front writes is held by a sequence whose KV is on its way here, and by nobody else; one
that it sends, by somebody, and with nothing behind its last slot; one that a step writes, by its own sequence.

Invariant: what a front and an engine say to one another arrives whole and in order, as long as both live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from guesses import Guesses

from pagewire.core.block_hash import HASH_VERSION
from pagewire.core.clock import MonotonicClock
from pagewire.core.engine_messages import Add, Became, EngineMessage, EngineReady, Pong, Reserve, StepDone
from pagewire.core.errors import PagewireError
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.messages import Role
from pagewire.core.sampling import Grammar
from pagewire.engine import frames, runner
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.client import EngineClient
from pagewire.engine.command_reader import CommandReader
from pagewire.engine.config import EngineConfig
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.limits import Limits
from pagewire.engine.role_policy import ROLES, policy_of
from pagewire.engine.role_terms import RoleTerms
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.sequence import Sequence, State
from pagewire.kvtransfer.memory import PoolMemory
from simulated.loop import PROCESS, Process, SimulatedLoop
from simulated.model import (
    BLOCK,
    BLOCK_BYTES,
    FIRST_TOKEN,
    LAYERS,
    LAYOUT,
    SPAN,
    VOCAB_SIZE,
    CheckableModel,
    answer,
)

MAX_MODEL_LEN = 512
STALL_S = 8.0
PIPE_S = 0.00005
STEP_S = 0.004
TOKEN_S = 0.0001

Breach = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """What engines of a world are like."""

    num_blocks: int = 64
    chunk_size: int = 64
    max_num_seqs: int = 8
    most_drafted: int = 0


def fingerprint(tokenizer_digest: str) -> Fingerprint:
    """Return what the pods of a world serve."""
    return Fingerprint(
        model_name="checkable",
        model_digest="m",
        tokenizer_digest=tokenizer_digest,
        kv_fingerprint=LAYOUT.fingerprint(),
        kv_layout="simulated",
        block_size=BLOCK,
        hash_version=HASH_VERSION,
        max_model_len=MAX_MODEL_LEN,
    )


def _said_by(sequence: Sequence, place: int) -> int:
    sampling, is_greedy = sequence.spec.sampling, not sequence.spec.sampling.temperature
    stops, most = sampling.stop_token_ids, sampling.max_tokens
    said, _ = answer(sequence.spec.tokens, most, stops, sampling.seed, is_greedy, sequence.index)
    return said[min(place, len(said) - 1)]


class _NoDesk:
    """There are no grammars: nobody waits."""

    def submit(self, request_id: str, grammar: Grammar | None, go: Callable[[PagewireError | None], None]) -> None:
        """Go."""
        go(None)

    def withdraw(self, request_id: str) -> None:
        """Nobody waits."""

    def withdraw_all(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing is open."""


class WatchedMemory(PoolMemory):
    """A front's mapping of its engine's pool, whose engine is asked whether a block may be touched."""

    watcher: EngineProcess | None = None
    num_parts = 1

    def split(self, count: int) -> PoolMemory:
        """See `PoolMemory`."""
        if count == 1:
            return self
        if count not in self._splits:
            parts = WatchedMemory(
                self._buffer, block_bytes=self._block_bytes // count, num_blocks=self._num_blocks * count
            )
            parts.watcher, parts.num_parts = self.watcher, count
            self._splits[count] = parts
        return self._splits[count]

    def read(self, block_id: int) -> memoryview:
        """See `PoolMemory`."""
        data = super().read(block_id)
        if self.watcher is not None:
            self.watcher.is_read(block_id // self.num_parts, data)
        return data

    def write_summed_from(self, block_id: int, address: int, seed: int) -> int:
        """See `PoolMemory`."""
        if self.watcher is not None:
            self.watcher.is_written(block_id // self.num_parts)
        return super().write_summed_from(block_id, address, seed)


class EngineProcess:
    """One engine; `client` is what its front has of it. `slowness` is what its steps are multiplied with."""

    def __init__(
        self, loop: SimulatedLoop, process: Process, front: Process, role: Role, plan: EnginePlan,
        tokenizer_digest: str, draw: Random, breach: Breach,
    ) -> None:  # fmt: skip
        self.process = process
        self.slowness = 1.0
        self.on_reserve: Callable[[str], None] = lambda request_id: None  # hears of all that is let in
        self._sim = loop
        self._front = front
        self._uniform = draw.random
        self._breach = breach
        self.model = CheckableModel(plan.num_blocks)
        limits = Limits(
            max_num_batched_tokens=4 * plan.chunk_size,
            max_num_seqs=plan.max_num_seqs,
            chunk_size=plan.chunk_size,
            block_size=BLOCK,
            max_model_len=MAX_MODEL_LEN,
            vocab_size=VOCAB_SIZE,
        )
        roles = {each: RoleTerms(policy=policy_of(each), limits=limits, least_prefill=BLOCK) for each in ROLES}
        self.scheduler = Scheduler(BlockPool(plan.num_blocks), limits, policy_of(role))
        if plan.most_drafted:
            self.scheduler.speculation = Guesses(plan.most_drafted, _said_by, wrong=FIRST_TOKEN)
        self.loop = EngineLoop(self.scheduler, self.model, MonotonicClock(), self.model.memory, roles=roles)
        self.loop.on_group = self.send
        self.ready = EngineReady(
            layout=LAYOUT,
            num_blocks=plan.num_blocks,
            fingerprint=fingerprint(tokenizer_digest),
            eos_token_ids=(),
            vocab_size=VOCAB_SIZE,
            layer_groups=LAYERS,
        )
        self.pool = WatchedMemory(
            memoryview(self.model.memory.bytes), block_bytes=BLOCK_BYTES, num_blocks=plan.num_blocks
        )
        self.pool.watcher = self
        self._commands = CommandReader(self, self.loop, _NoDesk())
        self._work = asyncio.Event()
        self._handle = _ProcessHandle(self)
        self._reader = asyncio.StreamReader(loop=loop)

    def start(self) -> EngineClient:
        """Step from now on; return the front's side. Call as the front."""
        self.process.spawn(self._run())
        config = EngineConfig(model="", role=Role.COLOCATED, stall_s=STALL_S)
        return EngineClient(
            cast("Any", self._handle), self._reader, cast("Any", _Writer(self)), self.ready, self.pool, config
        )

    def die(self) -> None:
        """End, as a killed process does; its front hears of it."""
        if self.process.is_alive:
            self.process.kill()
            self._sim.at(self._sim.true_s + PIPE_S, self._tell_end)

    # ------------------------------------------------------------------------------------------------- what it watches

    def is_written(self, block_id: int) -> None:
        """A front writes a block that came from another pod."""
        writer = PROCESS.get()
        if writer is not self._front:
            self._breach(f"{writer.name} writes a block of {self._front.name}")
        owners = [each for each in self.scheduler.sequences.values() if block_id in each.block_table]
        if [each.state for each in owners] != [State.RESERVED]:
            held = [(each.name, each.state.value) for each in owners]
            self._breach(f"{self._front.name} writes block {block_id}, which is held by {held}")

    def is_read(self, block_id: int, data: memoryview) -> None:
        """A block, or a part of one, is read: by its own front, to be sent."""
        if PROCESS.get() is not self._front:
            return
        if not self.scheduler.pool._blocks[block_id].references:
            self._breach(f"{self._front.name} reads block {block_id}, which nobody holds")
        for owner in self.scheduler.sequences.values():
            if owner.block_table and owner.block_table[-1] == block_id and self.scheduler.policy.hands_off:
                used = owner.num_given - (len(owner.block_table) - 1) * BLOCK
                if used < BLOCK and any(any(data[at + used * 4 : at + SPAN]) for at in range(0, len(data), SPAN)):
                    self._breach(f"{self._front.name} sends more of {owner.name} than the {used} slots of its tail")

    # -------------------------------------------------------------------------------------------------------- the pipe

    def receive(self) -> EngineMessage | None:
        """Nothing is waited for here: commands come by `take`."""
        raise NotImplementedError

    def send(self, message: EngineMessage) -> None:
        """Tell the front."""
        self._sim.at(self._sim.true_s + PIPE_S, self._front.soon, self._reader.feed_data, frames.pack(message))

    def take(self, data: bytes) -> None:
        """Carry out a command."""
        message = frames.unpack(data[frames.HEADER_BYTES :])
        if isinstance(message, Reserve | Add):
            self.on_reserve(message.spec.request_id)
        self._commands.serve(message)
        self._work.set()

    def _tell_end(self) -> None:
        self._handle.returncode = -9
        self._front.soon(self._reader.feed_eof)
        self._front.soon(self._handle.exited.set)

    # -------------------------------------------------------------------------------------------------------- the loop

    async def _run(self) -> None:
        while True:
            self._work.clear()
            done = await self._step()
            if done is not None:
                self.send(done)
            news: list[EngineMessage] = [*self.loop.take_freed()]
            news += [Became(role=role) for role in self.loop.take_became()]
            news += [Pong(nonce=nonce) for nonce in self.loop.take_pings()]
            for message in news:
                self.send(message)
            if done is None and not news:
                await self._work.wait()

    async def _step(self) -> StepDone | None:
        step = self.loop.begin()
        if step is None:
            return self.loop.news()
        took_s = self.slowness * (STEP_S + TOKEN_S * step.num_tokens) * (0.5 + self._uniform())
        early_s = took_s * self._uniform()
        await asyncio.sleep(early_s)
        for grant in step.grants:
            sequence = self.scheduler.sequences.get(grant.request_id)
            if sequence is None or not set(grant.block_ids) <= set(sequence.block_table):
                self._breach(f"a step of {self._front.name} writes blocks that {grant.request_id} does not hold")
        computed, errors = runner.compute(self.model, step, self.loop._group_done)
        await asyncio.sleep(took_s - early_s)
        return self.loop.commit(step, computed, errors, took_s)


class _ProcessHandle:
    """What `EngineClient` has of its process."""

    pid = 1

    def __init__(self, engine: EngineProcess) -> None:
        self.returncode: int | None = None
        self.exited = asyncio.Event()
        self._engine = engine

    async def wait(self) -> int:
        """See asyncio."""
        await self.exited.wait()
        return self.returncode or 0

    def kill(self) -> None:
        """See asyncio."""
        self._engine.die()


class _Writer:
    """The front's end of the pipe."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._is_closed = False

    def write(self, data: bytes) -> None:
        """See asyncio."""
        engine = self._engine
        engine._sim.at(engine._sim.true_s + PIPE_S, engine.process.soon, engine.take, data)

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_closed

    def close(self) -> None:
        """See asyncio: an engine ends with its front."""
        self._is_closed = True
        self._engine.die()
