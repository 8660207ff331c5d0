"""What a pod is told at start. Measured facts (how many blocks fit, what a step costs) are not configuration."""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pagewire.core.config import Bounds, check_bounds, setting
from pagewire.core.kv_layout import BLOCK_SIZES
from pagewire.core.messages import Role
from pagewire.core.units import parse_bytes
from pagewire.serving.tls import Tls, Wire, check_redis

_BOUNDS: Bounds = {
    "port socket_port metrics_port": ("between 0 and 65535", lambda number: 0 <= number <= 65535),
    "kv_memory max_num_seqs max_num_waiting tensor_parallel brownout_max_tokens": (
        "at least 1", lambda number: number >= 1,
    ),
    "chunk_size max_num_batched_tokens host_kv_memory layer_groups speculative_tokens threads "
    "step_target_ms drain_s handover_s": ("0 or more", lambda number: number >= 0),
    "max_model_len": ("0 or at least 2, for a prompt and what follows it", lambda number: number == 0 or number > 1),
    "engine_stall_s lease_s transfer_timeout_s": ("more than 0", lambda number: number > 0),
    "step_target_ms engine_stall_s lease_s transfer_timeout_s drain_s handover_s": ("finite", math.isfinite),
    "pin_share": ("above 0 and at most 1", lambda number: 0 < number <= 1),
}  # fmt: skip
_UNENCRYPTED = frozenset(("tcp", "collective", "nixl"))  # transports that leave the host and know no TLS


KV_MEMORY = parse_bytes("1GiB")
KEPT_BYTES_PER_S = 256 << 20  # as slow as a disk may be that a pod's cache is kept on


def check_transports(transports: str) -> None:
    """Raise ValueError where a setting names a transport that sends in the clear, for a cluster with TLS."""
    if bare := _UNENCRYPTED.intersection(transports.replace(" ", "").split(",")):
        raise ValueError(f"transport {', '.join(sorted(bare))} sends in the clear: not where TLS is asked for")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodConfig:
    """One prefill, decode or colocated pod. Block size, cluster and its secret are the same all over a cluster."""

    model: str = setting(help="Hugging Face folder of the model, or the name of a local model")
    role: Role = setting(help="what this pod does")
    host: str = setting("127.0.0.1", help="address to listen on, and for peers to dial where advertise names no other")
    port: int = setting(0, help="gRPC port, 0 for a free one")
    advertise: str = setting(
        "",
        help="HOST:PORT that peers dial, where a proxy or a mapped port stands before this pod; where it listens"
        " when empty",
    )
    socket_port: int = setting(
        0, help="port of the sockets beside gRPC, by which links and the transport tcp go; 0 for a free one"
    )
    metrics_port: int = setting(0, help="HTTP port of /metrics, /health and /live, 0 for a free one")
    pod_id: str = setting("", help="name of this pod in the cluster; made up when empty")
    cluster: str = setting("pagewire", help="name of the cluster; prefixes its keys in Redis")
    cluster_secret: str = setting(help="secret that all processes of the cluster share", is_secret=True)
    tls_cert: str = setting("", help="PEM file of the certificate to show to peers; in the clear when unset")
    tls_key: str = setting("", help="PEM file of that certificate's key")
    tls_ca: str = setting("", help="PEM file of the authority that every process of the cluster has a certificate of")
    tls_name: str = setting("", help="name in all those certificates; the address that is dialled when unset")
    metrics_tls: Literal["auto", "off", "on", "mutual"] = setting(
        "auto",
        help="the HTTP port: off: in the clear; on: with tls_cert; mutual: for certificates of tls_ca alone; auto: on "
        "where there is a tls_cert",
    )
    redis_url: str = setting(
        "redis://127.0.0.1:6379/0",
        help="Redis or Valkey to register in; rediss: with TLS, redis+cluster: a Redis Cluster",
        is_secret=True,
    )
    redis_ca: str = setting("", help="file of certificates to trust with rediss:, the system's when empty")
    redis_cert: str = setting("", help="PEM file of our certificate, for a Redis that asks for one")
    redis_key: str = setting("", help="PEM file of that certificate's key")
    device: str = setting(
        "cpu",
        help="device of the engine and of its KV pool: cpu, cuda or cuda:N; of several ranks that of the first,"
        " the next ones follow, or one for each, with commas",
    )
    tensor_parallel: int = setting(
        1, help="engine processes that share the model, heads by heads; each has its share of threads", unit="ranks"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", help="type of weights and of what is computed; auto: what the device multiplies"
    )
    weight_dtype: Literal["auto", "fp8", "int8"] = setting(
        "auto",
        help="type that weights are kept in; auto: dtype; fp8: half the bytes (GPUs); int8: products in 8 bits (CPUs)",
    )
    adapter: tuple[str, ...] = setting(
        (), help="LoRA adapter that requests may name as their model, NAME=FOLDER as PEFT writes it"
    )
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"] = setting(
        "auto", help="type of KV in its blocks; auto: dtype; fp8 and int8 have a scale per token and head"
    )
    block_size: int = setting(16, help="slots of a KV block: 16, 32, 64 or 128", unit="tokens")
    kv_memory: int = setting(
        KV_MEMORY, help="memory of the KV pool, of all ranks together", unit="bytes", parse=parse_bytes
    )
    host_kv_memory: int = setting(
        0, help="host memory that takes what is evicted from the KV pool, 0 for none", unit="bytes", parse=parse_bytes
    )
    host_kv_dir: str = setting(
        "", help="folder for host_kv_memory to lie in as a file, which the next pod started on it takes over"
    )
    prefix_caching: bool = setting(True, help="reuse the KV of beginnings that prompts share; off: compute all")
    pin_prefix: str = setting("", help="TOML file of named prefixes that are computed at start and never evicted")
    pin_share: float = setting(0.5, help="largest part of the KV pool that pinned prefixes may take, 0 to 1")
    kv_order: Literal["auto", "layer_outer", "head_outer"] = setting(
        "auto", help="outermost axis of a KV block; auto: layer_outer, but where each rank has a GPU head_outer"
    )
    deterministic: bool = setting(
        False, help="promise equal tokens in any batch, chunk and placement, or refuse to start: true or false"
    )
    layer_groups: int = setting(
        0, help="groups of layers a prompt's last chunk is shipped in while it computes, 0: what suits", unit="groups"
    )
    chunk_size: int = setting(
        0, help="largest part of a prompt computed in one step; 0: 256 on a CPU, 2,048 on a GPU", unit="tokens"
    )
    max_num_batched_tokens: int = setting(
        0, help="token budget of a step; 0: 1,024 on a CPU, 4,096 on a GPU", unit="tokens"
    )
    max_num_seqs: int = setting(64, help="sequences in one step at most", unit="sequences")
    max_model_len: int = setting(0, help="longest prompt and output together, 0 for the model's own", unit="tokens")
    max_num_waiting: int = setting(256, help="requests waiting in the pod at most", unit="requests")
    scheduling: Literal["fcfs", "priority", "srpt"] = setting(
        "fcfs", help="who goes first: the first to come, the lowest priority, the shortest remaining prefill"
    )
    preemption: Literal["auto", "recompute", "swap"] = setting(
        "auto",
        help="how a preempted sequence gets its KV back; swap needs host_kv_memory, auto: whichever is cheaper as"
        " measured",
    )
    speculative_tokens: int = setting(
        0,
        help="tokens that a decode drafts from what was said before and checks in one step, at most; 0: none",
        unit="tokens",
    )
    step_target_ms: float = setting(
        0.0,
        help="what a step that decodes should take at most, by taking in less prompt; 0: no bound",
        unit="ms",
    )
    brownout: Literal["off", "on"] = setting("off", help="reduce service in steps under pressure, rather than refuse")
    brownout_max_tokens: int = setting(256, help="longest answer to a new request in the last step", unit="tokens")
    threads: int = setting(0, help="CPU threads of the engine, 0 for all cores, for one beside a GPU", unit="threads")
    engine_stall_s: float = setting(60.0, help="longest step; an engine that takes longer is ended", unit="s")
    lease_s: float = setting(10.0, help="how long unrenewed blocks stay pinned for a peer", unit="s")
    transfer_timeout_s: float = setting(30.0, help="longest wait for the bytes of a finished prompt", unit="s")
    transports: str = setting(
        "auto",
        help="how KV may travel, best first: auto (shm, tcp, grpc; on GPUs cuda_ipc, grpc), or names with commas",
    )
    prefix_fetch: Literal["auto", "always", "never"] = setting(
        "auto", help="whether KV that another pod holds is copied from it; auto: where that is quicker than computing"
    )
    shm_dir: str = setting("", help="directory for sockets of shm and cuda_ipc, shared by pods of other namespaces")
    drain_s: float = setting(
        30.0, help="time to finish running requests after SIGTERM; what still runs then is handed over", unit="s"
    )
    handover_s: float = setting(15.0, help="time for other pods to take over what was handed over", unit="s")
    otlp_endpoint: str = setting(
        "",
        help="http(s)://HOST:PORT of an OpenTelemetry collector (OTLP over gRPC) that traces go to; as "
        "OTEL_EXPORTER_OTLP_ENDPOINT says when unset, and nothing is traced where that is unset too",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", help="least severe line that is logged")
    log_format: Literal["text", "json"] = setting("text", help="lines for people, or one JSON object a line")

    def __post_init__(self) -> None:
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size must be one of {BLOCK_SIZES}, is {self.block_size}")
        check_bounds(self, _BOUNDS)
        if self.host_kv_dir and not self.host_kv_memory:
            raise ValueError("host_kv_dir: host_kv_memory says how large the file in it is; set it")
        if self.preemption == "swap" and not self.host_kv_memory:
            raise ValueError("preemption swap needs host memory to swap to: set host_kv_memory")
        if not self.prefix_caching and (self.pin_prefix or self.preemption == "swap"):
            raise ValueError("pin_prefix and preemption swap use the prefix cache: they need prefix_caching")
        if self.tensor_parallel > 1 and self.device != "cpu" and "nixl" in self.transports:
            raise ValueError(
                f"transports nixl reads one piece of memory: with tensor_parallel {self.tensor_parallel} on "
                f"{self.device} the KV pool lies in as many"
            )
        if not self.cluster_secret:
            raise ValueError("cluster_secret is empty: links would be open to anybody")
        host, _, dialled = self.advertise.rpartition(":")
        if self.advertise and not (host and dialled.isascii() and dialled.isdigit() and 0 < int(dialled) <= 65535):
            raise ValueError(f"advertise must be HOST:PORT, is {self.advertise!r}")
        if bool(self.tls_cert) != bool(self.tls_key) or bool(self.tls_cert) != bool(self.tls_ca):
            raise ValueError("tls_cert, tls_key and tls_ca go together: a pod's peers show certificates too")
        if self.tls_ca:
            check_transports(self.transports)
            check_redis(self.redis_url)
        if self.metrics_tls in ("on", "mutual") and not self.tls_cert:
            raise ValueError(f"metrics_tls {self.metrics_tls} needs a certificate: tls_cert, tls_key and tls_ca")
        if self.role is Role.ROUTER:
            raise ValueError("role must be prefill, decode or colocated: a router is not a pod")

    def wire(self) -> Wire:
        """Return how peers are met; raises ValueError, naming the file, where a certificate cannot be used."""
        return Wire.of(cert=self.tls_cert, key=self.tls_key, ca=self.tls_ca, name=self.tls_name)

    @property
    def metrics_scheme(self) -> Literal["http", "https"]:
        """What a URL of the HTTP port begins with."""
        return "http" if self.metrics_tls == "off" or not self.tls_cert else "https"

    def metrics_context(self) -> ssl.SSLContext | None:
        """Return what the HTTP port answers with, None in the clear; raises ValueError as `wire` does."""
        if self.metrics_scheme == "http":
            return None
        ca = Path(self.tls_ca) if self.metrics_tls == "mutual" else None
        return Tls(cert=Path(self.tls_cert), key=Path(self.tls_key), ca=ca).server_context()
