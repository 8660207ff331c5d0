"""Builds an engine from its configuration: folder -> model -> pool -> scheduler -> loop."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pagewire.core import memory_limit
from pagewire.core.block_hash import HASH_VERSION
from pagewire.core.clock import Clock
from pagewire.core.engine_messages import EngineReady
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.heap import give_back
from pagewire.core.kv_layout import BlockOrder, KVLayout
from pagewire.core.messages import Role
from pagewire.core.own_version import own_version
from pagewire.engine.block_file import BlockFile
from pagewire.engine.block_lives import BlockLives
from pagewire.engine.block_mover import BlockMover
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.brownout import Brownout
from pagewire.engine.capture import CudaCapture
from pagewire.engine.config import EngineConfig
from pagewire.engine.edit_builder import EditBuilder
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.grammars import Grammars
from pagewire.engine.graph_limits import GraphLimits
from pagewire.engine.graph_pool import GraphPool
from pagewire.engine.kv_cache import CPU, TORCH_DTYPES, KVCache
from pagewire.engine.model.architecture import Architecture, Model
from pagewire.engine.model.families import architecture_of
from pagewire.engine.model.native import NativeArchitecture
from pagewire.engine.model.shard import Shard
from pagewire.engine.model_folder import ModelFolder
from pagewire.engine.model_runner import ModelRunner
from pagewire.engine.preemption import Preemption, PreemptionMode
from pagewire.engine.ranks.rank_failed import RankFailed
from pagewire.engine.ranks.rank_group import RankGroup
from pagewire.engine.ranks.ranked_model import RankedModel
from pagewire.engine.role_limits import roles_of, terms_of
from pagewire.engine.role_terms import RoleTerms
from pagewire.engine.sampler import Sampler
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.scheduling_policy import policy_named
from pagewire.engine.speculation import Speculation
from pagewire.engine.step_pace import StepPace
from pagewire.kernels import native_ops
from pagewire.kernels.backend import Backend
from pagewire.kernels.backend_choice import backend_for
from pagewire.kernels.cpu_backend import CpuBackend
from pagewire.kernels.graph_ops import GraphOps

log = logging.getLogger(__name__)

LAYER_GROUPS = (2, 3)  # two hide a last chunk's bytes; each more interrupts the prompt once more, for milliseconds
# What ends prompts in a step and comes to less is told of when it is whole. To ship half of it beside the step makes
# the step, and the wait for the first token, longer by milliseconds; all of it behind the step costs token 1 no more.
LEAST_GROUPED_BYTES = 4 << 20
LONG_STEP_S = 0.1  # of a step of this length those milliseconds are nothing, and token 1 is spared all of the transfer
# A step whose products are more than this takes a GPU longer than launching its kernels takes: about 5 ms of an H200.
LAUNCH_BOUND_FLOP = 2.5e12
MAX_ADAPTERS_CHARS = 8192  # half of a registration
WARM_UP_ROUNDS = 2  # the first meets lazily initialised libraries, the second shows the real time


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A loaded engine: the loop, the memory of its pool, and what others need to know of it."""

    loop: EngineLoop
    cache: KVCache
    ready: EngineReady
    scheduler: Scheduler
    runner: ModelRunner
    grammars: Grammars
    ranks: RankGroup | None = None  # the others, where there are any
    file: BlockFile | None = None  # where host memory lies in one

    def watch(self, on_lost: Callable[[int], None]) -> None:
        """Have `on_lost` told, from a thread, of a rank that ends before `close`."""
        if self.ranks is not None:
            self.ranks.watch(on_lost)

    def keep_cache(self) -> None:
        """Leave what is cached to the next engine, where host memory outlives this one; nothing runs any more."""
        if self.file is not None:
            log.info("%s: keeps %d blocks", self.file.path, self.loop.park_cache())

    def close(self) -> None:
        """End the other ranks, if there are any, and let go of the file of host memory."""
        if self.ranks is not None:
            self.ranks.close()
        if self.file is not None:
            self.file.close()


def resolve_dtype(name: str, device: torch.device = CPU) -> str:
    """Return the dtype that is computed in.

    `auto` is bfloat16 where it is multiplied well: by our own ops on any CPU, else where the device has instructions
    for it. Otherwise it is float32 on a CPU, float16 on a CUDA device.
    """
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float16"
    is_fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if is_fast or native_ops.load() else "float32"


def assemble(config: EngineConfig, clock: Clock, pool_fd: int = -1, backend: Backend | None = None) -> Engine:
    """Load the model, map the pool (in the file `pool_fd`, anonymously for -1) and return an engine that is idle.

    `backend` is what computes in the place of the device's own. Raises ValueError for a model that is not supported, a
    pool too small for one sequence of full length, a device that is not there, and where it or this machine has too
    little memory.
    """
    with contextlib.ExitStack() as opened, contextlib.ExitStack() as failed:
        if config.tensor_parallel > 1 and pool_fd < 0:  # the ranks have it mapped before this returns
            pool_fd = os.memfd_create("pagewire-kv", os.MFD_CLOEXEC)
            opened.callback(os.close, pool_fd)
        try:
            engine = _assemble(config, clock, pool_fd, backend, failed)
        except (torch.OutOfMemoryError, RankFailed) as error:
            raise ValueError(f"device {config.device}: {str(error).partition('. See ')[0]}") from error
        failed.pop_all()
    return engine


def _assemble(
    config: EngineConfig, clock: Clock, pool_fd: int, backend: Backend | None, failed: contextlib.ExitStack
) -> Engine:
    devices = tuple(map(device_named, config.devices))
    device = devices[0]
    if device.type == "cuda":
        torch.cuda.set_device(device)  # the calling thread's, which kernels are launched on
    folder = ModelFolder.open(Path(config.model), config.adapters)
    architecture = architecture_of(folder)
    if folder.adapters and not isinstance(architecture, NativeArchitecture):
        raise ValueError(f"adapters: none where the model runs through the {architecture.path}")
    dtype = resolve_dtype(config.dtype, device)
    log.info("model: %s in %s, through the %s", folder.path.resolve().name, dtype, architecture.path)
    kv_dtype = dtype if config.kv_dtype == "auto" else config.kv_dtype
    layout = architecture.kv_layout(config.block_size, kv_dtype, BlockOrder(config.kv_order))
    _check_ranks(config, architecture)
    _check_memory(config, device)
    cache = KVCache.open(layout, config.kv_memory_bytes, devices, pool_fd)
    log.info("%s", cache.describe())
    num_slots = config.host_kv_memory_bytes // layout.block_bytes
    max_model_len = _max_model_len(config, architecture)
    eos_token_ids = frozenset(folder.eos_token_ids)

    def terms_in(role: Role) -> RoleTerms:
        return terms_of(role, config, architecture, cache, max_model_len, num_slots, eos_token_ids)

    terms = terms_in(config.role)  # refused before the weights are read
    backend = backend or backend_for(device)
    ranks, model = _load(config, folder, architecture, cache, backend, pool_fd, failed)
    give_back()  # weights as they were read, before they were laid out
    arithmetic = model.arithmetic if config.deterministic else ""
    if config.deterministic and not arithmetic:
        raise ValueError(f"deterministic: {_why_not_deterministic(architecture, backend)}")
    fingerprint = _fingerprint(config, folder, cache, max_model_len, arithmetic)
    file = _block_file(config, fingerprint, dtype, num_slots, cache, failed)
    mover = _mover(config, cache, num_slots, backend, file)
    roles, refused_roles = roles_of(terms_in)
    layer_groups = config.layer_groups or _layer_groups(layout, device, config.tensor_parallel)
    grammars = Grammars(folder.path / "tokenizer.json", architecture.vocab_size, eos_token_ids)
    sampler = Sampler(backend, EditBuilder(eos_token_ids, device, grammars))
    graphs = _graphs(config, architecture, model, cache, backend, max_model_len, layer_groups)
    runner = ModelRunner(model, cache, backend, sampler, layer_groups, mover.host[0], graphs)
    if device.type == "cuda":  # what the longest step takes beside graphs is taken now, or told to be lacking
        most_draws = config.max_num_seqs * (1 + config.speculative_tokens)
        runner.rehearse(config.max_num_batched_tokens, min(most_draws, config.max_num_batched_tokens))
    # What is preempted by swapping comes back by way of the cache.
    preemption = Preemption(PreemptionMode(config.preemption) if config.prefix_caching else PreemptionMode.RECOMPUTE)
    drafted = config.speculative_tokens
    pool = BlockPool(cache.num_blocks, num_slots, lives=BlockLives(clock), caches=config.prefix_caching, kept=file)
    if file is not None:
        found = pool.host.num_parked
        log.info("%s: host memory of %d blocks, %d of an earlier engine", file.path, num_slots, found)
    scheduler = Scheduler(
        pool,
        terms.limits,
        terms.policy,
        policy_named(config.scheduling),
        preemption,
        Speculation(drafted, preemption.meter, grammars.forced) if drafted else None,
    )
    ready = EngineReady(
        layout=layout,
        num_blocks=cache.num_blocks,
        fingerprint=fingerprint,
        eos_token_ids=folder.eos_token_ids,
        vocab_size=architecture.vocab_size,
        layer_groups=layer_groups,
        refused_roles=refused_roles,
        devices=tuple(dict.fromkeys(map(_uuid, devices))) if device.type == "cuda" else (),
    )
    most, least = config.max_num_batched_tokens, terms.least_prefill
    pace = StepPace(config.step_target_s, least=least, most=most) if config.step_target_s else None
    brownout = Brownout(least_prefill=least) if config.brownout else None
    # Who asks for groups has them always.
    least_grouped_blocks = 0 if config.layer_groups else -(-LEAST_GROUPED_BYTES // layout.block_bytes)
    loop = EngineLoop(
        scheduler, runner, clock, mover, pace, brownout, roles, least_grouped_blocks, LONG_STEP_S,
        launcher=runner if graphs is not None else None, rehearses=device.type == "cpu",
    )  # fmt: skip
    return Engine(
        loop=loop, cache=cache, ready=ready, scheduler=scheduler, runner=runner, grammars=grammars, ranks=ranks,
        file=file,
    )  # fmt: skip


def device_named(name: str) -> torch.device:
    """Return the device; raises ValueError where there is none."""
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ValueError(f"device {name}: PyTorch {torch.__version__} finds no CUDA device here")
    index, count = device.index or 0, torch.cuda.device_count()
    if index >= count:
        raise ValueError(f"device {name}: there are {count} CUDA devices here, the first is cuda:0")
    return torch.device("cuda", index)


def _uuid(device: torch.device) -> str:
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def warm_up(engine: Engine) -> None:
    """Compute a chunk and a token for nobody, so that the first request meets a warm model."""
    chunk = min(engine.cache.layout.block_size, engine.ready.fingerprint.max_model_len - 1)
    for _ in range(WARM_UP_ROUNDS):
        engine.runner.rehearse(chunk)
        engine.runner.rehearse()
    engine.runner.rehearse_copies()


def _graphs(
    config: EngineConfig,
    architecture: Architecture,
    model: Model,
    cache: KVCache,
    backend: Backend,
    max_model_len: int,
    layer_groups: int,
) -> GraphPool | None:
    """Return the captured graphs of steps, None where there is nothing to capture with or for."""
    device = cache.pool.device
    if config.tensor_parallel > 1:  # the other ranks are told of each pass, and by no graph
        return None
    if device.type != "cuda" or not isinstance(architecture, NativeArchitecture) or not isinstance(backend, GraphOps):
        return None
    launch_bound = int(LAUNCH_BOUND_FLOP / (2 * architecture.config.layer_weights))
    limits = GraphLimits(
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=config.block_size,
        vocab_size=architecture.vocab_size,
        # Nothing is told of layers within a replay, so what leaves in groups of them is computed eagerly.
        longest_step=min(config.max_num_batched_tokens, launch_bound) if layer_groups == 1 else 0,
        longest_chunk=config.chunk_size,
    )
    graphs = GraphPool(model, cache.pool, backend, CudaCapture(device), limits)
    graphs.warm_up()
    return graphs


def _load(
    config: EngineConfig,
    folder: ModelFolder,
    architecture: Architecture,
    cache: KVCache,
    backend: Backend,
    pool_fd: int,
    failed: contextlib.ExitStack,
) -> tuple[RankGroup | None, Model]:
    """Return the loaded model, and the other ranks where it is shared; `failed` ends those. Raises ValueError."""
    device = cache.pool.device
    dtype = TORCH_DTYPES[resolve_dtype(config.dtype, device)]
    if config.tensor_parallel == 1:
        return None, architecture.load(folder, dtype, device, backend, config.weight_dtype)
    assert isinstance(architecture, NativeArchitecture)
    total = architecture.rank_sum(dtype, device)
    ranks = RankGroup.start(config, pool_fd, cache.export(), total)
    failed.callback(ranks.close)
    shard = Shard(num_ranks=config.tensor_parallel)
    model = architecture.load_part(folder, dtype, device, backend, config.weight_dtype, shard, total)
    ranks.connect(config.stall_s)
    log.info("ranks: %d more processes: %s", len(ranks.pids), ", ".join(map(str, ranks.pids)))
    return ranks, RankedModel(model, ranks, cache)


def _check_ranks(config: EngineConfig, architecture: Architecture) -> None:
    if config.tensor_parallel == 1:
        return
    if not isinstance(architecture, NativeArchitecture):
        raise ValueError(f"tensor_parallel {config.tensor_parallel}: no shards for the {architecture.path}")
    architecture.part(config.weight_dtype, Shard(num_ranks=config.tensor_parallel))


def _check_memory(config: EngineConfig, device: torch.device) -> None:
    """Raise ValueError where KV alone is more than this process may have: it would be killed while it takes it."""
    is_on_disk = bool(config.host_kv_dir) and not memory_limit.is_memory(Path(config.host_kv_dir))
    asked = {"host_kv_memory_bytes": 0 if is_on_disk else config.host_kv_memory_bytes}
    if device.type == "cpu":
        asked = {"kv_memory_bytes": config.kv_memory_bytes} | asked
    limit = memory_limit.usable_bytes()
    alone = {name: value for name, value in asked.items() if value > limit}
    if alone or sum(asked.values()) > limit:
        told = " and ".join(f"{name} {value}" for name, value in (alone or asked).items())
        raise ValueError(f"{told}: there is no room for as many bytes here, where a process may have {limit}")


def _max_model_len(config: EngineConfig, architecture: Architecture) -> int:
    longest = config.max_model_len or architecture.max_positions
    if longest > architecture.max_positions:
        raise ValueError(f"max_model_len {longest} is above the model's {architecture.max_positions} positions")
    if longest < 2:
        raise ValueError(f"the model has {longest} positions; a prompt and what follows it are 2 at least")
    return longest


def _block_file(
    config: EngineConfig,
    fingerprint: Fingerprint,
    dtype: str,
    num_slots: int,
    cache: KVCache,
    failed: contextlib.ExitStack,
) -> BlockFile | None:
    """Return the file in which host memory is to lie, if it is to; `failed` lets go of it. Raises ValueError."""
    if not config.host_kv_dir:
        return None
    if num_slots < 2:  # one is for what changes places
        raise ValueError(
            f"host_kv_memory_bytes {config.host_kv_memory_bytes}: a file in host_kv_dir is of two blocks at least"
        )
    folder, part_bytes = Path(config.host_kv_dir), cache.layout.part(len(cache.parts)).block_bytes
    # Whoever says the same has the same names for the same blocks; another version might compute them otherwise.
    said = (fingerprint.model_digest, fingerprint.kv_fingerprint, fingerprint.hash_version, fingerprint.arithmetic)
    owner = " ".join(map(str, (*said, dtype, own_version())))
    try:
        # By role: prompts go to prefill pods, which would have to fetch what a decode pod was given.
        file = BlockFile.take(folder, owner, config.role, num_slots, [part_bytes] * len(cache.parts))
    except (OSError, OverflowError) as error:
        size = num_slots * cache.layout.block_bytes
        raise ValueError(f"host_kv_dir {folder}: no file of {size} bytes can lie there: {error}") from error
    failed.callback(file.close)
    return file


def _mover(
    config: EngineConfig, cache: KVCache, num_slots: int, backend: Backend, file: BlockFile | None
) -> BlockMover:
    """Return what copies blocks, with the host memory that was asked for; raises ValueError where there is less."""
    try:
        return BlockMover(cache.parts, num_slots, backend, file)
    except (RuntimeError, TypeError) as error:  # torch has no other words for it, the second beyond 2^63 blocks
        asked = config.host_kv_memory_bytes
        raise ValueError(f"host_kv_memory_bytes {asked}: there is no room for as many bytes here") from error


def _layer_groups(layout: KVLayout, device: torch.device, num_ranks: int) -> int:
    # What was told of cannot be taken back, and whether another rank has failed is known at the end alone.
    if num_ranks > 1:
        return 1
    # Elsewhere than on a CPU a layer is still being computed when the next is asked for, and nobody may be told of it.
    if layout.order is not BlockOrder.LAYER_OUTER or device.type != "cpu":
        return 1
    return next((groups for groups in LAYER_GROUPS if layout.num_layers % groups == 0), 1)


def _why_not_deterministic(architecture: Architecture, backend: Backend) -> str:
    if not isinstance(architecture, NativeArchitecture):
        return f"the model runs through the {architecture.path}, whose sums depend on the batch"
    if not isinstance(backend, CpuBackend):
        return "there are no native ops here, and torch's sums depend on the batch"
    return "the model's sizes are not multiples of 16, so that parts of it are torch's, whose sums depend on the batch"


def _model_digest(config: EngineConfig, folder: ModelFolder) -> str:
    """Return what names the weights that are computed with: KV of others is other KV, whatever both are stored as."""
    digest = folder.model_digest()
    return digest if config.weight_dtype == "auto" else f"{digest}-{config.weight_dtype}"


def _fingerprint(
    config: EngineConfig, folder: ModelFolder, cache: KVCache, max_model_len: int, arithmetic: str
) -> Fingerprint:
    layout = cache.layout
    model_name = config.model_name or folder.path.resolve().name
    if model_name in config.adapter_names:
        raise ValueError(f"adapter {model_name} has the name of the model")
    adapters = " ".join(sorted(f"{each.name}={each.digest()}" for each in folder.adapters))
    if len(adapters) > MAX_ADAPTERS_CHARS:
        raise ValueError(
            f"names and digests of {len(folder.adapters)} adapters are {len(adapters)} characters; "
            f"{MAX_ADAPTERS_CHARS} may be, as a pod tells them wherever it is looked for"
        )
    return Fingerprint(
        model_name=model_name,
        model_digest=_model_digest(config, folder),
        tokenizer_digest=folder.tokenizer_digest(),
        kv_fingerprint=layout.fingerprint(),
        kv_layout=f"{layout.dtype} {layout.order} L{layout.num_layers} Hk{layout.num_kv_heads} D{layout.head_dim}",
        block_size=layout.block_size,
        hash_version=HASH_VERSION,
        max_model_len=max_model_len,
        arithmetic=arithmetic,
        adapters=adapters,
    )
