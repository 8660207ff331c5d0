from pagewire.protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frames(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("hello", "welcome", "refused", "heartbeat", "challenge", "submit", "cancel", "tokens", "ended", "stop", "cache_events", "change_role", "role_answer", "run", "run_accepted", "shipment_refused", "chunk_ready", "first_token", "shipment_failed", "landed", "resend", "fence", "fenced", "fetch", "fetch_ready")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    CACHE_EVENTS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_ROLE_FIELD_NUMBER: _ClassVar[int]
    ROLE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RUN_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    SHIPMENT_REFUSED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_READY_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHIPMENT_FAILED_FIELD_NUMBER: _ClassVar[int]
    LANDED_FIELD_NUMBER: _ClassVar[int]
    RESEND_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    FETCH_READY_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    welcome: Welcome
    refused: Refused
    heartbeat: Heartbeat
    challenge: Challenge
    submit: Submit
    cancel: Cancel
    tokens: Tokens
    ended: Ended
    stop: Stop
    cache_events: CacheEvents
    change_role: ChangeRole
    role_answer: RoleAnswer
    run: Run
    run_accepted: RunAccepted
    shipment_refused: ShipmentRefused
    chunk_ready: ChunkReady
    first_token: FirstToken
    shipment_failed: ShipmentFailed
    landed: Landed
    resend: Resend
    fence: Fence
    fenced: Fenced
    fetch: Fetch
    fetch_ready: FetchReady
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., challenge: _Optional[_Union[Challenge, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., cache_events: _Optional[_Union[CacheEvents, _Mapping]] = ..., change_role: _Optional[_Union[ChangeRole, _Mapping]] = ..., role_answer: _Optional[_Union[RoleAnswer, _Mapping]] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., run_accepted: _Optional[_Union[RunAccepted, _Mapping]] = ..., shipment_refused: _Optional[_Union[ShipmentRefused, _Mapping]] = ..., chunk_ready: _Optional[_Union[ChunkReady, _Mapping]] = ..., first_token: _Optional[_Union[FirstToken, _Mapping]] = ..., shipment_failed: _Optional[_Union[ShipmentFailed, _Mapping]] = ..., landed: _Optional[_Union[Landed, _Mapping]] = ..., resend: _Optional[_Union[Resend, _Mapping]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., fetch_ready: _Optional[_Union[FetchReady, _Mapping]] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("oldest_wire_version", "wire_version", "peer_id", "incarnation", "role", "epoch", "fingerprint", "transports", "proof", "nonce", "takes_socket")
    OLDEST_WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TAKES_SOCKET_FIELD_NUMBER: _ClassVar[int]
    oldest_wire_version: int
    wire_version: int
    peer_id: str
    incarnation: str
    role: str
    epoch: int
    fingerprint: _common_pb2.Fingerprint
    transports: _containers.RepeatedScalarFieldContainer[str]
    proof: bytes
    nonce: bytes
    takes_socket: bool
    def __init__(self, oldest_wire_version: _Optional[int] = ..., wire_version: _Optional[int] = ..., peer_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., role: _Optional[str] = ..., epoch: _Optional[int] = ..., fingerprint: _Optional[_Union[_common_pb2.Fingerprint, _Mapping]] = ..., transports: _Optional[_Iterable[str]] = ..., proof: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., takes_socket: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("wire_version", "peer_id", "incarnation", "role", "epoch", "fingerprint", "transports", "proof", "socket_port")
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    SOCKET_PORT_FIELD_NUMBER: _ClassVar[int]
    wire_version: int
    peer_id: str
    incarnation: str
    role: str
    epoch: int
    fingerprint: _common_pb2.Fingerprint
    transports: _containers.RepeatedScalarFieldContainer[str]
    proof: bytes
    socket_port: int
    def __init__(self, wire_version: _Optional[int] = ..., peer_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., role: _Optional[str] = ..., epoch: _Optional[int] = ..., fingerprint: _Optional[_Union[_common_pb2.Fingerprint, _Mapping]] = ..., transports: _Optional[_Iterable[str]] = ..., proof: _Optional[bytes] = ..., socket_port: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.ErrorInfo
    def __init__(self, error: _Optional[_Union[_common_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("load", "wants_cache")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    WANTS_CACHE_FIELD_NUMBER: _ClassVar[int]
    load: _common_pb2.Load
    wants_cache: bool
    def __init__(self, load: _Optional[_Union[_common_pb2.Load, _Mapping]] = ..., wants_cache: _Optional[bool] = ...) -> None: ...

class CacheEvents(_message.Message):
    __slots__ = ("sequence", "hashes", "depths", "tiers", "evicted", "part", "num_parts")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    DEPTHS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    NUM_PARTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    depths: _containers.RepeatedScalarFieldContainer[int]
    tiers: _containers.RepeatedScalarFieldContainer[int]
    evicted: _containers.RepeatedScalarFieldContainer[bytes]
    part: int
    num_parts: int
    def __init__(self, sequence: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ..., depths: _Optional[_Iterable[int]] = ..., tiers: _Optional[_Iterable[int]] = ..., evicted: _Optional[_Iterable[bytes]] = ..., part: _Optional[int] = ..., num_parts: _Optional[int] = ...) -> None: ...

class ChangeRole(_message.Message):
    __slots__ = ("role",)
    ROLE_FIELD_NUMBER: _ClassVar[int]
    role: str
    def __init__(self, role: _Optional[str] = ...) -> None: ...

class RoleAnswer(_message.Message):
    __slots__ = ("role", "error")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    role: str
    error: _common_pb2.ErrorInfo
    def __init__(self, role: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("pod_id", "address", "queue_s", "cached_tokens")
    POD_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    pod_id: str
    address: str
    queue_s: float
    cached_tokens: int
    def __init__(self, pod_id: _Optional[str] = ..., address: _Optional[str] = ..., queue_s: _Optional[float] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("pod_id", "address", "num_tokens")
    POD_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    pod_id: str
    address: str
    num_tokens: int
    def __init__(self, pod_id: _Optional[str] = ..., address: _Optional[str] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("spec", "candidates", "prefill", "deadline_s", "sources", "traceparent")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    spec: _common_pb2.SequenceSpec
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    prefill: str
    deadline_s: float
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    traceparent: str
    def __init__(self, spec: _Optional[_Union[_common_pb2.SequenceSpec, _Mapping]] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., prefill: _Optional[str] = ..., deadline_s: _Optional[float] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("request_id", "index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("records", "plain")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenRecord]
    plain: _common_pb2.TokenColumns
    def __init__(self, records: _Optional[_Iterable[_Union[_common_pb2.TokenRecord, _Mapping]]] = ..., plain: _Optional[_Union[_common_pb2.TokenColumns, _Mapping]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("request_id", "error", "report", "timelines")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    TIMELINES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error: _common_pb2.ErrorInfo
    report: _common_pb2.Report
    timelines: _containers.RepeatedCompositeFieldContainer[_common_pb2.Timeline]
    def __init__(self, request_id: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.ErrorInfo, _Mapping]] = ..., report: _Optional[_Union[_common_pb2.Report, _Mapping]] = ..., timelines: _Optional[_Iterable[_Union[_common_pb2.Timeline, _Mapping]]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("spec", "generation", "shipment_id", "first_block", "ship", "ticket", "lease_s", "deadline_s", "sources", "traceparent")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SHIPMENT_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    SHIP_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    spec: _common_pb2.SequenceSpec
    generation: int
    shipment_id: int
    first_block: int
    ship: bool
    ticket: bytes
    lease_s: float
    deadline_s: float
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    traceparent: str
    def __init__(self, spec: _Optional[_Union[_common_pb2.SequenceSpec, _Mapping]] = ..., generation: _Optional[int] = ..., shipment_id: _Optional[int] = ..., first_block: _Optional[int] = ..., ship: _Optional[bool] = ..., ticket: _Optional[bytes] = ..., lease_s: _Optional[float] = ..., deadline_s: _Optional[float] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("request_id", "generation", "shipment_id", "first_block", "hashes", "ticket", "lease_s", "deadline_s", "traceparent")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SHIPMENT_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    shipment_id: int
    first_block: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    ticket: bytes
    lease_s: float
    deadline_s: float
    traceparent: str
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., shipment_id: _Optional[int] = ..., first_block: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ..., ticket: _Optional[bytes] = ..., lease_s: _Optional[float] = ..., deadline_s: _Optional[float] = ..., traceparent: _Optional[str] = ...) -> None: ...

class FetchReady(_message.Message):
    __slots__ = ("request_id", "generation", "num_blocks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    num_blocks: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class RunAccepted(_message.Message):
    __slots__ = ("request_id", "generation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class ShipmentRefused(_message.Message):
    __slots__ = ("request_id", "generation", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    error: _common_pb2.ErrorInfo
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class ChunkReady(_message.Message):
    __slots__ = ("request_id", "generation", "first_block", "num_blocks", "group")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    first_block: int
    num_blocks: int
    group: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., first_block: _Optional[int] = ..., num_blocks: _Optional[int] = ..., group: _Optional[int] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("request_id", "generation", "records", "num_blocks", "chunks", "cached_tokens", "computed_tokens", "timeline", "fetched_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    FETCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    records: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenRecord]
    num_blocks: int
    chunks: int
    cached_tokens: int
    computed_tokens: int
    timeline: _common_pb2.Timeline
    fetched_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., records: _Optional[_Iterable[_Union[_common_pb2.TokenRecord, _Mapping]]] = ..., num_blocks: _Optional[int] = ..., chunks: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., timeline: _Optional[_Union[_common_pb2.Timeline, _Mapping]] = ..., fetched_tokens: _Optional[int] = ...) -> None: ...

class ShipmentFailed(_message.Message):
    __slots__ = ("request_id", "generation", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    error: _common_pb2.ErrorInfo
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class Landed(_message.Message):
    __slots__ = ("request_id", "generation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class Resend(_message.Message):
    __slots__ = ("request_id", "generation", "first_block", "num_blocks", "group")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    first_block: int
    num_blocks: int
    group: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., first_block: _Optional[int] = ..., num_blocks: _Optional[int] = ..., group: _Optional[int] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("request_id", "generation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("request_id", "generation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...
