from pagewire.protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("engine_ready", "add", "reserve", "reserved", "bind", "bound", "join", "abort", "release", "freed", "step_done", "ping", "pong", "hold", "held", "keep", "cannot_start", "stop", "become", "became")
    ENGINE_READY_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    FREED_FIELD_NUMBER: _ClassVar[int]
    STEP_DONE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    CANNOT_START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BECOME_FIELD_NUMBER: _ClassVar[int]
    BECAME_FIELD_NUMBER: _ClassVar[int]
    engine_ready: EngineReady
    add: Add
    reserve: Reserve
    reserved: Reserved
    bind: Bind
    bound: Bound
    join: Join
    abort: Abort
    release: Release
    freed: Freed
    step_done: StepDone
    ping: Ping
    pong: Pong
    hold: Hold
    held: Held
    keep: Keep
    cannot_start: CannotStart
    stop: Stop
    become: Become
    became: Became
    def __init__(self, engine_ready: _Optional[_Union[EngineReady, _Mapping]] = ..., add: _Optional[_Union[Add, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., reserved: _Optional[_Union[Reserved, _Mapping]] = ..., bind: _Optional[_Union[Bind, _Mapping]] = ..., bound: _Optional[_Union[Bound, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., freed: _Optional[_Union[Freed, _Mapping]] = ..., step_done: _Optional[_Union[StepDone, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., keep: _Optional[_Union[Keep, _Mapping]] = ..., cannot_start: _Optional[_Union[CannotStart, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., become: _Optional[_Union[Become, _Mapping]] = ..., became: _Optional[_Union[Became, _Mapping]] = ...) -> None: ...

class EngineReady(_message.Message):
    __slots__ = ("layout", "num_blocks", "fingerprint", "eos_token_ids", "vocab_size", "layer_groups", "refused_roles", "devices", "pool_exports")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAYER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_ROLES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    POOL_EXPORTS_FIELD_NUMBER: _ClassVar[int]
    layout: _common_pb2.KVLayout
    num_blocks: int
    fingerprint: _common_pb2.Fingerprint
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    vocab_size: int
    layer_groups: int
    refused_roles: _containers.RepeatedCompositeFieldContainer[RefusedRole]
    devices: _containers.RepeatedScalarFieldContainer[str]
    pool_exports: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, layout: _Optional[_Union[_common_pb2.KVLayout, _Mapping]] = ..., num_blocks: _Optional[int] = ..., fingerprint: _Optional[_Union[_common_pb2.Fingerprint, _Mapping]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., vocab_size: _Optional[int] = ..., layer_groups: _Optional[int] = ..., refused_roles: _Optional[_Iterable[_Union[RefusedRole, _Mapping]]] = ..., devices: _Optional[_Iterable[str]] = ..., pool_exports: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RefusedRole(_message.Message):
    __slots__ = ("role", "reason")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    role: str
    reason: str
    def __init__(self, role: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Become(_message.Message):
    __slots__ = ("role",)
    ROLE_FIELD_NUMBER: _ClassVar[int]
    role: str
    def __init__(self, role: _Optional[str] = ...) -> None: ...

class Became(_message.Message):
    __slots__ = ("role",)
    ROLE_FIELD_NUMBER: _ClassVar[int]
    role: str
    def __init__(self, role: _Optional[str] = ...) -> None: ...

class CannotStart(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Add(_message.Message):
    __slots__ = ("spec", "first_block")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    spec: _common_pb2.SequenceSpec
    first_block: int
    def __init__(self, spec: _Optional[_Union[_common_pb2.SequenceSpec, _Mapping]] = ..., first_block: _Optional[int] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("spec", "first_block")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    spec: _common_pb2.SequenceSpec
    first_block: int
    def __init__(self, spec: _Optional[_Union[_common_pb2.SequenceSpec, _Mapping]] = ..., first_block: _Optional[int] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("request_id", "hit_blocks", "error", "in_parts")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HIT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IN_PARTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    hit_blocks: int
    error: _common_pb2.ErrorInfo
    in_parts: bool
    def __init__(self, request_id: _Optional[str] = ..., hit_blocks: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.ErrorInfo, _Mapping]] = ..., in_parts: _Optional[bool] = ...) -> None: ...

class Bind(_message.Message):
    __slots__ = ("request_id", "num_blocks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    num_blocks: int
    def __init__(self, request_id: _Optional[str] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class Bound(_message.Message):
    __slots__ = ("request_id", "block_ids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., block_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("request_id", "num_computed", "output", "index", "branches")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    num_computed: int
    output: _containers.RepeatedScalarFieldContainer[int]
    index: int
    branches: _containers.RepeatedCompositeFieldContainer[_common_pb2.Branch]
    def __init__(self, request_id: _Optional[str] = ..., num_computed: _Optional[int] = ..., output: _Optional[_Iterable[int]] = ..., index: _Optional[int] = ..., branches: _Optional[_Iterable[_Union[_common_pb2.Branch, _Mapping]]] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("request_id", "index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("request_id", "hashes", "for_good")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    FOR_GOOD_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    for_good: bool
    def __init__(self, request_id: _Optional[str] = ..., hashes: _Optional[_Iterable[bytes]] = ..., for_good: _Optional[bool] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("request_id", "block_ids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., block_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Keep(_message.Message):
    __slots__ = ("request_id", "num_computed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    num_computed: int
    def __init__(self, request_id: _Optional[str] = ..., num_computed: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Freed(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ChunkDone(_message.Message):
    __slots__ = ("request_id", "first_block", "block_ids", "cached_tokens", "computed_tokens", "is_last", "fetched_tokens", "group")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    FETCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    first_block: int
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    cached_tokens: int
    computed_tokens: int
    is_last: bool
    fetched_tokens: int
    group: int
    def __init__(self, request_id: _Optional[str] = ..., first_block: _Optional[int] = ..., block_ids: _Optional[_Iterable[int]] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., is_last: _Optional[bool] = ..., fetched_tokens: _Optional[int] = ..., group: _Optional[int] = ...) -> None: ...

class CachedBlock(_message.Message):
    __slots__ = ("block_hash", "depth", "tier")
    BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    block_hash: bytes
    depth: int
    tier: int
    def __init__(self, block_hash: _Optional[bytes] = ..., depth: _Optional[int] = ..., tier: _Optional[int] = ...) -> None: ...

class SequenceEnd(_message.Message):
    __slots__ = ("request_id", "cached_tokens", "computed_tokens", "error", "fetched_tokens", "chunks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FETCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    cached_tokens: int
    computed_tokens: int
    error: _common_pb2.ErrorInfo
    fetched_tokens: int
    chunks: int
    def __init__(self, request_id: _Optional[str] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.ErrorInfo, _Mapping]] = ..., fetched_tokens: _Optional[int] = ..., chunks: _Optional[int] = ...) -> None: ...

class PromptChunk(_message.Message):
    __slots__ = ("request_id", "num_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    num_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class BlockLife(_message.Message):
    __slots__ = ("lived_s", "idle_s", "gaps_s")
    LIVED_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    GAPS_S_FIELD_NUMBER: _ClassVar[int]
    lived_s: float
    idle_s: float
    gaps_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, lived_s: _Optional[float] = ..., idle_s: _Optional[float] = ..., gaps_s: _Optional[_Iterable[float]] = ...) -> None: ...

class StepDone(_message.Message):
    __slots__ = ("records", "chunks", "ends", "stored", "evicted", "load", "elapsed_s", "prompts", "preempted", "num_tokens", "lives", "plain")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenRecord]
    chunks: _containers.RepeatedCompositeFieldContainer[ChunkDone]
    ends: _containers.RepeatedCompositeFieldContainer[SequenceEnd]
    stored: _containers.RepeatedCompositeFieldContainer[CachedBlock]
    evicted: _containers.RepeatedCompositeFieldContainer[CachedBlock]
    load: _common_pb2.Load
    elapsed_s: float
    prompts: _containers.RepeatedCompositeFieldContainer[PromptChunk]
    preempted: _containers.RepeatedScalarFieldContainer[str]
    num_tokens: int
    lives: _containers.RepeatedCompositeFieldContainer[BlockLife]
    plain: _common_pb2.TokenColumns
    def __init__(self, records: _Optional[_Iterable[_Union[_common_pb2.TokenRecord, _Mapping]]] = ..., chunks: _Optional[_Iterable[_Union[ChunkDone, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[SequenceEnd, _Mapping]]] = ..., stored: _Optional[_Iterable[_Union[CachedBlock, _Mapping]]] = ..., evicted: _Optional[_Iterable[_Union[CachedBlock, _Mapping]]] = ..., load: _Optional[_Union[_common_pb2.Load, _Mapping]] = ..., elapsed_s: _Optional[float] = ..., prompts: _Optional[_Iterable[_Union[PromptChunk, _Mapping]]] = ..., preempted: _Optional[_Iterable[str]] = ..., num_tokens: _Optional[int] = ..., lives: _Optional[_Iterable[_Union[BlockLife, _Mapping]]] = ..., plain: _Optional[_Union[_common_pb2.TokenColumns, _Mapping]] = ...) -> None: ...
