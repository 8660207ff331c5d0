"""What `pagewire run-batch` is told of its engine; the files are no settings. What is wrong is said by the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pagewire.core.config import setting
from pagewire.core.units import parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """An engine in this process, alone: the settings of a pod that mean something without peers or deadlines."""

    model: str = setting("smollm2", help="name of a local model, or a Hugging Face folder")
    device: str = setting(
        "cpu",
        help="device of the engine and of its KV pool: cpu, cuda or cuda:N; of several ranks that of the first,"
        " the next ones follow, or one for each, with commas",
    )
    tensor_parallel: int = setting(1, help="processes that share the model, heads by heads", unit="ranks")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting("auto", help="type of weights")
    weight_dtype: Literal["auto", "fp8", "int8"] = setting(
        "auto",
        help="type that weights are kept in; auto: dtype; fp8: half the bytes (GPUs); int8: products in 8 bits (CPUs)",
    )
    adapter: tuple[str, ...] = setting(
        (), help="LoRA adapter that requests may name as their model, NAME=FOLDER as PEFT writes it"
    )
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"] = setting(
        "auto", help="type of KV in its blocks; auto: dtype"
    )
    block_size: int = setting(16, help="slots of a KV block: 16, 32, 64 or 128", unit="tokens")
    kv_memory: int = setting(
        parse_bytes("1GiB"), help="memory of the KV pool, of all ranks together", unit="bytes", parse=parse_bytes
    )
    host_kv_memory: int = setting(
        0, help="host memory that takes what is evicted from the KV pool, 0 for none", unit="bytes", parse=parse_bytes
    )
    host_kv_dir: str = setting(
        "", help="folder for host_kv_memory to lie in as a file, which the next run on it takes over"
    )
    prefix_caching: bool = setting(True, help="reuse the KV of beginnings that prompts share; off: compute all")
    chunk_size: int = setting(
        0, help="largest part of a prompt computed in one step; 0: 512 on a CPU, 2,048 on a GPU", unit="tokens"
    )
    max_num_batched_tokens: int = setting(
        0, help="token budget of a step; 0: 1,024 on a CPU, 4,096 on a GPU", unit="tokens"
    )
    max_num_seqs: int = setting(64, help="sequences in one step at most", unit="sequences")
    max_model_len: int = setting(0, help="longest prompt and output together, 0 for the model's own", unit="tokens")
    deterministic: bool = setting(False, help="promise equal tokens in any batch and chunk, or refuse to start")
    scheduling: Literal["fcfs", "priority", "srpt"] = setting(
        "fcfs", help="who goes first: the first to come, the lowest priority, the shortest remaining prefill"
    )
    preemption: Literal["auto", "recompute", "swap"] = setting(
        "auto", help="how a preempted sequence gets its KV back; swap needs host_kv_memory"
    )
    speculative_tokens: int = setting(
        0, help="tokens that a decode drafts from what was said before, at most; 0: none", unit="tokens"
    )
    threads: int = setting(0, help="CPU threads, 0 for all cores, for one beside a GPU", unit="threads")
