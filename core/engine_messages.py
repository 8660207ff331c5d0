"""What a pod's front and its engine process say to one another, as plain values.

    front -> engine  Become Add Reserve Bind Keep Join Stop Abort Hold Release Ping
    engine -> front  EngineReady CannotStart Became Reserved Bound StepDone Freed Held Pong

The wire form is `protos/engine.proto`. A sequence goes by the `request_id` of its spec; each is used once.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.block_hash import BlockHash
from pagewire.core.errors import ErrorInfo
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.kv_layout import KVLayout
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.core.sequence_spec import Branch, SequenceSpec
from pagewire.core.token_record import TokenRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRole:
    """A role that an engine cannot have as it was started, and why."""

    role: Role
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReady:
    """The model is loaded and warm. The pool is `num_blocks` blocks at the start of the shared memory.

    A block travels in `layer_groups` parts. Every role of a pod can be had that is not among `refused_roles`. `devices`
    are the UUIDs of the GPUs that compute; where there are some the pool lies there, a part for each rank, and
    `pool_exports` let other processes of the host map them (see `Export`).
    """

    layout: KVLayout
    num_blocks: int
    fingerprint: Fingerprint
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    layer_groups: int
    refused_roles: tuple[RefusedRole, ...] = ()
    devices: tuple[str, ...] = ()
    pool_exports: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotStart:
    """In place of `EngineReady`: a model or a setting that cannot work. The process ends with it."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Become:
    """Go on with this role, between two steps. What still runs or is held is cut off; what is cached stays.

    What is told before the answer is all that the cache holds: whoever gives the order may know nothing of it.
    """

    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Became:
    """The answer to `Become`."""

    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Run a sequence from its tokens. A prefill pod builds the KV, samples once, holds the blocks until `Release`.

    `first_block`: chunks are reported from this block of the chain on.
    """

    spec: SequenceSpec
    first_block: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Pin what the cache holds of the prompt and promise the blocks for the rest, with the room to decode if it will.

    `first_block` is that of `Add`, for a sequence that hands off.
    """

    spec: SequenceSpec
    first_block: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The answer to `Reserve`: how many leading blocks are cached and pinned, or why not.

    One that comes `in_parts` is larger than the pool, or may be: no block is pinned or promised, none can be brought
    here, and once it joins it waits for its blocks and computes all of its prompt.
    """

    request_id: str
    hit_blocks: int = 0
    error: ErrorInfo | None = None
    in_parts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Turn promised blocks into ids: the sequence's block table grows to `num_blocks`."""

    request_id: str
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The answer to `Bind`: the ids of the whole block table, or empty when the sequence is gone."""

    request_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A reserved sequence starts: its first `num_computed` tokens have their KV in its blocks, `output` is already out.

    Whatever is missing is computed here, so this is both adoption after a landed shipment and local completion. Of the
    request's sequences `index` and those of `branches` run on, which are its own and all its branches, or those of them
    that no first token ended.
    """

    request_id: str
    num_computed: int
    output: tuple[int, ...]
    index: int = 0
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The first `num_computed` tokens of a reserved sequence have their KV in its blocks: let the cache know them now.

    Other pods can have them from then on, though the sequence has not joined.
    """

    request_id: str
    num_computed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Pin the cached blocks of these hashes up to the first that is missing, until `Release` of the same id.

    `request_id` names the hold as it would a sequence. `for_good` there is no release: the blocks, a chain from its
    beginning, stay in the pool as long as the engine runs.
    """

    request_id: str
    hashes: tuple[BlockHash, ...]
    for_good: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The answer to `Hold`: the pinned blocks in the order of the hashes; empty: there are none, and all is over."""

    request_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """End a sequence in whatever state; the answer is `Freed`, when no step can touch its blocks any more."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """One sequence of a request is to have no more tokens; the last one's is the request's `SequenceEnd`."""

    request_id: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The blocks of a sequence that was handed off, or of a hold, go back to the cache."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Does the loop still turn? Answered between two steps, so that a step that never ends is no answer."""

    nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The answer to `Ping`."""

    nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """The sequence and its blocks are gone from the engine."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDone:
    """A step completed blocks of a prompt: `block_ids` are those of the chain from `first_block` on.

    `cached_tokens`, `computed_tokens` and `fetched_tokens` are totals of this sequence so far: from this pod's cache,
    computed here, and there when it joined besides. With `is_last` the token record of the
    same step holds the first token.

    With a `group` the step still computes: of these blocks, the last ones of the prompt, only the KV of that group of
    layers is final, and `is_last` is False. The whole of them is told of after the step, in any case.
    """

    request_id: str
    first_block: int
    block_ids: tuple[int, ...]
    cached_tokens: int
    computed_tokens: int
    is_last: bool
    fetched_tokens: int = 0
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedBlock:
    """A block by its hash; `depth` is its place in the chain, from 0, `tier` 0 for the pool and 1 for host memory."""

    block_hash: BlockHash
    depth: int
    tier: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceEnd:
    """All sequences of a request finished, or it failed, and what the engine counted for it.

    `chunks` are the steps in which it computed `computed_tokens` of its prompt.
    """

    request_id: str
    cached_tokens: int
    computed_tokens: int
    error: ErrorInfo | None = None
    fetched_tokens: int = 0
    chunks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChunk:
    """A step computed `num_tokens` of a prompt that stays here."""

    request_id: str
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLife:
    """What became of a sampled block of the pool, from being taken until what was in it was lost.

    It lived `lived_s`, the last `idle_s` of it without anybody taking hold of it; `gaps_s` lie between the last times
    that somebody did, after the one who took it.
    """

    lived_s: float
    idle_s: float
    gaps_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """What one step, or one command between steps, brought about; or what a step that still computes has done of its
    chunks (then there is nothing else in it).

    What is too long for a frame comes in several, one behind the other: `load` and `num_tokens` are in the last.
    `elapsed_s` is how long the step computed, 0 where none did. `preempted` are requests of which a sequence had to
    give way, each as often as it had. `num_tokens` are those of prompts that the step computed and those that it drew.
    `lives` are of the sampled blocks whose life has ended.
    """

    records: tuple[TokenRecord, ...] = ()
    chunks: tuple[ChunkDone, ...] = ()
    ends: tuple[SequenceEnd, ...] = ()
    stored: tuple[CachedBlock, ...] = ()
    evicted: tuple[CachedBlock, ...] = ()
    load: Load | None = None
    elapsed_s: float = 0.0
    prompts: tuple[PromptChunk, ...] = ()
    preempted: tuple[str, ...] = ()
    num_tokens: int = 0
    lives: tuple[BlockLife, ...] = ()


EngineMessage = (
    EngineReady | CannotStart | Add | Reserve | Reserved | Bind | Bound | Keep | Join | Abort | Stop | Hold | Held
    | Release | Freed | Ping | Pong | StepDone | Become | Became
)  # fmt: skip
