"""What an operator can set about a router; plain values, loaded by `core/config.py`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pagewire.core.config import Bounds, check_bounds, setting
from pagewire.core.units import parse_bytes
from pagewire.router.rebalance import Rules
from pagewire.router.validation import OPEN_ANSWER_TOKENS
from pagewire.serving.tls import Tls, Wire, check_redis


class PrefillMode(StrEnum):
    """Where prompts are prefilled: on a prefill pod if one can, on the decode pod, or as the decode pod decides."""

    REMOTE = "remote"
    AUTO = "auto"
    LOCAL = "local"


class SloGateMode(StrEnum):
    """What is done with requests that should miss an SLO: refused once such predictions proved right, or counted."""

    AUTO = "auto"
    SHADOW = "shadow"


ANY_ORIGIN = "*"
ROOM_FOR_BODIES = 256 << 20  # bytes
_ORIGIN = re.compile(r"[a-z][a-z0-9+.\-]*://[!-~]+")  # as browsers say it, who read no more than equality into it
_IN_NO_ORIGIN = frozenset("/?#@,")

# Of numbers, those that a setting may be; no bound takes "not a number", and seconds that are waited have an end.
_BOUNDS: Bounds = {
    "port grpc_port worker_port": ("between 0 and 65535", lambda number: 0 <= number <= 65535),
    "workers max_concurrent max_attempts max_body_bytes open_answer_tokens breaker_failures balance_ratio": (
        "at least 1", lambda number: number >= 1,
    ),
    "max_waiting max_wait_s slo_ttft_s slo_gap_s slo_tpot_s balance_threshold eject_s retry_ratio retry_burst "
    "placement_wait_s drain_s": ("0 or more", lambda number: number >= 0),
    "silence_s stall_s upload_s watch_s request_timeout_s index_timeout_s discovery_s role_change_wait_s": (
        "more than 0", lambda number: number > 0,
    ),
    "request_timeout_s placement_wait_s drain_s discovery_s": ("finite", math.isfinite),
    "max_ejected_share panic_share trace_ratio": ("between 0 and 1", lambda number: 0 <= number <= 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Settings of one router process."""

    model: tuple[str, ...] = setting(
        help="Hugging Face folder of a model, or the name of a local model; NAME=FOLDER where its pods are those that "
        "go by NAME"
    )
    cluster: str = setting("pagewire", help="name of the cluster; prefixes its keys in Redis")
    cluster_secret: str = setting(help="secret that all processes of the cluster share", is_secret=True)
    tls_cert: str = setting(
        "",
        help="PEM file of our certificate, for pods, and for callers unless edge_cert is set",
    )
    tls_key: str = setting("", help="PEM file of that certificate's key")
    tls_ca: str = setting("", help="PEM file of the authority that every process of the cluster has a certificate of")
    tls_name: str = setting("", help="name in all those certificates; the address that is dialled when unset")
    tls_client_ca: str = setting("", help="PEM file of the authority that callers must show a certificate of")
    edge_cert: str = setting(
        "", help="PEM file of the certificate to show to callers, where it is another than tls_cert"
    )
    edge_key: str = setting("", help="PEM file of that certificate's key")
    redis_url: str = setting(
        "redis://127.0.0.1:6379/0",
        help="Redis or Valkey for discovery and the prefix index; rediss: with TLS, redis+cluster: a Redis Cluster",
        is_secret=True,
    )
    redis_ca: str = setting("", help="file of certificates to trust with rediss:, the system's when empty")
    redis_cert: str = setting("", help="PEM file of our certificate, for a Redis that asks for one")
    redis_key: str = setting("", help="PEM file of that certificate's key")
    name: str = setting("router", help="name of this router on its links")
    host: str = setting("127.0.0.1", help="address to listen on")
    port: int = setting(8000, help="HTTP port, 0 for any")
    grpc_port: int = setting(50050, help="gRPC port, 0 for any")
    workers: int = setting(
        1, help="processes that accept on the same ports; limits are each one's own", unit="processes"
    )
    worker_port: int = setting(
        0,
        help="one more HTTP port, of this process alone, for its metrics and health, 0 for none; of several workers "
        "the first one's, 0 for any",
    )
    reuse_port: bool = setting(
        False, help="share the ports with other routers that are told so: connections are spread"
    )
    policy: str = setting(
        "prefix_affinity",
        help="how pods are chosen: prefix_affinity, slo, least_loaded, two_choices, round_robin, or an entry point",
    )
    policy_seed: int = setting(0, help="of what two_choices draws")
    balance_threshold: int = setting(
        16, help="requests over the least loaded pod's from which prefix_affinity passes a pod over", unit="requests"
    )
    balance_ratio: float = setting(1.5, help="the same as a multiple of them; both must be exceeded")
    slo_ttft_s: float = setting(0.0, help="time to the first token that is promised, 0 for no promise", unit="s")
    slo_gap_s: float = setting(0.0, help="time from the first token to the second that is promised", unit="s")
    slo_tpot_s: float = setting(0.0, help="time per output token that is promised", unit="s")
    prefill_mode: PrefillMode = setting(
        PrefillMode.REMOTE, help="where prompts are prefilled; auto: predicted times decide, here or on the decode pod"
    )
    api_keys: str = setting("", help="TOML file of tenants and their keys' hashes; everybody is let in when unset")
    operator_key: str = setting(
        "", help="key of an operator, who sees what all do and may change pods' roles; empty: nobody's", is_secret=True
    )
    open_metrics: bool = setting(False, help="let /metrics be read without a key, where keys are asked for")
    allow_origin: tuple[str, ...] = setting(
        (), help="origin whose pages browsers let call the API, as https://chat.example; * for any; none when unset"
    )
    tool_format: Literal[
        "auto",
        "none",
        "deepseek",
        "glm",
        "granite",
        "harmony",
        "hermes",
        "kimi_k2",
        "llama3_json",
        "mistral",
        "pythonic",
        "qwen3_coder",
    ] = setting("auto", help="how the model writes tool calls; auto: as its chat template tells it to")
    reasoning_format: Literal["auto", "none", "think", "seed", "mistral", "kimi", "harmony"] = setting(
        "auto", help="how the model marks its reasoning; auto: as its chat template tells"
    )
    generation_config: Literal["auto", "none"] = setting(
        "auto", help="auto: what a request leaves unset of sampling is as the model's generation_config.json says"
    )
    max_concurrent: int = setting(1024, help="requests at once; more are refused with a time to come back")
    stall_s: float = setting(
        60.0, help="how long a client may leave what was sent to it unread before it is hung up on", unit="s"
    )
    upload_s: float = setting(
        60.0, help="how long a request may take to come, from a caller that sends it slowly", unit="s"
    )
    silence_s: float = setting(
        40.0, help="how long a gRPC caller may leave pings unanswered before its requests end", unit="s"
    )
    watch_s: float = setting(
        3600.0,
        help="how long a live page or a subscription to cache events lasts before it has to be asked for anew, "
        "with a key",
        unit="s",
    )
    max_waiting: int = setting(256, help="requests that may wait for a decode pod with room; more are refused")
    max_wait_s: float = setting(10.0, help="how long a request may wait for a decode pod with room", unit="s")
    kv_limit: bool = setting(
        True, help="place a request only where its KV fits to its completion; off: pods alone decide"
    )
    open_answer_tokens: int = setting(
        OPEN_ANSWER_TOKENS,
        help="answer of a request that names no max_tokens, as its KV is counted and a prompt cut by -1 leaves room",
        unit="tokens",
    )
    slo_gate: SloGateMode = setting(
        SloGateMode.AUTO, help="auto: refuse what should miss an objective, while such predictions prove right"
    )
    breaker_failures: int = setting(5, help="failures in a row after which a pod gets no requests for a while")
    eject_s: float = setting(10.0, help="how long that is the first time; each time in a row as much longer", unit="s")
    max_ejected_share: float = setting(0.3, help="most pods of a role that are kept out so; one may be, the last never")
    panic_share: float = setting(0.5, help="healthy pods of a role below which none is kept out")
    max_attempts: int = setting(3, help="how often one request may be placed")
    retry_ratio: float = setting(0.2, help="further attempts earned per admitted request")
    retry_burst: int = setting(256, help="further attempts held in reserve")
    max_body_bytes: int = setting(8 << 20, help="largest request, over HTTP and gRPC", unit="bytes", parse=parse_bytes)
    max_bodies_bytes: int = setting(
        0,
        help="requests that come or wait to be read, all together, at least twice max_body_bytes: at most half of it is"
        " one tenant's; 0: 256 MiB, or that where it is more",
        unit="bytes",
        parse=parse_bytes,
    )
    request_timeout_s: float = setting(600.0, help="deadline of a request", unit="s")
    placement_wait_s: float = setting(2.0, help="how long a request waits for a pod when none is linked", unit="s")
    index_timeout_s: float = setting(0.005, help="bound of an index lookup, after which it is done without", unit="s")
    discovery_s: float = setting(1.0, help="how often Redis is asked for pods", unit="s")
    grpc_reflection: bool = setting(False, help="let gRPC tools ask what is served here")
    drain_s: float = setting(30.0, help="time to finish running requests after SIGTERM", unit="s")
    role_change_wait_s: float = setting(
        60.0, help="how long an order waits to see a pod in its new role; it may take longer", unit="s"
    )
    rebalance: Literal["off", "on"] = setting("off", help="have pods change between prefill and decode by their loads")
    rebalance_high: float = setting(0.8, help="pressure from which a role is short of pods")
    rebalance_low: float = setting(0.6, help="pressure that a role may come to by giving a pod away")
    rebalance_hold_s: float = setting(15.0, help="how long a role has to be short without a gap", unit="s")
    rebalance_cooldown_s: float = setting(60.0, help="least time between two changes", unit="s")
    rebalance_min_prefill: int = setting(1, help="prefill pods that there are to be at least", unit="pods")
    rebalance_min_decode: int = setting(1, help="decode pods that there are to be at least", unit="pods")
    rebalance_queue_s: float = setting(2.0, help="queue of a prefill pod that is a pressure of 1", unit="s")
    rebalance_sequences: int = setting(64, help="sequences of a decode pod that are a pressure of 1", unit="sequences")
    otlp_endpoint: str = setting(
        "",
        help="http(s)://HOST:PORT of an OpenTelemetry collector (OTLP over gRPC) that traces go to; as "
        "OTEL_EXPORTER_OTLP_ENDPOINT says when unset, and nothing is traced where that is unset too",
    )
    trace_ratio: float = setting(
        1.0, help="share of the requests that are traced, of those whose callers have no trace of their own, 0 to 1"
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", help="least severe line that is logged")
    log_format: Literal["text", "json"] = setting("text", help="lines for people, or one JSON object a line")

    def __post_init__(self) -> None:
        if not self.model or isinstance(self.model, str):
            raise ValueError(f"model is a list of at least one, is {self.model!r}")
        if not self.cluster_secret:
            raise ValueError("cluster_secret is empty: links would be open to anybody")
        for pair in (("tls_cert", "tls_key"), ("edge_cert", "edge_key")):
            if bool(getattr(self, pair[0])) != bool(getattr(self, pair[1])):
                raise ValueError(f"{' and '.join(pair)} go together")
        if self.tls_ca and not self.tls_cert:
            raise ValueError("tls_ca needs tls_cert and tls_key: pods want to see a certificate too")
        if self.tls_ca:
            check_redis(self.redis_url)
        if self.tls_client_ca and not (self.tls_cert or self.edge_cert):
            raise ValueError("tls_client_ca needs a certificate of our own: edge_cert or tls_cert")
        _check_origins(self.allow_origin)
        if self.max_bodies_bytes and self.max_bodies_bytes < 2 * self.max_body_bytes:
            raise ValueError("max_bodies_bytes is at least twice max_body_bytes: a tenant may have half of it")
        check_bounds(self, _BOUNDS)
        self.rebalance_rules()  # refuses what cannot be

    @property
    def room_for_bodies(self) -> int:
        """Bytes of all bodies together."""
        return self.max_bodies_bytes or max(ROOM_FOR_BODIES, 2 * self.max_body_bytes)

    def wire(self) -> Wire:
        """Return how pods are dialled; raises ValueError, naming the file, where a certificate cannot be used."""
        return Wire.of(cert=self.tls_cert, key=self.tls_key, ca=self.tls_ca, name=self.tls_name)

    def edge(self) -> Tls | None:
        """Return what callers are met with, None in the clear; raises ValueError as `wire` does."""
        cert, key = self.edge_cert or self.tls_cert, self.edge_key or self.tls_key
        if not cert:
            return None
        ca = Path(self.tls_client_ca) if self.tls_client_ca else None
        tls = Tls(cert=Path(cert), key=Path(key), ca=ca)
        tls.check()
        return tls

    @property
    def certificates(self) -> tuple[tuple[str, str], ...]:
        """What is shown to callers and to pods, each with its key; empty where nothing is."""
        return (self.edge_cert, self.edge_key), (self.tls_cert, self.tls_key)

    def rebalance_rules(self) -> Rules:
        """Return what the rebalancer goes by; raises ValueError."""
        return Rules(
            high=self.rebalance_high,
            low=self.rebalance_low,
            hold_s=self.rebalance_hold_s,
            cooldown_s=self.rebalance_cooldown_s,
            min_prefill=self.rebalance_min_prefill,
            min_decode=self.rebalance_min_decode,
            full_queue_s=self.rebalance_queue_s,
            full_sequences=self.rebalance_sequences,
        )


def _check_origins(origins: Sequence[str]) -> None:
    """Raise ValueError unless each is an origin as browsers say it, or there is one that stands for any."""
    for each in origins:
        is_origin = _ORIGIN.fullmatch(each) and not _IN_NO_ORIGIN.intersection(each.partition("://")[2])
        if each != ANY_ORIGIN and not is_origin:
            raise ValueError(f"allow_origin is like https://chat.example:8443, without a path, or *; is {each!r:.100}")
    if ANY_ORIGIN in origins and len(origins) > 1:
        raise ValueError("allow_origin * is for any origin: no other goes beside it")
