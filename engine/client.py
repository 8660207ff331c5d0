"""A pod front's side of its engine process: starts it, speaks to it, maps its KV pool, notices its end.

Knows frames and file descriptors; torch comes only with a pool on a device. Invariant: every awaited command is
answered, or fails with `EngineFailed` when the process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import deque
from collections.abc import Sequence

from pagewire.core.engine_messages import (
    Abort,
    Add,
    Became,
    Become,
    Bind,
    Bound,
    CannotStart,
    EngineMessage,
    EngineReady,
    Freed,
    Held,
    Hold,
    Join,
    Keep,
    Ping,
    Pong,
    Release,
    Reserve,
    Reserved,
    StepDone,
    Stop,
)
from pagewire.core.errors import EngineFailed, TransferFailed
from pagewire.core.messages import Role
from pagewire.engine import frames
from pagewire.engine.config import EngineConfig
from pagewire.engine.running_engine import OnStep
from pagewire.kvtransfer import summed_copy
from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.transport import PodMemory
from pagewire.serving.pod_config import KEPT_BYTES_PER_S

log = logging.getLogger(__name__)

EXIT_GRACE_S = 10.0  # the longest a running step may hold up the end of the process

_Answer = asyncio.Future[EngineMessage]


class EngineClient:
    """A running engine process. Build it with `start`; end it with `close`."""

    def __init__(
        self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ready: EngineReady,
        pool: PodMemory, config: EngineConfig,
    ) -> None:  # fmt: skip
        self.ready = ready
        self.pool = pool
        self.exited = asyncio.Event()
        self._process = process
        self._exit_grace_s = EXIT_GRACE_S + (config.kv_memory_bytes / KEPT_BYTES_PER_S if config.host_kv_dir else 0)
        self._reader = reader
        self._writer = writer
        self.on_step: OnStep = _ignore  # nothing steps before the first command
        self._answers: dict[tuple[type[EngineMessage], str], deque[_Answer]] = {}
        self._listening = asyncio.create_task(self._listen(), name="engine-frames")
        self._watching = asyncio.create_task(self._watch(config.stall_s), name="engine-watch")

    @classmethod
    async def start(cls, config: EngineConfig) -> EngineClient:
        """Start an engine and wait until it is ready; set `on_step` to hear of each `StepDone`, in order.

        Raises EngineFailed when the process ends before: with what it said, or it is on its stderr.
        """
        near, far = socket.socketpair()
        pool_fd = os.memfd_create("pagewire-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with far:
                # -P is PYTHONSAFEPATH: the working directory must not shadow installed packages.
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "pagewire.engine.process",
                    str(far.fileno()), str(pool_fd), config.to_json(),
                    stdin=DEVNULL, pass_fds=(far.fileno(), pool_fd),
                )  # fmt: skip
            reader, writer = await asyncio.open_unix_connection(sock=near)
            try:
                await asyncio.to_thread(summed_copy.prepare)  # the first block shall not wait for a compiler
                ready = await _receive(reader)
                if isinstance(ready, CannotStart):
                    raise EngineFailed(ready.reason)
                if not isinstance(ready, EngineReady):
                    code = await process.wait()
                    raise EngineFailed(f"the engine process ended with code {code} before it was ready")
                pool = await _map(ready, pool_fd, config.devices)
                return cls(process, reader, writer, ready, pool, config)
            except BaseException:
                await _end(process, writer, EXIT_GRACE_S)
                raise
        finally:
            os.close(pool_fd)

    @property
    def exit_code(self) -> int | None:
        """The code of the process once `exited` is set, None before."""
        return self._process.returncode

    @property
    def pid(self) -> int:
        """The process id of the engine."""
        return self._process.pid

    async def become(self, role: Role) -> None:
        """Have the engine go on with `role`; all that it caches comes in steps before this returns."""
        await self._ask(Become(role=role), Became, role.value)

    def add(self, command: Add) -> None:
        """Run a sequence; all that follows comes in `StepDone`s. Raises EngineFailed when the process is gone."""
        self._send(command)

    async def reserve(self, command: Reserve) -> Reserved:
        """Promise the blocks of a prompt; the answer says what is cached, or why not."""
        answer = await self._ask(command, Reserved, command.spec.request_id)
        assert isinstance(answer, Reserved)
        return answer

    async def bind(self, command: Bind) -> Bound:
        """Turn promised blocks into ids."""
        answer = await self._ask(command, Bound, command.request_id)
        assert isinstance(answer, Bound)
        return answer

    async def hold(self, command: Hold) -> Held:
        """Pin cached blocks for another pod."""
        answer = await self._ask(command, Held, command.request_id)
        assert isinstance(answer, Held)
        return answer

    def keep(self, command: Keep) -> None:
        """Let the cache know what landed for a reserved sequence."""
        self._send(command)

    def join(self, command: Join) -> None:
        """Let a reserved sequence run."""
        self._send(command)

    def stop(self, command: Stop) -> None:
        """Let one sequence of a request have no more tokens."""
        self._send(command)

    async def abort(self, request_id: str) -> None:
        """End a sequence or a hold; returns when no step can touch its blocks any more."""
        await self._ask(Abort(request_id=request_id), Freed, request_id)

    def release(self, request_id: str) -> None:
        """Give back the blocks of a sequence that was handed off, or of a hold."""
        self._send(Release(request_id=request_id))

    async def close(self) -> None:
        """End the process, by force if it does not go by itself, and unmap the pool."""
        self._watching.cancel()
        await _end(self._process, self._writer, self._exit_grace_s)
        await asyncio.gather(self._listening, self._watching, return_exceptions=True)
        self.pool.close()

    def _send(self, message: EngineMessage) -> None:
        if self.exited.is_set() or self._writer.is_closing():
            raise EngineFailed("the engine process is gone")
        self._writer.write(frames.pack(message))

    async def _ask(self, command: EngineMessage, kind: type[EngineMessage], request_id: str) -> EngineMessage:
        # Commands of one kind are answered in the order in which they came.
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._send(command)
        self._answers.setdefault((kind, request_id), deque()).append(answer)
        return await answer

    async def _watch(self, stall_s: float) -> None:
        """End a process whose loop does not turn: no health over a dead engine, and its requests go on elsewhere.

        It is asked twice: where this process stood still, the first answer is here and was not looked at in time.
        """
        with contextlib.suppress(EngineFailed):  # it ended, which is told already
            for nonce in itertools.count(step=2):
                await asyncio.sleep(stall_s / 4)
                turns = await self._answers_within(stall_s, nonce) or await self._answers_within(stall_s / 4, nonce + 1)
                if not turns:
                    log.error("the engine has not finished a step for %s s and is ended", stall_s)
                    self._process.kill()
                    return

    async def _answers_within(self, timeout_s: float, nonce: int) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._ask(Ping(nonce=nonce), Pong, str(nonce))
        except TimeoutError:
            return False
        return True

    async def _listen(self) -> None:
        reason = ""
        try:
            while (message := await _receive(self._reader)) is not None:
                self._deliver(message)
        except Exception as error:
            reason = f", because the front failed on its answer: {type(error).__name__}: {error}"
            # What the message said of other requests is lost with it, and nobody would ever know which: this engine's
            # requests go on elsewhere, as those of one that died.
            log.critical("a bug: what the engine said could not be taken in; it is ended", exc_info=True)
            self._process.kill()
        code = await self._process.wait()
        if code:
            # By a text, as not every signal has a name.
            how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"code {code}"
            log.error("the engine process ended with %s", how)
        self.exited.set()
        for waiting in self._answers.values():
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(EngineFailed(f"the engine process ended with code {code}{reason}"))
        self._answers.clear()

    def _deliver(self, message: EngineMessage) -> None:
        match message:
            case StepDone():
                self.on_step(message)
            case Reserved() | Bound() | Held() | Freed():
                self._answer(message, message.request_id)
            case Became():
                self._answer(message, message.role.value)
            case Pong():
                self._answer(message, str(message.nonce))
            case _:
                raise EngineFailed(f"an engine does not send {type(message).__name__}")

    def _answer(self, message: EngineMessage, name: str) -> None:
        key = (type(message), name)
        waiting = self._answers[key]
        answer = waiting.popleft()
        if not waiting:
            del self._answers[key]
        if not answer.done():  # whoever asked may have been cancelled
            answer.set_result(message)


def _ignore(_step: StepDone) -> None:
    return


async def _map(ready: EngineReady, pool_fd: int, devices: Sequence[str]) -> PodMemory:
    """Return the engine's pool, mapped here. Raises EngineFailed where a device's cannot be."""
    sizes = {"block_bytes": ready.layout.block_bytes, "num_blocks": ready.num_blocks}
    if not ready.pool_exports:
        pool = PoolMemory.map(pool_fd, **sizes)
        pool.seal()  # engine and front have it mapped: nobody else may write it
        return pool
    try:
        return await asyncio.to_thread(_map_devices, devices, ready.pool_exports, sizes)
    except (TransferFailed, ValueError) as error:
        raise EngineFailed(f"the engine's pool cannot be mapped: {error}") from error


def _map_devices(devices: Sequence[str], exports: Sequence[bytes], sizes: dict[str, int]) -> PodMemory:
    # Fronts of pools in host memory start without torch.
    from pagewire.core.cuda_export import Export  # noqa: PLC0415
    from pagewire.kvtransfer.transports.device_pool import DevicePool  # noqa: PLC0415

    return DevicePool.map(devices, tuple(map(Export.from_bytes, exports)), **sizes)


async def _receive(reader: asyncio.StreamReader) -> EngineMessage | None:
    """Return the next message, None once the engine has closed."""
    try:
        header = await reader.readexactly(frames.HEADER_BYTES)
        return frames.unpack(await reader.readexactly(frames.body_length(header)))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None


async def _end(process: Process, writer: asyncio.StreamWriter, grace_s: float) -> None:
    writer.close()
    try:
        async with asyncio.timeout(grace_s):
            await process.wait()
    except TimeoutError:
        log.warning("the engine process did not end within %.0f s and is killed", grace_s)
        process.kill()
        await process.wait()
