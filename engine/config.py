"""What an engine is started with, as a value that crosses a process border as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Literal

from pagewire.core.kv_layout import BLOCK_SIZES, BlockOrder
from pagewire.core.messages import Role
from pagewire.engine.adapter_folder import names_of
from pagewire.engine.devices import devices_of, kind_of
from pagewire.engine.preemption import PreemptionMode
from pagewire.engine.scheduling_policy import PolicyName
from pagewire.serving.pod_config import PodConfig

DTYPES = ("auto", "bfloat16", "float32", "float16")
WEIGHT_DTYPES = ("auto", "fp8", "int8")
KV_DTYPES = (*DTYPES, "fp8", "int8")
# Where nothing is asked for: tokens of a chunk, and of a step. On a CPU a pod's decodes would wait for a longer chunk.
CHUNK_SIZE = {"cpu": 512, "cuda": 2048}
POD_CHUNK_SIZE = {"cpu": 256, "cuda": 2048}
MAX_NUM_BATCHED_TOKENS = {"cpu": 1024, "cuda": 4096}
MAX_SPECULATIVE_TOKENS = 64  # of a sequence in a step
MAX_THREADS = 1024  # a million was seen to end the process
TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    `device` is cpu, cuda or cuda:N, or one for each rank; see `devices`. `dtype` auto is bfloat16 where it is
    multiplied well, else float32 on a CPU and float16 on a CUDA device, which alone has float16: `resolve_dtype`.
    `adapters` are LoRA adapters that requests may name, NAME=FOLDER each.
    `weight_dtype` is how weights are kept, auto as they are computed: `kernels/scaled_weight.py`, `coded_weight.py`.
    `kv_dtype` is how keys and values are kept, auto as they are computed; `kernels/kv_elements.py` has fp8 and int8.
    `kv_order` auto is head_outer where each rank has a device of its own: its heads are one span of a block then.
    `kv_memory_bytes` bounds the KV pool, that of all ranks together, `host_kv_memory_bytes` the tier that takes what is
    evicted from it. That lies in a file in the folder `host_kv_dir`, where one is named, and outlives the engine.
    `scheduling` says who goes first, `preemption` how the KV of a preempted sequence comes back.
    A decode computes up to `speculative_tokens` drafted tokens beside its own; see `speculation.py`.
    `step_target_s` bounds what a step should take, 0 for no bound; `brownout` lets service be reduced under pressure.
    `chunk_size` and `max_num_batched_tokens` 0 are what suits the device, and known once this is made.
    `prefix_caching` off computes every prompt whole. `max_model_len` 0 is the model's own, `layer_groups` 0 what suits
    the layout. `threads` 0 takes torch's default, and no more than the cores that are usable; beside a GPU it is one.
    `tensor_parallel` ranks share the model, heads by heads; each is a process of its own with its share of `threads`.
    """

    model: str
    role: Role
    model_name: str = ""  # "" takes the folder's name
    dtype: str = "auto"
    weight_dtype: str = "auto"
    adapters: tuple[str, ...] = ()
    kv_dtype: str = "auto"
    block_size: int = 16
    chunk_size: int = 0
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 32
    kv_memory_bytes: int = 1 << 30
    kv_order: str = "auto"
    layer_groups: int = 0
    prefix_caching: bool = True
    host_kv_memory_bytes: int = 0
    host_kv_dir: str = ""
    deterministic: bool = False
    max_model_len: int = 0
    threads: int = 1
    device: str = "cpu"
    tensor_parallel: int = 1
    scheduling: str = PolicyName.FCFS.value
    preemption: str = PreemptionMode.AUTO.value
    speculative_tokens: int = 0
    step_target_s: float = 0.0
    brownout: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    stall_s: float = 60.0  # the longest step; an engine that takes longer is given up

    def __post_init__(self) -> None:
        self._check_types()
        if self.tensor_parallel < 1:
            raise ValueError(f"tensor_parallel must be positive, is {self.tensor_parallel}")
        devices, kind = self.devices, kind_of(self.device)
        object.__setattr__(self, "chunk_size", self.chunk_size or CHUNK_SIZE[kind])
        object.__setattr__(self, "max_num_batched_tokens", self.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS[kind])
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.weight_dtype not in WEIGHT_DTYPES:
            raise ValueError(f"weight_dtype {self.weight_dtype!r} is not one of {', '.join(WEIGHT_DTYPES)}")
        if self.weight_dtype == "int8" and kind != "cpu":
            raise ValueError(f"weight_dtype int8: products in 8 bits are a CPU's; on {self.device} there is fp8")
        if self.kv_dtype not in KV_DTYPES:
            raise ValueError(f"kv_dtype {self.kv_dtype!r} is not one of {', '.join(KV_DTYPES)}")
        if kind == "cpu" and "float16" in (self.dtype, self.kv_dtype):
            raise ValueError(f"dtype float16 needs a CUDA device, not {self.device}; take bfloat16 or float32")
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size {self.block_size} is not one of {BLOCK_SIZES}")
        if self.kv_order not in ("auto", *BlockOrder):
            raise ValueError(f"kv_order {self.kv_order!r} is not one of auto, {', '.join(BlockOrder)}")
        own_order = BlockOrder.HEAD_OUTER if len(devices) > 1 else BlockOrder.LAYER_OUTER
        object.__setattr__(self, "kv_order", own_order.value if self.kv_order == "auto" else self.kv_order)
        if self.scheduling not in list(PolicyName):
            raise ValueError(f"scheduling {self.scheduling!r} is not one of {', '.join(PolicyName)}")
        if self.preemption not in list(PreemptionMode):
            raise ValueError(f"preemption {self.preemption!r} is not one of {', '.join(PreemptionMode)}")
        if self.preemption == PreemptionMode.SWAP and not self.host_kv_memory_bytes:
            raise ValueError("preemption swap needs host memory to swap to: set host_kv_memory")
        if self.preemption == PreemptionMode.SWAP and not self.prefix_caching:
            raise ValueError("preemption swap uses the prefix cache: it needs prefix_caching")
        if self.host_kv_dir and not self.host_kv_memory_bytes:
            raise ValueError(f"host_kv_dir {self.host_kv_dir}: host_kv_memory says how large the file in it is; set it")
        if self.host_kv_dir and not self.prefix_caching:
            raise ValueError(
                f"host_kv_dir {self.host_kv_dir}: what would be kept is the prefix cache: it needs prefix_caching"
            )
        for name in ("chunk_size", "max_num_batched_tokens", "max_num_seqs", "kv_memory_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, is {getattr(self, name)}")
        if not 0 <= self.speculative_tokens <= MAX_SPECULATIVE_TOKENS:
            most = MAX_SPECULATIVE_TOKENS
            raise ValueError(f"speculative_tokens must be 0 to {most}, is {self.speculative_tokens}")
        if not self.stall_s > 0:
            raise ValueError(f"stall_s must be positive, is {self.stall_s}")
        if isinstance(self.adapters, str) or not all(isinstance(each, str) for each in self.adapters):
            raise ValueError(f"adapters is a list of NAME=FOLDER, is {self.adapters!r:.100}")
        object.__setattr__(self, "adapters", tuple(self.adapters))
        names_of(self.adapters)
        self._check_ranks()
        if self.layer_groups > 1 and kind != "cpu":
            raise ValueError(
                f"layer_groups {self.layer_groups}: on device {self.device} layers are still being computed when they "
                "would be told of"
            )
        for name in ("max_model_len", "threads", "host_kv_memory_bytes", "layer_groups", "step_target_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative, is {getattr(self, name)}")
        if self.max_model_len == 1:
            raise ValueError("max_model_len must be 0 or at least 2, for a prompt and what follows it, is 1")
        if self.threads > MAX_THREADS:
            raise ValueError(f"threads must be at most {MAX_THREADS}, is {self.threads}")

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):
            value, kinds = getattr(self, field.name), TYPES.get(str(field.type))
            # Python's bool is an int.
            if kinds and not (isinstance(value, kinds) and isinstance(value, bool) == (bool in kinds)):
                raise ValueError(f"{field.name} must be of type {field.type}, is {value!r:.100}")

    def _check_ranks(self) -> None:
        if self.tensor_parallel == 1:
            return
        asked = f"tensor_parallel {self.tensor_parallel}"
        if len(self.devices) > 1 and self.kv_order != BlockOrder.HEAD_OUTER:
            raise ValueError(
                f"{asked}: kv_order {self.kv_order}, where each rank's heads are to be one span of a block: "
                "each has a device of its own"
            )
        if self.deterministic:
            raise ValueError(f"{asked}: deterministic promises one process's sums, and ranks sum otherwise")
        if self.layer_groups > 1:
            raise ValueError(f"{asked}: layer_groups {self.layer_groups} are told of before all ranks have succeeded")

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of each rank, with its part of the pool; one is that of all ranks, with a pool in common."""
        return devices_of(self.device, self.tensor_parallel)

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """What requests may name."""
        return names_of(self.adapters)

    @classmethod
    def of(cls, pod: PodConfig) -> EngineConfig:
        """Return the part of a pod's configuration that its engine needs."""
        return cls(
            model=pod.model,
            role=pod.role,
            dtype=pod.dtype,
            weight_dtype=pod.weight_dtype,
            adapters=pod.adapter,
            kv_dtype=pod.kv_dtype,
            block_size=pod.block_size,
            chunk_size=pod.chunk_size or POD_CHUNK_SIZE.get(kind_of(pod.device), 0),
            max_num_batched_tokens=pod.max_num_batched_tokens,
            max_num_seqs=pod.max_num_seqs,
            kv_memory_bytes=pod.kv_memory,
            kv_order=pod.kv_order,
            layer_groups=pod.layer_groups,
            prefix_caching=pod.prefix_caching,
            host_kv_memory_bytes=pod.host_kv_memory,
            host_kv_dir=pod.host_kv_dir,
            deterministic=pod.deterministic,
            max_model_len=pod.max_model_len,
            threads=pod.threads,
            device=pod.device,
            tensor_parallel=pod.tensor_parallel,
            scheduling=pod.scheduling,
            preemption=pod.preemption,
            speculative_tokens=pod.speculative_tokens,
            step_target_s=pod.step_target_ms / 1000,
            brownout=pod.brownout == "on",
            stall_s=pod.engine_stall_s,
            log_level=pod.log_level,
            log_format=pod.log_format,
        )

    def to_json(self) -> str:
        """Return the settings as a JSON object."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EngineConfig:
        """Return the settings in a JSON object; raises TypeError on an unknown name, ValueError on a bad value."""
        fields = json.loads(text)
        return cls(**{**fields, "role": Role(fields["role"])})
