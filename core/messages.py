"""Everything that processes say to one another over links, as plain values; front and engine have a file of their own.

The wire form is `protos/link.proto`; `serving/codec.py` maps one to the other by field name, and a test holds the two
together. Nothing here knows how a message travels.

Who says what to whom:

    both ways        Hello Welcome Refused Heartbeat
    router -> decode Submit Cancel                       decode -> router  Tokens Ended
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
from pagewire.core.errors import InvalidRequest, PagewireError, from_cause
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.sampling import FinishReason, SamplingParams
from pagewire.core.timeline import Timeline

WIRE_VERSION = 3
OLDEST_WIRE_VERSION = 3  # one that knows no `n` or branches would run other sequences than were asked for

MAX_PRIORITY = 100  # priorities are -MAX_PRIORITY .. MAX_PRIORITY, 0 unless set


class Role(StrEnum):
    """What a process is for."""

    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"


class BrownoutLevel(StrEnum):
    """How far a pod under pressure reduces its service; each level does what those before it do as well."""

    NORMAL = "normal"
    OFFLOAD = "offload"  # idle cached blocks go to host memory ahead of need
    SMALL_PREFILL = "small_prefill"  # steps take in less prompt
    SHORT_ANSWERS = "short_answers"  # new requests get fewer tokens at most, and are told


# ---------------------------------------------------------------------------------------------------- shared values


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """A `PagewireError` as a value."""

    cause: str
    message: str
    field: str = ""
    retry_after_s: float = 0.0

    @classmethod
    def of(cls, error: PagewireError) -> ErrorInfo:
        """Describe `error`."""
        field = error.field if isinstance(error, InvalidRequest) else ""
        return cls(cause=error.cause, message=error.message, field=field, retry_after_s=error.retry_after_s)

    def error(self) -> PagewireError:
        """Return the error that this describes."""
        return from_cause(self.cause, self.message, field=self.field, retry_after_s=self.retry_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One more sequence of a request: its index, and the tokens that the client already has of it."""

    index: int
    output: tuple[int, ...] = ()


def branches(n: int) -> tuple[Branch, ...]:
    """Return the further sequences of a request for `n` that begins."""
    return tuple(Branch(index=index) for index in range(1, n))


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpec:
    """All an engine needs to run a request: one token stream, and as many more behind the same prompt as `branches`.

    `index` and `output` are those of the first stream. `output` holds tokens that the client already has (`Continue`):
    they are computed like a prompt, and count as output for every stop rule. `root` is where the hash chain starts; it
    carries model, layout, tenant. The lower its `priority`, the sooner it runs, where pods schedule by priority.
    """

    request_id: str
    tokens: tuple[int, ...]
    sampling: SamplingParams
    root: BlockHash
    output: tuple[int, ...] = ()
    index: int = 0
    priority: int = 0
    branches: tuple[Branch, ...] = ()

    @property
    def num_sequences(self) -> int:
        """Token streams of the request that are to run."""
        return 1 + len(self.branches)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """How likely the model held a token, before anything was done to its logits, and what it held likelier.

    Natural logarithms. `rank` 1 is the likeliest. `top_tokens` are the likeliest first, of equal ones the lower id.
    """

    token: int
    logprob: float
    rank: int
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """New tokens of one sequence; `position` is the first one's index in its output, so a gap or a repeat shows.

    `logprobs` is empty or has an entry for each token. `prompt_logprobs` are those of the prompt's tokens from the
    second on, in order, as far as they are known now; a record may have them alone.
    """

    request_id: str
    index: int
    position: int
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a pod holds and has to do, counted now.

    Blocks: total = free + cached + held + pinned + quarantined; `reserved` are promised and not yet bound. `orphaned`
    blocks are held by no live request: always 0 in health. `shared` are those that sequences would hold besides if none
    held a block together with another; of `block_steps`, blocks that sequences held in each step summed over steps,
    `block_steps_shared` were such. `pinned` are cached for good, whether a request holds them
    too or not. `host` counts cached blocks outside the pool, in host memory. `prompt_tokens` are those of admitted
    sequences; of these, `prompt_tokens_cached` were cached, and of those `prompt_tokens_pinned` in pinned blocks.
    `prefill_s_per_token`, `step_s` and what a block costs to copy to host memory and back are measured, 0 until they
    are. Of the `preemptions`, `preemptions_swapped` left their KV to host memory. `prefill_budget` is
    how many prompt tokens the last step might have had.
    """

    num_running: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_held: int = 0
    blocks_reserved: int = 0
    blocks_host: int = 0
    blocks_pinned: int = 0
    blocks_orphaned: int = 0
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_pinned: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    prefill_s_per_token: float = 0.0
    step_s: float = 0.0
    draining: bool = False
    preemptions_swapped: int = 0
    copy_out_s_per_block: float = 0.0
    copy_in_s_per_block: float = 0.0
    prefill_budget: int = 0
    brownout: BrownoutLevel = BrownoutLevel.NORMAL
    blocks_shared: int = 0
    block_steps: int = 0
    block_steps_shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a finished request cost and where: counted by the pods, never derived from what was asked."""

    placement: str  # "remote", "local", or "resumed" when a local completion followed a lost shipment
    transport: str = ""  # what carried the last shipment
    causes: tuple[str, ...] = ()  # of the shipments that were lost, in their order
    prefill_pod: str = ""
    decode_pod: str = ""
    prompt_tokens: int = 0
    prefill_cached_tokens: int = 0
    prefill_computed_tokens: int = 0
    prefill_fetched_tokens: int = 0
    decode_cached_tokens: int = 0
    decode_fetched_tokens: int = 0
    decode_computed_tokens: int = 0
    chunks: int = 0
    manifest_blocks: int = 0
    blocks_shipped: int = 0
    bytes_shipped: int = 0
    transfer_s: float = 0.0
    exposed_s: float = 0.0
    predicted_local_s: float = 0.0  # until the first token; 0 where nothing was compared
    predicted_remote_s: float = 0.0
    notes: tuple[str, ...] = ()  # what was done otherwise than asked


# -------------------------------------------------------------------------------------------------------- handshake


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame on a link, from the side that dialled.

    `fingerprint` is None for a router that has not learnt the model yet. `proof` is an HMAC over the rest under the
    cluster's secret.
    """

    oldest_wire_version: int
    wire_version: int
    peer_id: str
    incarnation: str
    role: Role
    epoch: int
    fingerprint: Fingerprint | None = None
    transports: tuple[str, ...] = ()
    proof: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer to `Hello`: the agreed wire version and who answers.

    `transports` are those that both have, the best one first. `proof` covers the hello's, so it cannot be replayed.
    """

    wire_version: int
    peer_id: str
    incarnation: str
    role: Role
    epoch: int
    fingerprint: Fingerprint | None = None
    transports: tuple[str, ...] = ()
    proof: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The answer to a `Hello` that cannot be paired; the link ends after it."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Still alive, every second or so; a pod adds its load."""

    load: Load | None = None


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

    `prefill` is "remote" (wherever a candidate can), "local", or "auto": the pod compares predicted times.
    """

    spec: SequenceSpec
    candidates: tuple[Candidate, ...] = ()
    prefill: str = "remote"
    deadline_s: float = 600.0
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End this request now; the answer is its `Ended`. `reason` is "client", "stop" (a stop string) or "deadline"."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """All new tokens of one step for one router."""

    records: tuple[TokenRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last frame of a request, exactly once. `error` is None when it finished or was stopped by the router."""

    request_id: str
    error: ErrorInfo | None = None
    report: Report | None = None
    timelines: tuple[Timeline, ...] = ()


# ------------------------------------------------------------------------------------------------ decode <-> prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Build the KV of `spec.tokens`, ship the blocks from `first_block` on, and sample the first token.

    `shipment_id` names the bytes on the transport. With `ship` False only the token is wanted. What the prefill pod's
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
    """The prompt is done. `num_blocks` is the manifest's length; 0 when the first token ended the sequence."""

    request_id: str
    generation: int
    record: TokenRecord
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
    Hello | Welcome | Refused | Heartbeat | Submit | Cancel | Tokens | Ended | Run | RunAccepted | ShipmentRefused
    | ChunkReady | FirstToken | ShipmentFailed | Landed | Resend | Fence | Fenced | Fetch | FetchReady
)  # fmt: skip
