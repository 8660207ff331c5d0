"""The other ranks of a pod, as rank 0 has them: it starts them, tells them of each pass, and hears how it went.

A rank is a process that lives as long as its socket. Between two passes the others touch no memory of the pool: each
has answered behind everything that it reads and writes there. So blocks are copied, zeroed and shipped by rank 0 and
its front alone, in all parts of the pool. Invariant: when `close` returns, no process that it started is left.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from pagewire.core.cuda_export import Export
from pagewire.engine.config import EngineConfig
from pagewire.engine.model.shard import Shard
from pagewire.engine.ranks.meeting import meet
from pagewire.engine.ranks.model_pass import ModelPass
from pagewire.engine.ranks.rank_line import RankLine
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.ranks.rank_sum import RankSum

log = logging.getLogger(__name__)

EXIT_GRACE_S = 5.0
LOAD_S = 1800.0  # a large model from a slow disk
# -P is PYTHONSAFEPATH: the working directory must not shadow installed packages.
FOLLOWER = (sys.executable, "-P", "-m", "pagewire.engine.ranks.follower")


class RankGroup:
    """Ranks 1 to `num_ranks` - 1. Build it with `start`; end it with `close`. For one thread."""

    def __init__(
        self, config: EngineConfig, processes: Sequence[subprocess.Popen[bytes]], lines: Sequence[RankLine],
        peers: Sequence[socket.socket], parts_fd: int, total: RankSum,
    ) -> None:  # fmt: skip
        self._config = config
        self._processes = processes
        self._lines = lines
        self._peers = peers
        self._parts_fd = parts_fd
        self._sum = total
        self._closing = threading.Event()

    @classmethod
    def start(cls, config: EngineConfig, pool_fd: int, exports: Sequence[Export], total: RankSum) -> RankGroup:
        """Start the others; they load meanwhile.

        They find the pool in the file `pool_fd`, which has its size, or on devices, each rank its part in `exports`.
        """
        parts_fd = os.memfd_create("pagewire-ranks", os.MFD_CLOEXEC)
        # The kernel ends them with the thread that started them, even those that are stopped: the main one lives as
        # long as the process.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        processes: list[subprocess.Popen[bytes]] = []
        lines: list[RankLine] = []
        peers = mesh(config.tensor_parallel)
        group = cls(config, processes, lines, peers[0], parts_fd, total)
        try:
            for rank in range(1, config.tensor_parallel):
                near, far = socket.socketpair()
                lines.append(RankLine(near))
                with far:
                    fds = (far.fileno(), pool_fd, parts_fd, *(peer.fileno() for peer in peers[rank]))
                    arguments = (str(rank), str(parent), config.to_json(), *map(str, fds))
                    processes.append(subprocess.Popen((*FOLLOWER, *arguments), stdin=subprocess.DEVNULL, pass_fds=fds))
                # Not among its arguments, which everybody on the host may read.
                lines[-1].send(exports[rank].to_bytes() if exports else b"")
        except BaseException:
            group.close()
            raise
        finally:
            for peer in itertools.chain(*peers[1:]):
                peer.close()  # whose end here would hide that its rank has ended
        return group

    @property
    def num_ranks(self) -> int:
        """All ranks, the first among them."""
        return self._config.tensor_parallel

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the other ranks, in their order."""
        return tuple(process.pid for process in self._processes)

    def connect(self, timeout_s: float) -> None:
        """Wait until the others have loaded, and meet them; from then on no wait is longer than `timeout_s`.

        A rank that takes longer than `LOAD_S` to load is lost.

        Raises ValueError with what one of them says against its start, RankLost where one ended.
        """
        for line in self._lines:
            line.deadline(LOAD_S)
        refused = [said for said in self._outcomes() if said]
        if refused:
            raise ValueError("; ".join(refused))
        for line in self._lines:
            line.send(b"")  # all are there: who has loaded first shall not wait for the others in a meeting's deadline
        shard = Shard(num_ranks=self.num_ranks)
        self._sum.connect(meet(shard, self._config.devices, self._parts_fd, self._peers, timeout_s))
        for line in self._lines:
            line.deadline(timeout_s)

    def watch(self, on_lost: Callable[[int], None]) -> None:
        """Have `on_lost` told, from a thread, of a rank that ends before `close`."""
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(
                target=self._wait, args=(rank, process, on_lost), name=f"rank-{rank}-watch", daemon=True
            ).start()

    def begin(self, model_pass: ModelPass) -> None:
        """Have the others compute a pass. Raises RankLost."""
        data = model_pass.to_bytes()
        for line in self._lines:
            line.send(data)

    def end(self, num_rows: int) -> tuple[str, ...]:
        """End a pass of so many rows, which failed here or not; return what others say that they failed by.

        Raises RankLost.
        """
        self._sum.finish(num_rows)
        return tuple(said for said in self._outcomes() if said)

    def close(self) -> None:
        """End the others, by force where they do not go by themselves."""
        self._closing.set()
        for line in self._lines:
            line.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_GRACE_S)
            if process.poll() is None:
                log.warning("a rank did not end within %s s and is killed", EXIT_GRACE_S)
                process.kill()
                process.wait()
        self._sum.close()
        for peer in self._peers:
            peer.close()
        if self._parts_fd >= 0:
            os.close(self._parts_fd)
            self._parts_fd = -1

    def _outcomes(self) -> list[str]:
        found = []
        for rank, line in enumerate(self._lines, 1):
            said = line.receive()
            if said is None:
                raise RankLost(f"rank {rank} has ended")
            found.append(f"rank {rank}: {said.decode(errors='replace')}" if said else "")
        return found

    def _wait(self, rank: int, process: subprocess.Popen[bytes], on_lost: Callable[[int], None]) -> None:
        code = process.wait()
        if not self._closing.is_set():
            log.critical("rank %d ended with code %d", rank, code)
            on_lost(rank)


def mesh(num_ranks: int) -> list[list[socket.socket]]:
    """Return each rank's ends of the sockets between it and each other one."""
    ends: list[list[socket.socket]] = [[] for _ in range(num_ranks)]
    for one, other in itertools.combinations(range(num_ranks), 2):
        near, far = socket.socketpair(type=socket.SOCK_SEQPACKET)
        ends[one].append(near)
        ends[other].append(far)
    return ends
