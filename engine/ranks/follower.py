"""A rank behind the first, started by `RankGroup`: `python -P -m pagewire.engine.ranks.follower RANK PARENT
CONFIG_JSON SOCKET_FD POOL_FD PARTS_FD PEER_FD...`.

It computes its part of each pass that rank 0 tells of, against its heads of the pool, and says how it went; it
schedules, draws and copies nothing. The first message says where its part of the pool is, if that is on a device. The
process lives as long as its socket: when rank 0 closes it, or dies, it ends with 0, and within seconds where it stands
in a sum that nobody else comes to; whatever goes wrong with the group ends it with another code. A pass that fails ends
nothing.
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
from typing import TYPE_CHECKING

import torch

from pagewire.core.cuda_export import Export
from pagewire.core.errors import TransferFailed
from pagewire.core.heap import give_back
from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.core.kv_sizing import KVSizing
from pagewire.engine.assembly import device_named, resolve_dtype
from pagewire.engine.config import EngineConfig
from pagewire.engine.kv_cache import TORCH_DTYPES, KVCache, blocks_in
from pagewire.engine.model.decoder import Decoder
from pagewire.engine.model.families import native_architecture
from pagewire.engine.model.shard import Shard
from pagewire.engine.model_folder import ModelFolder
from pagewire.engine.packed_batch import batch_maker
from pagewire.engine.ranks.meeting import meet
from pagewire.engine.ranks.model_pass import ModelPass
from pagewire.engine.ranks.rank_line import RankLine
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.threads import set_threads
from pagewire.kernels.backend_choice import backend_for
from pagewire.serving import logs

if TYPE_CHECKING:
    from pagewire.kvtransfer.transports.device_pool import DevicePool

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
EXIT_ALONE = 3  # rank 0 is gone, and the pass that ran then does not end
GRACE_S = 2.0


class Follower:
    """One rank's part of the model and of the pool, on its device."""

    def __init__(self, config: EngineConfig, shard: Shard, pool_fd: int, export: Export | None) -> None:
        """Load; raises ValueError, OSError or TransferFailed as an engine does.

        The pool lies in the file `pool_fd`, or its part on the device as `export` tells.
        """
        folder = ModelFolder.open(Path(config.model), config.adapters)
        architecture = native_architecture(folder.hf_config)
        self._device = device = device_named(config.devices[shard.rank % len(config.devices)])  # or the only one
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dtype = resolve_dtype(config.dtype, device)
        kv_dtype = dtype if config.kv_dtype == "auto" else config.kv_dtype
        layout = architecture.kv_layout(config.block_size, kv_dtype, BlockOrder(config.kv_order))
        if export is None:
            devices = tuple(map(torch.device, config.devices))
            self._pool = KVCache.open(layout, config.kv_memory_bytes, devices, pool_fd).heads_of(shard)
        else:
            self._memory, self._pool = _mapped(layout, config.kv_memory_bytes, shard, device, export)
        self._stage = torch.zeros_like(self._pool[:1])
        self._block_size = layout.block_size
        self._batch_of = batch_maker(device)
        self.sum = architecture.rank_sum(TORCH_DTYPES[dtype], device)
        self._model: Decoder = architecture.load_part(
            folder, TORCH_DTYPES[dtype], device, backend_for(device), config.weight_dtype, shard, self.sum
        )
        give_back()  # weights as they were read, before they were laid out

    @torch.inference_mode()
    def compute(self, model_pass: ModelPass) -> str:
        """Compute a pass; return what it failed by, "" for nothing. Raises RankLost."""
        failure = ""
        try:
            batch = self._batch_of(model_pass.step(), self._block_size, self._device, None)
            self._model.forward(batch, self._stage if model_pass.on_stage else self._pool)
        except RankLost:
            raise
        except Exception as error:  # whatever a model may raise ends the pass, on all ranks, and not the engine
            log.exception("a pass of %d tokens failed", len(model_pass.tokens))
            failure = f"{type(error).__name__}: {error}"
        self.sum.finish(len(model_pass.tokens))
        if self._device.type == "cuda":
            # Behind our answer rank 0 touches our blocks. What fails here has failed on the device, and we with it.
            torch.cuda.current_stream(self._device).synchronize()
        return failure


def _mapped(
    layout: KVLayout, budget_bytes: int, shard: Shard, device: torch.device, export: Export
) -> tuple[DevicePool, torch.Tensor]:
    """Return a rank's part of the pool, which rank 0 has on the rank's device, and its blocks `[N, L, 2, Hk, B, D]`.

    Raises TransferFailed.
    """
    # An engine process has no part of transfers, unless it maps what another has on a device.
    from pagewire.kvtransfer.transports.device_pool import DevicePool  # noqa: PLC0415

    part = layout.part(shard.num_ranks)
    num_blocks = KVSizing(layout=layout, memory_bytes=budget_bytes).num_blocks
    memory = DevicePool.map((str(device),), (export,), block_bytes=part.block_bytes, num_blocks=num_blocks)
    return memory, blocks_in(memory.parts[0].view(-1), part)


def serve(line: RankLine, follower: Follower) -> None:
    """Compute what rank 0 tells of, until it closes. Raises RankLost."""
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
    while (data := told.get()) is not None:
        line.send(follower.compute(ModelPass.from_bytes(data)).encode())
    is_over.set()


def main(argv: list[str]) -> None:
    """Be a rank on inherited file descriptors; an exception ends the process with a non-zero code."""
    rank, parent = map(int, argv[:2])
    config = EngineConfig.from_json(argv[2])
    socket_fd, pool_fd, parts_fd, *peer_fds = map(int, argv[3:])
    logs.configure(f"rank-{rank}", config.log_level, config.log_format)
    # Both may reach the whole process group: rank 0 decides when its ranks end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(EXIT_ALONE)
    set_threads(config.threads, config.tensor_parallel, config.device)
    line, shard = RankLine(socket.socket(fileno=socket_fd)), Shard(rank=rank, num_ranks=config.tensor_parallel)
    export = line.receive()
    if export is None:
        sys.exit(EXIT_ALONE)
    try:
        follower = Follower(config, shard, pool_fd, Export.from_bytes(export) if export else None)
    except (ValueError, OSError, TransferFailed, torch.OutOfMemoryError) as error:
        line.send(" ".join(str(error).split()).encode())
        sys.exit(EXIT_ALONE)
    line.send(b"")
    if line.receive() is None:  # another rank cannot start
        sys.exit(EXIT_ALONE)
    peers = [socket.socket(fileno=fd) for fd in peer_fds]
    try:
        follower.sum.connect(meet(shard, config.devices, parts_fd, peers, config.stall_s))
        serve(line, follower)
    except Exception as error:  # a lost rank, or a device that failed
        log.critical("this rank is over: %s", error, exc_info=not isinstance(error, RankLost))
        os._exit(EXIT_ALONE)  # a device may stand in a sum that nobody else comes to: no interpreter ends over it


if __name__ == "__main__":
    main(sys.argv[1:])
