"""Everything that processes say to one another over links, as plain values; front and engine have a file of their own.

The wire form is `protos/link.proto`; `serving/codec.py` maps one to the other by field name, and a test holds the two
together. Nothing here knows how a message travels.

Who says what to whom:

    both ways        Challenge Hello Welcome Refused Heartbeat
    router -> decode Submit Stop Cancel                  decode -> router  Tokens Ended
    router -> pod    ChangeRole                          pod -> router     CacheEvents RoleAnswer
    taker -> source  Run Fetch Landed Resend Fence       source -> taker   RunAccepted ShipmentRefused ChunkReady
                                                                           FirstToken FetchReady ShipmentFailed Fenced

A shipment's taker dials its source. `Run` has a prompt built and shipped: its taker is a decode pod, its source a
prefill pod. `Fetch` has cached blocks shipped: taker and source are pods of any role.

`request_id` inside the cluster names one attempt of one request and is never used twice. `generation` counts the
shipments of a request: a frame or a byte of an earlier one is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagewire.core.block_hash import BlockHash
from pagewire.core.cache_events import CacheEvents
from pagewire.core.errors import ErrorInfo
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.load import Load
from pagewire.core.report import Report
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.core.timeline import Timeline
from pagewire.core.token_record import TokenRecord

WIRE_VERSION = 9
COLUMNS_SINCE = 9  # the version from which on plain tokens travel as columns
OLDEST_WIRE_VERSION = 8  # before, whoever was dialled said nothing until it had heard a proof
NONCE_BYTES = 16


class Role(StrEnum):
    """What a process is for."""

    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"


# -------------------------------------------------------------------------------------------------------- handshake


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The first frame on a link, from the side that was dialled: `nonce` makes every proof new."""

    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The answer to `Challenge`, from the side that dialled.

    `fingerprint` is None for a router that has not learnt the model yet. `proof` is an HMAC over who speaks, over the
    challenge and over `nonce` under the cluster's secret: an overheard one is worth nothing, for no challenge comes
    twice, and an overheard answer to it neither, for no nonce does. `takes_socket`: a socket beside the stream is as
    good, see `Welcome`.
    """

    oldest_wire_version: int
    wire_version: int
    peer_id: str
    incarnation: str
    role: Role
    epoch: int
    fingerprint: Fingerprint | None = None
    transports: tuple[str, ...] = ()
    nonce: bytes
    proof: bytes = b""
    takes_socket: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer to `Hello`: the agreed wire version and who answers.

    `transports` are those that both have, the best one first. `proof` covers the hello's, so it cannot be replayed.
    Where there is a `socket_port`, whoever dialled connects to it within seconds, with the tokens that the secret and
    this proof make, and all further frames go there; or it dials anew and takes no socket.
    """

    wire_version: int
    peer_id: str
    incarnation: str
    role: Role
    epoch: int
    fingerprint: Fingerprint | None = None
    transports: tuple[str, ...] = ()
    proof: bytes = b""
    socket_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The answer to a `Hello` that cannot be paired; the link ends after it."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Still alive, every second or so; a pod adds its load.

    A router says with `wants_cache` that it wants to hear of the pod's cache, from a snapshot on, or no more; None says
    nothing new. A pod that knows nothing of this overlooks it.
    """

    load: Load | None = None
    wants_cache: bool | None = None


# ---------------------------------------------------------------------------------------------------- router <-> pod


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRole:
    """Drain, and come back as another incarnation that has this role."""

    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAnswer:
    """The answer to `ChangeRole`: the pod drains for it from now on, or why it does not."""

    role: Role
    error: ErrorInfo | None = None


# ------------------------------------------------------------------------------------------------- router <-> decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A pod of any role that probably holds the KV of the chain's first `num_tokens` tokens, to fetch it from."""

    pod_id: str
    address: str
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A prefill pod that may run the prompt, with the seconds that the router predicts until it starts."""

    pod_id: str
    address: str
    queue_s: float = 0.0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Run this request. With no candidates the pod prefills it itself. `deadline_s` is the time that remains.

    `prefill` is "remote" (wherever a candidate can), "local", or "auto": the pod compares predicted times. Here and
    below, `traceparent` is what the spans of the request go below, as W3C writes it; "" where it is not traced.
    """

    spec: SequenceSpec
    candidates: tuple[Candidate, ...] = ()
    prefill: str = "remote"
    deadline_s: float = 600.0
    sources: tuple[Source, ...] = ()
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """One sequence of a request has met a stop string and is to have no more tokens; the last one's end is `Ended`."""

    request_id: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End this request now; the answer is its `Ended`. `reason` is "client" or "deadline".

    Of one that was handed over, let its blocks go: nobody comes for them any more; `reason` is "moved".
    """

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """All new tokens of one step for one router."""

    records: tuple[TokenRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last frame of a request, exactly once. `error` is None when all its sequences finished or were stopped."""

    request_id: str
    error: ErrorInfo | None = None
    report: Report | None = None
    timelines: tuple[Timeline, ...] = ()


# ------------------------------------------------------------------------------------------------ decode <-> prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Build the KV of `spec.tokens`, ship the blocks from `first_block` on, and sample each sequence's first token.

    `shipment_id` names the bytes on the transport. With `ship` False only the tokens are wanted. What the prefill pod's
    own cache lacks it may fetch from `sources`.
    """

    spec: SequenceSpec
    generation: int
    shipment_id: int
    first_block: int
    ship: bool
    ticket: bytes
    lease_s: float
    deadline_s: float
    sources: tuple[Source, ...] = ()
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Ship what your cache holds of these blocks without a gap: `hashes[i]` names block `first_block + i` of the chain.

    Whoever knows a hash knows the tokens and the tenant's salt behind it.
    """

    request_id: str
    generation: int
    shipment_id: int
    first_block: int
    hashes: tuple[BlockHash, ...]
    ticket: bytes
    lease_s: float
    deadline_s: float
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReady:
    """The answer to `Fetch`: the manifest's length; its blocks are on their way. 0: nothing is held, all is over."""

    request_id: str
    generation: int
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccepted:
    """The prompt is queued."""

    request_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipmentRefused:
    """The answer to a `Run` or `Fetch` that is not taken: nothing is held for it."""

    request_id: str
    generation: int
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReady:
    """Blocks `first_block` .. `first_block + num_blocks - 1` of the chain are final and on their way.

    With a `group` only the KV of that group of their layers is: their other parts are announced by themselves.
    """

    request_id: str
    generation: int
    first_block: int
    num_blocks: int
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The prompt is done: the first token of each sequence that was asked for, in their order.

    `num_blocks` is the manifest's length; 0 when no sequence goes on.
    """

    request_id: str
    generation: int
    records: tuple[TokenRecord, ...]
    num_blocks: int
    chunks: int
    cached_tokens: int
    computed_tokens: int
    timeline: Timeline
    fetched_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipmentFailed:
    """The source gives the request up after it was accepted; it sends nothing more of this generation."""

    request_id: str
    generation: int
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """All blocks arrived and were verified: the prefill pod may release them."""

    request_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """These blocks, or one layer group of them, arrived corrupt: once more, please. Asked at most once of each."""

    request_id: str
    generation: int
    first_block: int
    num_blocks: int
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Stop computing and sending for this generation, and say when that is certain."""

    request_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """Nothing more of this generation will be sent or read, and its blocks are released."""

    request_id: str
    generation: int


LinkMessage = (
    Challenge | Hello | Welcome | Refused | Heartbeat | Submit | Stop | Cancel | Tokens | Ended | Run | RunAccepted
    | ShipmentRefused | ChunkReady | FirstToken | ShipmentFailed | Landed | Resend | Fence | Fenced | Fetch | FetchReady
    | CacheEvents | ChangeRole | RoleAnswer
)  # fmt: skip
