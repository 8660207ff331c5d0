"""What the cluster says of itself: pods' loads, and what their caches hold. Plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a pod holds and has to do, by its last heartbeat.

    Blocks: total = free + cached + held + pinned + quarantined; `host` ones lie in host memory, outside the pool.
    Token counts and preemptions are those since the pod's start; the seconds are measured, 0 until they are.
    `brownout` says how far the pod reduces its service: normal, offload, small_prefill or short_answers.
    """

    num_running: int
    num_waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_held: int
    blocks_reserved: int
    blocks_pinned: int
    blocks_host: int
    prompt_tokens: int
    prompt_tokens_computed: int
    prompt_tokens_cached: int
    output_tokens: int
    preemptions: int
    prefill_s_per_token: float
    step_s: float
    draining: bool
    brownout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLoad:
    """A pod that the router knows, and what it serves. Where requests may not be placed on it, `reason` says why.

    `circuit` is "closed", "open" or "half_open" by what this router's attempts on it have shown; `ejected` says why it
    is kept out over that, and is empty while it is not.
    `in_flight` requests and `pending_tokens` of prompts are those of this router alone. `load` is None without a link.
    """

    pod_id: str
    incarnation: str
    address: str
    role: str
    usable: bool
    reason: str
    in_flight: int
    pending_tokens: int
    load: Load | None
    model: str = ""
    circuit: str = ""
    ejected: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A cached block: the hash of its tokens and all before them, its place in the chain from 0, and its tier.

    Tier 0 is the pod's pool, 1 its host memory.
    """

    hash: bytes
    depth: int
    tier: int


class KvEventKind(StrEnum):
    """What a `KvEvent` is."""

    SNAPSHOT = "snapshot"
    CHANGE = "change"
    GAP = "gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEvent:
    """What one pod's cache holds, or how that changed.

    Of each pod a snapshot comes first, in `num_parts` parts: `stored` is what it holds after its change `sequence`.
    Then come its changes, each with the number after the one before. After a gap, whose `reason` is "slow_subscriber"
    or "pod_lost", what the pod holds is not known until its next snapshot.
    """

    kind: KvEventKind
    pod_id: str
    incarnation: str
    sequence: int
    stored: tuple[Block, ...] = ()
    evicted: tuple[bytes, ...] = ()
    part: int = 0
    num_parts: int = 0
    reason: str = ""
