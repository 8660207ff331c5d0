"""What `pagewire run-batch` is told of its engine; the files are no settings. What is wrong is said by the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pagewire.core.config import setting, setting_of
from pagewire.serving.pod_config import PodConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """An engine in this process, alone: the settings of a pod that mean something without peers or deadlines."""

    model: str = setting("smollm2", help="name of a local model, or a Hugging Face folder")
    device: str = setting_of(PodConfig, "device")
    tensor_parallel: int = setting_of(PodConfig, "tensor_parallel")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting_of(PodConfig, "dtype")
    weight_dtype: Literal["auto", "fp8", "int8"] = setting_of(PodConfig, "weight_dtype")
    adapter: tuple[str, ...] = setting_of(PodConfig, "adapter")
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"] = setting_of(PodConfig, "kv_dtype")
    block_size: int = setting_of(PodConfig, "block_size")
    kv_memory: int = setting_of(PodConfig, "kv_memory")
    host_kv_memory: int = setting_of(PodConfig, "host_kv_memory")
    host_kv_dir: str = setting_of(
        PodConfig, "host_kv_dir", help="folder for host_kv_memory to lie in as a file, which the next run takes over"
    )
    prefix_caching: bool = setting_of(PodConfig, "prefix_caching")
    chunk_size: int = setting_of(
        PodConfig,
        "chunk_size",
        help="largest part of a prompt computed in one step; 0: 512 on a CPU, 2,048 on a GPU",
    )
    max_num_batched_tokens: int = setting_of(PodConfig, "max_num_batched_tokens")
    max_num_seqs: int = setting_of(PodConfig, "max_num_seqs")
    max_model_len: int = setting_of(PodConfig, "max_model_len")
    deterministic: bool = setting_of(PodConfig, "deterministic")
    scheduling: Literal["fcfs", "priority", "srpt"] = setting_of(PodConfig, "scheduling")
    preemption: Literal["auto", "recompute", "swap"] = setting_of(PodConfig, "preemption")
    speculative_tokens: int = setting_of(PodConfig, "speculative_tokens")
    threads: int = setting_of(PodConfig, "threads")
