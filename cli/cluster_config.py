"""What `pagewire up` is told: the shape of a local cluster. What is unset is left to the services' own defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pagewire.core.config import setting
from pagewire.core.units import parse_bytes
from pagewire.kvtransfer.offers import parse_names
from pagewire.router.config import PrefillMode
from pagewire.serving.pod_config import check_transports
from pagewire.serving.tls import check_redis

MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """One router, `prefill` and `decode` pods or else `colocated` ones, and a Valkey server of its own or `redis`."""

    model: str = setting("smollm2", help="name of a local model, or a Hugging Face folder")
    prefill: int = setting(1, help="prefill pods", unit="pods")
    decode: int = setting(1, help="decode pods", unit="pods")
    colocated: int = setting(0, help="colocated pods; more than 0 stands in for prefill and decode pods", unit="pods")
    cluster: str = setting("", help="name of the cluster; a random one when unset, so that many may share a Redis")
    host: str = setting("127.0.0.1", help="address that everything listens on")
    port: int = setting(8000, help="HTTP port of the router, 0 for a free one")
    grpc_port: int = setting(50050, help="gRPC port of the router, 0 for a free one")
    redis: str = setting(
        "", help="URL of a Redis or Valkey server; an embedded one is started when unset", is_secret=True
    )
    redis_ca: str | None = setting(None, help="file of certificates to trust with rediss:")
    redis_cert: str | None = setting(None, help="PEM file of the certificate to show to a Redis that asks for one")
    redis_key: str | None = setting(None, help="PEM file of that certificate's key")
    tls: bool = setting(
        False, help="TLS for callers and between all processes, with certificates that are made for it, or of tls_dir"
    )
    tls_dir: str = setting(
        "", help="folder of certificates as `pagewire certs` writes it, made where it is not; turns tls on"
    )
    api_keys: str | None = setting(None, help="TOML file of tenants and their keys' hashes; without it all are let in")
    policy: str | None = setting(None, help="how the router chooses pods")
    slo_ttft_s: float | None = setting(None, help="time to the first token that is promised", unit="s")
    slo_gap_s: float | None = setting(None, help="time from the first token to the second that is promised", unit="s")
    slo_tpot_s: float | None = setting(None, help="time per output token that is promised", unit="s")
    prefill_mode: PrefillMode | None = setting(None, help="where prompts are prefilled; auto: the decode pod compares")
    workers: int | None = setting(None, help="router processes that accept on the same ports", unit="processes")
    device: str | None = setting(
        None,
        help="device of each engine and of its KV pool: cpu, cuda or cuda:N; of several ranks that of the first,"
        " the next ones follow, or one for each, with commas",
    )
    tensor_parallel: int | None = setting(None, help="engine processes of each pod that share the model", unit="ranks")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = setting(None, help="type of weights")
    adapter: tuple[str, ...] = setting(
        (), help="LoRA adapter that requests may name as their model, NAME=FOLDER as PEFT writes it"
    )
    weight_dtype: Literal["auto", "fp8", "int8"] | None = setting(
        None,
        help="type that weights are kept in; auto: dtype; fp8: half the bytes (GPUs); int8: products in 8 bits (CPUs)",
    )
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"] | None = setting(
        None, help="type of KV in its blocks; auto: dtype"
    )
    block_size: int | None = setting(None, help="slots of a KV block", unit="tokens")
    chunk_size: int | None = setting(None, help="largest part of a prompt computed in one step", unit="tokens")
    kv_memory: int | None = setting(None, help="memory of each pod's KV pool", unit="bytes", parse=parse_bytes)
    max_num_batched_tokens: int | None = setting(None, help="token budget of a step", unit="tokens")
    max_num_seqs: int | None = setting(None, help="sequences in one step at most", unit="sequences")
    max_model_len: int | None = setting(None, help="longest prompt and output together", unit="tokens")
    lease_s: float | None = setting(None, help="how long unrenewed blocks stay pinned for a peer", unit="s")
    transfer_timeout_s: float | None = setting(None, help="longest wait for a finished prompt's bytes", unit="s")
    transports: str | None = setting(
        None, help="how blocks travel, best first, with commas; auto: shm, tcp, grpc; on GPUs cuda_ipc, grpc"
    )
    prefix_fetch: Literal["auto", "always", "never"] | None = setting(
        None, help="whether KV that another pod holds is copied from it; auto: where that is quicker than computing"
    )
    deterministic: bool | None = setting(None, help="equal tokens in any batch, chunk and placement, or no start")
    layer_groups: int | None = setting(None, help="parts that a block travels in", unit="groups")
    kv_order: Literal["auto", "layer_outer", "head_outer"] | None = setting(None, help="what is outermost in a block")
    host_kv_memory: int | None = setting(
        None, help="host memory of each pod for blocks that its pool evicts", unit="bytes", parse=parse_bytes
    )
    host_kv_dir: str | None = setting(
        None, help="folder for host_kv_memory to lie in as files, which the next cluster on it takes over"
    )
    prefix_caching: bool | None = setting(None, help="reuse the KV of beginnings that prompts share")
    pin_prefix: str | None = setting(None, help="TOML file of named prefixes that each pod keeps, never evicted")
    pin_share: float | None = setting(None, help="largest part of a KV pool that pinned prefixes may take, 0 to 1")
    scheduling: Literal["fcfs", "priority", "srpt"] | None = setting(None, help="who goes first on a pod")
    preemption: Literal["auto", "recompute", "swap"] | None = setting(
        None, help="how a preempted sequence gets its KV back; swap needs host_kv_memory"
    )
    speculative_tokens: int | None = setting(
        None, help="tokens that a decode drafts from what was said before, at most; 0: none", unit="tokens"
    )
    step_target_ms: float | None = setting(None, help="what a step that decodes should take", unit="ms")
    brownout: Literal["off", "on"] | None = setting(None, help="reduce service in steps under pressure")
    brownout_max_tokens: int | None = setting(None, help="longest answer in the last of these steps", unit="tokens")
    threads: int = setting(
        0, help="CPU threads of each engine, 0 to share the cores evenly, for one beside a GPU", unit="threads"
    )
    otlp_endpoint: str | None = setting(None, help="OpenTelemetry collector that traces go to: http(s)://HOST:PORT")
    trace_ratio: float | None = setting(None, help="share of requests that are traced, 0 to 1")
    log_dir: str = setting("", help="folder for the processes' logs; a temporary one when unset")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", help="least severe line that is logged")
    log_format: Literal["text", "json"] = setting("text", help="lines for people, or one JSON object a line")
    start_timeout_s: float = setting(300.0, help="longest wait until everything is ready", unit="s")
    drain_s: float = setting(30.0, help="time to finish running requests when stopping", unit="s")

    def __post_init__(self) -> None:
        if self.colocated < 0 or self.prefill < 0 or self.decode < 0:
            raise ValueError("prefill, decode and colocated are counts: none may be negative")
        if self.colocated == 0 and self.decode < 1:
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
        counts = {"prefill": self.prefill, "decode": self.decode}
        if self.colocated:
            counts = {"colocated": self.colocated}
        return {f"{role}-{number}": role for role, count in counts.items() for number in range(count)}
