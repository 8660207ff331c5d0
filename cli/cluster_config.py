"""What `pagewire up` is told: the shape of a local cluster. What is unset is left to the services' own defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pagewire.core.config import passed_on, setting, setting_of
from pagewire.kvtransfer.offers import parse_names
from pagewire.router.config import PrefillMode, RouterConfig
from pagewire.serving.pod_config import PodConfig, check_transports
from pagewire.serving.tls import check_redis

MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """One router, pods of each role, and a Valkey server of its own or `redis`."""

    model: str = setting("smollm2", help="name of a local model, or a Hugging Face folder")
    prefill: int | None = setting(None, help="prefill pods; unset: 1, or none beside colocated ones", unit="pods")
    decode: int | None = setting(None, help="decode pods; unset: 1, or none beside colocated ones", unit="pods")
    colocated: int = setting(0, help="colocated pods, which do both", unit="pods")
    cluster: str = setting("", help="name of the cluster; a random one when unset, so that many may share a Redis")
    host: str = setting("127.0.0.1", help="address that everything listens on")
    port: int = setting(8000, help="HTTP port of the router, 0 for a free one")
    grpc_port: int = setting(50050, help="gRPC port of the router, 0 for a free one")
    redis: str = setting(
        "", help="URL of a Redis or Valkey server; an embedded one is started when unset", is_secret=True
    )
    redis_ca: str | None = passed_on(PodConfig, "redis_ca")
    redis_cert: str | None = passed_on(PodConfig, "redis_cert")
    redis_key: str | None = passed_on(PodConfig, "redis_key")
    tls: bool = setting(
        False, help="TLS for callers and between all processes, with certificates that are made for it, or of tls_dir"
    )
    tls_dir: str = setting(
        "", help="folder of certificates as `pagewire certs` writes it, made where it is not; turns tls on"
    )
    api_keys: str | None = passed_on(RouterConfig, "api_keys")
    policy: str | None = passed_on(RouterConfig, "policy")
    slo_ttft_s: float | None = passed_on(RouterConfig, "slo_ttft_s")
    slo_gap_s: float | None = passed_on(RouterConfig, "slo_gap_s")
    slo_tpot_s: float | None = passed_on(RouterConfig, "slo_tpot_s")
    prefill_mode: PrefillMode | None = passed_on(RouterConfig, "prefill_mode")
    workers: int | None = passed_on(RouterConfig, "workers", help="router processes that accept on the same ports")
    device: str | None = passed_on(PodConfig, "device")
    tensor_parallel: int | None = passed_on(PodConfig, "tensor_parallel")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = passed_on(PodConfig, "dtype")
    adapter: tuple[str, ...] = setting_of(PodConfig, "adapter")
    weight_dtype: Literal["auto", "fp8", "int8"] | None = passed_on(PodConfig, "weight_dtype")
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"] | None = passed_on(PodConfig, "kv_dtype")
    block_size: int | None = passed_on(PodConfig, "block_size")
    chunk_size: int | None = passed_on(PodConfig, "chunk_size")
    kv_memory: int | None = passed_on(
        PodConfig, "kv_memory", help="memory of each pod's KV pool, of all ranks together"
    )
    max_num_batched_tokens: int | None = passed_on(PodConfig, "max_num_batched_tokens")
    max_num_seqs: int | None = passed_on(PodConfig, "max_num_seqs")
    max_model_len: int | None = passed_on(PodConfig, "max_model_len")
    lease_s: float | None = passed_on(PodConfig, "lease_s")
    transfer_timeout_s: float | None = passed_on(PodConfig, "transfer_timeout_s")
    transports: str | None = passed_on(PodConfig, "transports")
    prefix_fetch: Literal["auto", "always", "never"] | None = passed_on(PodConfig, "prefix_fetch")
    deterministic: bool | None = passed_on(PodConfig, "deterministic")
    layer_groups: int | None = passed_on(PodConfig, "layer_groups")
    kv_order: Literal["auto", "layer_outer", "head_outer"] | None = passed_on(PodConfig, "kv_order")
    host_kv_memory: int | None = passed_on(
        PodConfig, "host_kv_memory", help="host memory of each pod for blocks that its pool evicts, 0 for none"
    )
    host_kv_dir: str | None = passed_on(
        PodConfig, "host_kv_dir", help="folder for host_kv_memory to lie in as files, which the next cluster takes over"
    )
    prefix_caching: bool | None = passed_on(PodConfig, "prefix_caching")
    pin_prefix: str | None = passed_on(PodConfig, "pin_prefix")
    pin_share: float | None = passed_on(PodConfig, "pin_share")
    scheduling: Literal["fcfs", "priority", "srpt"] | None = passed_on(PodConfig, "scheduling")
    preemption: Literal["auto", "recompute", "swap"] | None = passed_on(PodConfig, "preemption")
    speculative_tokens: int | None = passed_on(PodConfig, "speculative_tokens")
    step_target_ms: float | None = passed_on(PodConfig, "step_target_ms")
    brownout: Literal["off", "on"] | None = passed_on(PodConfig, "brownout")
    brownout_max_tokens: int | None = passed_on(PodConfig, "brownout_max_tokens")
    threads: int = setting(
        0, help="CPU threads of each engine, 0 to share the cores evenly, for one beside a GPU", unit="threads"
    )
    otlp_endpoint: str | None = passed_on(RouterConfig, "otlp_endpoint")
    trace_ratio: float | None = passed_on(RouterConfig, "trace_ratio")
    log_dir: str = setting("", help="folder for the processes' logs; a temporary one when unset")
    log_level: Literal["debug", "info", "warning", "error"] = setting_of(PodConfig, "log_level")
    log_format: Literal["text", "json"] = setting_of(PodConfig, "log_format")
    start_timeout_s: float = setting(300.0, help="longest wait until everything is ready", unit="s")
    drain_s: float = setting(30.0, help="time to finish running requests when stopping", unit="s")

    def __post_init__(self) -> None:
        counts = self._counts
        if min(counts.values()) < 0:
            raise ValueError("prefill, decode and colocated are counts: none may be negative")
        if counts["decode"] + counts["colocated"] < 1:
            raise ValueError("a cluster needs at least one decode or colocated pod")
        if self.host_kv_dir and not self.host_kv_memory:
            raise ValueError("host_kv_dir: host_kv_memory says how large the files in it are; set it")
        if self.preemption == "swap" and not self.host_kv_memory:
            raise ValueError("preemption swap needs host memory to swap to: set host_kv_memory")
        if self.transports is not None:
            parse_names(self.transports, self.device or "cpu")
        if self.is_encrypted:
            check_transports(self.transports or "auto")
            check_redis(self.redis)
        for name in ("port", "grpc_port"):
            if not 0 <= getattr(self, name) <= MAX_PORT:
                raise ValueError(f"{name} must be between 0 and {MAX_PORT}, is {getattr(self, name)}")

    @property
    def is_encrypted(self) -> bool:
        """Whether all that these processes say to one another goes by TLS."""
        return self.tls or bool(self.tls_dir)

    @property
    def pods(self) -> dict[str, str]:
        """The pods by name, each with its role."""
        return {f"{role}-{number}": role for role, count in self._counts.items() for number in range(count)}

    @property
    def _counts(self) -> dict[str, int]:
        """How many pods of each role there are; colocated ones need no others, but may have them."""
        unless_said = 0 if self.colocated else 1
        asked = {"prefill": self.prefill, "decode": self.decode, "colocated": self.colocated}
        return {role: unless_said if count is None else count for role, count in asked.items()}
