"""The engine process: `python -P -m pagewire.engine.process SOCKET_FD POOL_FD CONFIG_JSON`, started by `EngineClient`.

One thread steps, one reads commands and answers them at once, even while a step computes; a command whose grammar has
to be compiled waits for that at the desk. The process lives as long as its socket: when the front closes it, or dies,
the engine ends with 0; whatever goes wrong here ends it with another code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pagewire.core import garbage
from pagewire.core.clock import MonotonicClock
from pagewire.core.cuda_export import Export
from pagewire.core.engine_messages import Became, CannotStart, EngineMessage, Pong
from pagewire.core.errors import TransferFailed
from pagewire.engine import frames
from pagewire.engine.assembly import Engine, assemble, warm_up
from pagewire.engine.command_reader import CommandReader
from pagewire.engine.config import EngineConfig
from pagewire.engine.devices import kind_of
from pagewire.engine.grammar_desk import GrammarDesk
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.runner import DeviceLost
from pagewire.engine.threads import set_threads
from pagewire.serving import logs

log = logging.getLogger(__name__)

EXIT_CANNOT_START = 2
EXIT_OVER = 3
# Behind its front, which has what others wait for: where they share a core, a step kept that for a time slice.
NICENESS = 5
# How long a command may wait for what a step has to do in Python: requests are admitted one after another, each by a
# command's answer, and by default every one of them could wait for 5 ms.
SWITCH_S = 0.0005


class FrontConnection:
    """The socket to the front; any thread may send, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()

    def send(self, message: EngineMessage) -> None:
        """Send a message, each of its frames whole."""
        for data in frames.pack_parts(message):
            with self._sending:
                self._socket.sendall(data)

    def send_early(self, message: EngineMessage) -> None:
        """Send from within a step, which is not to fail when the front is gone: that is noticed after it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send(message)

    def receive(self) -> EngineMessage | None:
        """Return the next message, None once the front has closed."""
        header = self._receive_exactly(frames.HEADER_BYTES)
        if header is None:
            return None
        body = self._receive_exactly(frames.body_length(header))
        return None if body is None else frames.unpack(body)

    def shut_down(self) -> None:
        """End the connection both ways, so that a blocked `receive` returns."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("the front had closed already")

    def _receive_exactly(self, num_bytes: int) -> bytes | None:
        data = bytearray()
        while len(data) < num_bytes:
            try:
                part = self._socket.recv(num_bytes - len(data))
            except ConnectionResetError:  # it closed with something of ours unread
                return None
            if not part:
                return None
            data += part
        return bytes(data)


def run(connection: socket.socket, pool_fd: int, config: EngineConfig) -> None:
    """Load, announce readiness, and step until the front closes."""
    set_threads(config.threads, config.tensor_parallel, config.device)
    front = FrontConnection(connection)
    try:
        with _front_watched(connection):
            if len(config.devices) > 1 and kind_of(config.device) == "cpu":
                raise ValueError(f"device {config.device}: the ranks of a pod have one pool in host memory; say cpu")
            engine = assemble(config, MonotonicClock(), pool_fd)
            exports = engine.cache.export()
    # A model, a setting or a device that cannot work: the front says it, in one line.
    except (ValueError, OSError, TransferFailed, RankLost) as error:
        front.send(CannotStart(reason=" ".join(str(error).split())))
        if isinstance(error, RankLost):
            os._exit(EXIT_CANNOT_START)  # as below
        sys.exit(EXIT_CANNOT_START)
    try:
        _serve(front, engine, exports)
    except (RankLost, DeviceLost) as error:
        log.critical("the engine is over: %s", error)
        with contextlib.suppress(Exception):  # of a device that has failed all calls may
            engine.close()
        os._exit(EXIT_OVER)  # a device may stand in a sum that nobody else comes to: no interpreter ends over it
    finally:
        engine.close()


def _serve(front: FrontConnection, engine: Engine, exports: Sequence[Export]) -> None:
    engine.watch(_rank_lost)
    warm_up(engine)
    engine.loop.on_group = front.send_early
    garbage.keep_what_is_here()
    sys.setswitchinterval(SWITCH_S)
    front.send(replace(engine.ready, pool_exports=tuple(export.to_bytes() for export in exports)))
    reader = CommandReader(front, engine.loop, GrammarDesk(engine.grammars))
    thread = threading.Thread(target=reader.run, name="commands")
    thread.start()
    try:
        while engine.loop.wait_for_work():
            done = engine.loop.step()
            if done is not None:
                front.send(done)
            for freed in engine.loop.take_freed():
                front.send(freed)
            for role in engine.loop.take_became():
                front.send(Became(role=role))
            for nonce in engine.loop.take_pings():
                front.send(Pong(nonce=nonce))
    except (BrokenPipeError, ConnectionResetError):
        log.info("the front went away")
    finally:
        front.shut_down()
        thread.join()
    if reader.error is not None:
        raise reader.error
    engine.loop.settle()
    engine.loop.check()  # broken bookkeeping ends the process with a code, and its pod with it
    load = engine.loop.load()
    engine.keep_cache()
    log.info(
        "KV pool checked at the end: %d free, %d cached, %d held, %d reserved, %d pinned of %d blocks",
        load.blocks_free, load.blocks_cached, load.blocks_held, load.blocks_reserved, load.blocks_pinned,
        load.blocks_total,
    )  # fmt: skip


@contextlib.contextmanager
def _front_watched(connection: socket.socket) -> Iterator[None]:
    """End this process should the front go meanwhile: nobody reads the socket while a model is loaded."""
    watched, stop = select.poll(), os.eventfd(0)
    watched.register(connection, select.POLLRDHUP)
    watched.register(stop, select.POLLIN)

    def watch() -> None:
        if all(fd != stop for fd, _ in watched.poll()):
            os._exit(0)

    thread = threading.Thread(target=watch, name="front-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(stop, 1)
        thread.join()
        os.close(stop)


def _rank_lost(_rank: int) -> None:
    # From another thread, and at once: the one that steps may stand in a sum that the lost rank does not come to.
    os._exit(EXIT_OVER)


def main(argv: list[str]) -> None:
    """Run an engine on inherited file descriptors; an exception ends the process with a non-zero code."""
    socket_fd, pool_fd, config_json = argv
    config = EngineConfig.from_json(config_json)
    logs.configure("engine", config.log_level, config.log_format)
    # Both may reach the whole process group, while the front still drains: it decides when its engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICENESS)
    run(socket.socket(fileno=int(socket_fd)), int(pool_fd), config)


if __name__ == "__main__":
    main(sys.argv[1:])
