"""A rank behind the first, started by `RankGroup`: `python -P -m pagewire.engine.ranks.follower RANK PARENT
CONFIG_JSON SOCKET_FD POOL_FD PARTS_FD PEER_FD...`.

It computes its part of each pass that rank 0 tells of, against its heads of the pool that they share, and says how it
went; it schedules, draws and copies nothing. The process lives as long as its socket: when rank 0 closes it, or dies,
it ends with 0, and within seconds where it stands in a sum that nobody else comes to; whatever goes wrong with the
group ends it with another code. A pass that fails ends nothing.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
from pathlib import Path

import torch

from pagewire.core.heap import give_back
from pagewire.core.kv_layout import BlockOrder
from pagewire.engine.assembly import resolve_dtype
from pagewire.engine.batch import Batch
from pagewire.engine.config import EngineConfig
from pagewire.engine.kv_cache import TORCH_DTYPES, KVCache
from pagewire.engine.model.decoder import Decoder
from pagewire.engine.model.families import native_architecture
from pagewire.engine.model.shard import Shard
from pagewire.engine.model_folder import ModelFolder
from pagewire.engine.ranks.model_pass import ModelPass
from pagewire.engine.ranks.rank_line import RankLine
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.threads import set_threads
from pagewire.kernels.backend_choice import backend_for
from pagewire.serving import logs

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
EXIT_ALONE = 3  # rank 0 is gone, and the pass that ran then does not end
GRACE_S = 2.0


class Follower:
    """One rank's part of the model and of the pool."""

    def __init__(self, config: EngineConfig, shard: Shard, pool_fd: int) -> None:
        """Load; raises ValueError or OSError as an engine does."""
        folder = ModelFolder.open(Path(config.model), config.adapters)
        architecture = native_architecture(folder.hf_config)
        dtype, device = resolve_dtype(config.dtype), torch.device(config.device)
        kv_dtype = dtype if config.kv_dtype == "auto" else config.kv_dtype
        layout = architecture.kv_layout(config.block_size, kv_dtype, BlockOrder(config.kv_order))
        cache = KVCache.open(layout, config.kv_memory_bytes, fd=pool_fd)
        own = cache.pool[:, :, :, shard.part(layout.num_kv_heads)]  # [N, L, 2, Hk / R, B, D]
        self._stage, self._pool = torch.zeros_like(own[:1]), own
        self._device = device
        self._block_size = layout.block_size
        self.sum = architecture.rank_sum(shard, TORCH_DTYPES[dtype])
        self._model: Decoder = architecture.load_part(
            folder, TORCH_DTYPES[dtype], device, backend_for(device), config.weight_dtype, shard, self.sum
        )
        give_back()  # weights as they were read, before they were laid out

    @torch.inference_mode()
    def compute(self, model_pass: ModelPass) -> str:
        """Compute a pass; return what it failed by, "" for nothing. Raises RankLost."""
        failure = ""
        try:
            batch = Batch.of(model_pass.step(), self._block_size, self._device)
            self._model.forward(batch, self._stage if model_pass.on_stage else self._pool)
        except RankLost:
            raise
        except Exception as error:  # whatever a model may raise ends the pass, on all ranks, and not the engine
            log.exception("a pass of %d tokens failed", len(model_pass.tokens))
            failure = f"{type(error).__name__}: {error}"
        self.sum.finish(len(model_pass.tokens))
        return failure


def serve(line: RankLine, follower: Follower) -> None:
    """Compute what rank 0 tells of, until it closes."""
    told: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    is_over = threading.Event()

    def read() -> None:
        try:
            while (data := line.receive()) is not None:
                told.put(data)
        except RankLost:
            log.warning("rank 0 went away within a message")
        told.put(None)
        if not is_over.wait(GRACE_S):
            log.warning("rank 0 went away within a pass")
            os._exit(EXIT_ALONE)

    threading.Thread(target=read, name="passes", daemon=True).start()
    try:
        while (data := told.get()) is not None:
            line.send(follower.compute(ModelPass.from_bytes(data)).encode())
    except RankLost as error:
        log.critical("this rank is over: %s", error)
        sys.exit(EXIT_ALONE)
    finally:
        is_over.set()


def main(argv: list[str]) -> None:
    """Be a rank on inherited file descriptors; an exception ends the process with a non-zero code."""
    rank, parent = map(int, argv[:2])
    config = EngineConfig.from_json(argv[2])
    socket_fd, pool_fd, parts_fd, *peer_fds = map(int, argv[3:])
    logs.configure(f"rank-{rank}", form=config.log_format)
    # Both may reach the whole process group: rank 0 decides when its ranks end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(EXIT_ALONE)
    set_threads(config.threads, config.tensor_parallel)
    line = RankLine(socket.socket(fileno=socket_fd))
    try:
        follower = Follower(config, Shard(rank=rank, num_ranks=config.tensor_parallel), pool_fd)
    except (ValueError, OSError) as error:
        line.send(" ".join(str(error).split()).encode())
        sys.exit(EXIT_ALONE)
    line.send(b"")
    follower.sum.connect(parts_fd, [socket.socket(fileno=fd) for fd in peer_fds], config.stall_s)
    serve(line, follower)


if __name__ == "__main__":
    main(sys.argv[1:])
