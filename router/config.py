"""What an operator can set about a router; plain values, loaded by `core/config.py`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pagewire.core.config import setting
from pagewire.core.units import parse_bytes


class PolicyName(StrEnum):
    """The placement policies, by the name that chooses them."""

    PREFIX_AFFINITY = "prefix_affinity"
    LEAST_LOADED = "least_loaded"
    ROUND_ROBIN = "round_robin"


class PrefillMode(StrEnum):
    """Where prompts are prefilled: on a prefill pod if one can, on the decode pod, or as the decode pod decides."""

    REMOTE = "remote"
    AUTO = "auto"
    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Settings of one router process."""

    model: str = setting(help="Hugging Face folder of the model, or the name of a local model")
    cluster: str = setting("pagewire", help="name of the cluster; prefixes its keys in Redis")
    cluster_secret: str = setting(help="secret that all processes of the cluster share", is_secret=True)
    redis_url: str = setting(
        "redis://127.0.0.1:6379/0", help="Redis or Valkey for discovery and the prefix index", is_secret=True
    )
    name: str = setting("router", help="name of this router on its links")
    host: str = setting("127.0.0.1", help="address to listen on")
    port: int = setting(8000, help="HTTP port, 0 for any")
    grpc_port: int = setting(50050, help="gRPC port, 0 for any")
    policy: PolicyName = setting(PolicyName.PREFIX_AFFINITY, help="how pods are chosen")
    prefill_mode: PrefillMode = setting(
        PrefillMode.REMOTE, help="where prompts are prefilled; auto: the decode pod compares"
    )
    max_concurrent: int = setting(1024, help="requests at once; more are refused with a time to come back")
    max_attempts: int = setting(3, help="how often one request may be placed")
    retry_ratio: float = setting(0.2, help="further attempts earned per admitted request")
    retry_burst: int = setting(256, help="further attempts held in reserve")
    max_body_bytes: int = setting(8 << 20, help="largest request body", unit="bytes", parse=parse_bytes)
    request_timeout_s: float = setting(600.0, help="deadline of a request", unit="s")
    placement_wait_s: float = setting(2.0, help="how long a request waits for a pod when none is linked", unit="s")
    index_timeout_s: float = setting(0.02, help="bound of an index lookup, after which it is done without", unit="s")
    discovery_s: float = setting(1.0, help="how often Redis is asked for pods", unit="s")
    drain_s: float = setting(30.0, help="time to finish running requests after SIGTERM", unit="s")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", help="least severe line that is logged")

    def __post_init__(self) -> None:
        if not self.cluster_secret:
            raise ValueError("cluster_secret is empty: links would be open to anybody")
        for name in ("port", "grpc_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ValueError(f"{name} must be between 0 and 65535, is {getattr(self, name)}")
        for name in ("max_concurrent", "max_attempts", "max_body_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
