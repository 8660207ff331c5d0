from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorInfo(_message.Message):
    __slots__ = ("cause", "message", "field", "retry_after_s")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    cause: str
    message: str
    field: str
    retry_after_s: float
    def __init__(self, cause: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class TokenBias(_message.Message):
    __slots__ = ("token", "bias")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token: int
    bias: float
    def __init__(self, token: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text", "field")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    field: str
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids", "bad_words", "grammar", "logprobs", "prompt_logprobs", "n", "use_beam_search", "beam_width", "length_penalty", "early_stopping")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    USE_BEAM_SEARCH_FIELD_NUMBER: _ClassVar[int]
    BEAM_WIDTH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    min_tokens: int
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.RepeatedCompositeFieldContainer[TokenBias]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    grammar: Grammar
    logprobs: int
    prompt_logprobs: int
    n: int
    use_beam_search: bool
    beam_width: int
    length_penalty: float
    early_stopping: str
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., min_tokens: _Optional[int] = ..., typical_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Iterable[_Union[TokenBias, _Mapping]]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., n: _Optional[int] = ..., use_beam_search: _Optional[bool] = ..., beam_width: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[str] = ...) -> None: ...

class Branch(_message.Message):
    __slots__ = ("index", "output")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    index: int
    output: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., output: _Optional[_Iterable[int]] = ...) -> None: ...

class CacheQuota(_message.Message):
    __slots__ = ("tag", "share")
    TAG_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    tag: bytes
    share: float
    def __init__(self, tag: _Optional[bytes] = ..., share: _Optional[float] = ...) -> None: ...

class SequenceSpec(_message.Message):
    __slots__ = ("request_id", "tokens", "sampling", "root", "output", "index", "priority", "branches", "cache_quota", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    CACHE_QUOTA_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParams
    root: bytes
    output: _containers.RepeatedScalarFieldContainer[int]
    index: int
    priority: int
    branches: _containers.RepeatedCompositeFieldContainer[Branch]
    cache_quota: CacheQuota
    adapter: str
    def __init__(self, request_id: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., root: _Optional[bytes] = ..., output: _Optional[_Iterable[int]] = ..., index: _Optional[int] = ..., priority: _Optional[int] = ..., branches: _Optional[_Iterable[_Union[Branch, _Mapping]]] = ..., cache_quota: _Optional[_Union[CacheQuota, _Mapping]] = ..., adapter: _Optional[str] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token", "logprob", "rank", "top_tokens", "top_logprobs")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    rank: int
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class TokenRecord(_message.Message):
    __slots__ = ("request_id", "index", "position", "tokens", "finish_reason", "logprobs", "prompt_logprobs", "cumulative_logprob", "score")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    position: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    cumulative_logprob: float
    score: float
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., position: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., cumulative_logprob: _Optional[float] = ..., score: _Optional[float] = ...) -> None: ...

class TokenColumns(_message.Message):
    __slots__ = ("request_ids", "positions", "tokens")
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    positions: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ..., positions: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Inflow(_message.Message):
    __slots__ = ("source", "num_bytes")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    source: str
    num_bytes: int
    def __init__(self, source: _Optional[str] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("num_running", "num_waiting", "waiting_tokens", "blocks_total", "blocks_free", "blocks_cached", "blocks_held", "blocks_reserved", "blocks_orphaned", "prompt_tokens_computed", "prompt_tokens_cached", "output_tokens", "preemptions", "prefill_s_per_token", "step_s", "draining", "blocks_host", "blocks_pinned", "prompt_tokens", "prompt_tokens_pinned", "preemptions_swapped", "copy_out_s_per_block", "copy_in_s_per_block", "prefill_budget", "brownout", "blocks_shared", "block_steps", "block_steps_shared", "step_sequences", "step_s_per_sequence", "link_rtt_s", "link_s_per_token", "blocks_evicted", "blocks_evicted_over_quota", "tenants_over_quota", "blocks_allocated", "blocks_freed", "graph_recaptures", "blocks_arriving", "inflows", "at_s", "token_steps", "draft_tokens", "draft_tokens_accepted")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_HELD_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_RESERVED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_ORPHANED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_CACHED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_HOST_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PINNED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_PINNED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_SWAPPED_FIELD_NUMBER: _ClassVar[int]
    COPY_OUT_S_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    COPY_IN_S_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    PREFILL_BUDGET_FIELD_NUMBER: _ClassVar[int]
    BROWNOUT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_SHARED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_STEPS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_STEPS_SHARED_FIELD_NUMBER: _ClassVar[int]
    STEP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STEP_S_PER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LINK_RTT_S_FIELD_NUMBER: _ClassVar[int]
    LINK_S_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_EVICTED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_EVICTED_OVER_QUOTA_FIELD_NUMBER: _ClassVar[int]
    TENANTS_OVER_QUOTA_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREED_FIELD_NUMBER: _ClassVar[int]
    GRAPH_RECAPTURES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_ARRIVING_FIELD_NUMBER: _ClassVar[int]
    INFLOWS_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_held: int
    blocks_reserved: int
    blocks_orphaned: int
    prompt_tokens_computed: int
    prompt_tokens_cached: int
    output_tokens: int
    preemptions: int
    prefill_s_per_token: float
    step_s: float
    draining: bool
    blocks_host: int
    blocks_pinned: int
    prompt_tokens: int
    prompt_tokens_pinned: int
    preemptions_swapped: int
    copy_out_s_per_block: float
    copy_in_s_per_block: float
    prefill_budget: int
    brownout: str
    blocks_shared: int
    block_steps: int
    block_steps_shared: int
    step_sequences: float
    step_s_per_sequence: float
    link_rtt_s: float
    link_s_per_token: float
    blocks_evicted: int
    blocks_evicted_over_quota: int
    tenants_over_quota: int
    blocks_allocated: int
    blocks_freed: int
    graph_recaptures: int
    blocks_arriving: int
    inflows: _containers.RepeatedCompositeFieldContainer[Inflow]
    at_s: float
    token_steps: int
    draft_tokens: int
    draft_tokens_accepted: int
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., blocks_total: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., blocks_held: _Optional[int] = ..., blocks_reserved: _Optional[int] = ..., blocks_orphaned: _Optional[int] = ..., prompt_tokens_computed: _Optional[int] = ..., prompt_tokens_cached: _Optional[int] = ..., output_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., prefill_s_per_token: _Optional[float] = ..., step_s: _Optional[float] = ..., draining: _Optional[bool] = ..., blocks_host: _Optional[int] = ..., blocks_pinned: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., prompt_tokens_pinned: _Optional[int] = ..., preemptions_swapped: _Optional[int] = ..., copy_out_s_per_block: _Optional[float] = ..., copy_in_s_per_block: _Optional[float] = ..., prefill_budget: _Optional[int] = ..., brownout: _Optional[str] = ..., blocks_shared: _Optional[int] = ..., block_steps: _Optional[int] = ..., block_steps_shared: _Optional[int] = ..., step_sequences: _Optional[float] = ..., step_s_per_sequence: _Optional[float] = ..., link_rtt_s: _Optional[float] = ..., link_s_per_token: _Optional[float] = ..., blocks_evicted: _Optional[int] = ..., blocks_evicted_over_quota: _Optional[int] = ..., tenants_over_quota: _Optional[int] = ..., blocks_allocated: _Optional[int] = ..., blocks_freed: _Optional[int] = ..., graph_recaptures: _Optional[int] = ..., blocks_arriving: _Optional[int] = ..., inflows: _Optional[_Iterable[_Union[Inflow, _Mapping]]] = ..., at_s: _Optional[float] = ..., token_steps: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., draft_tokens_accepted: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("placement", "prefill_pod", "decode_pod", "prompt_tokens", "prefill_cached_tokens", "prefill_computed_tokens", "decode_cached_tokens", "decode_computed_tokens", "chunks", "manifest_blocks", "blocks_shipped", "bytes_shipped", "transfer_s", "exposed_s", "transport", "causes", "prefill_fetched_tokens", "decode_fetched_tokens", "predicted_local_s", "predicted_remote_s", "notes", "lost_on")
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_POD_FIELD_NUMBER: _ClassVar[int]
    DECODE_POD_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_SHIPPED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SHIPPED_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_S_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    CAUSES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FETCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_FETCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_LOCAL_S_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_REMOTE_S_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    LOST_ON_FIELD_NUMBER: _ClassVar[int]
    placement: str
    prefill_pod: str
    decode_pod: str
    prompt_tokens: int
    prefill_cached_tokens: int
    prefill_computed_tokens: int
    decode_cached_tokens: int
    decode_computed_tokens: int
    chunks: int
    manifest_blocks: int
    blocks_shipped: int
    bytes_shipped: int
    transfer_s: float
    exposed_s: float
    transport: str
    causes: _containers.RepeatedScalarFieldContainer[str]
    prefill_fetched_tokens: int
    decode_fetched_tokens: int
    predicted_local_s: float
    predicted_remote_s: float
    notes: _containers.RepeatedScalarFieldContainer[str]
    lost_on: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, placement: _Optional[str] = ..., prefill_pod: _Optional[str] = ..., decode_pod: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., prefill_cached_tokens: _Optional[int] = ..., prefill_computed_tokens: _Optional[int] = ..., decode_cached_tokens: _Optional[int] = ..., decode_computed_tokens: _Optional[int] = ..., chunks: _Optional[int] = ..., manifest_blocks: _Optional[int] = ..., blocks_shipped: _Optional[int] = ..., bytes_shipped: _Optional[int] = ..., transfer_s: _Optional[float] = ..., exposed_s: _Optional[float] = ..., transport: _Optional[str] = ..., causes: _Optional[_Iterable[str]] = ..., prefill_fetched_tokens: _Optional[int] = ..., decode_fetched_tokens: _Optional[int] = ..., predicted_local_s: _Optional[float] = ..., predicted_remote_s: _Optional[float] = ..., notes: _Optional[_Iterable[str]] = ..., lost_on: _Optional[_Iterable[str]] = ...) -> None: ...

class Stamp(_message.Message):
    __slots__ = ("phase", "at_s")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    phase: str
    at_s: float
    def __init__(self, phase: _Optional[str] = ..., at_s: _Optional[float] = ...) -> None: ...

class Timeline(_message.Message):
    __slots__ = ("process", "stamps")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    STAMPS_FIELD_NUMBER: _ClassVar[int]
    process: str
    stamps: _containers.RepeatedCompositeFieldContainer[Stamp]
    def __init__(self, process: _Optional[str] = ..., stamps: _Optional[_Iterable[_Union[Stamp, _Mapping]]] = ...) -> None: ...

class KVLayout(_message.Message):
    __slots__ = ("num_layers", "num_kv_heads", "head_dim", "block_size", "dtype", "order")
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    order: str
    def __init__(self, num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., block_size: _Optional[int] = ..., dtype: _Optional[str] = ..., order: _Optional[str] = ...) -> None: ...

class Fingerprint(_message.Message):
    __slots__ = ("model_name", "model_digest", "tokenizer_digest", "kv_fingerprint", "kv_layout", "block_size", "hash_version", "max_model_len", "arithmetic", "adapters")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KV_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    HASH_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_digest: str
    tokenizer_digest: str
    kv_fingerprint: str
    kv_layout: str
    block_size: int
    hash_version: int
    max_model_len: int
    arithmetic: str
    adapters: str
    def __init__(self, model_name: _Optional[str] = ..., model_digest: _Optional[str] = ..., tokenizer_digest: _Optional[str] = ..., kv_fingerprint: _Optional[str] = ..., kv_layout: _Optional[str] = ..., block_size: _Optional[int] = ..., hash_version: _Optional[int] = ..., max_model_len: _Optional[int] = ..., arithmetic: _Optional[str] = ..., adapters: _Optional[str] = ...) -> None: ...
