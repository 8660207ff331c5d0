"""What an engine is asked to run: a request's tokens, how to sample, and how many token streams go on behind them."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.block_hash import BlockHash
from pagewire.core.cache_quota import CacheQuota
from pagewire.core.errors import InvalidRequest
from pagewire.core.sampling import SamplingParams

MAX_ID_CHARS = 1024  # of a request's name inside the cluster
MAX_PRIORITY = 100  # priorities are -MAX_PRIORITY .. MAX_PRIORITY, 0 unless set


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One more sequence of a request: its index, and the tokens that the client already has of it."""

    index: int
    output: tuple[int, ...] = ()


def check_id(request_id: str) -> None:
    """Raise InvalidRequest where a name is longer than any that a router or a pod gives."""
    if len(request_id) > MAX_ID_CHARS:
        raise InvalidRequest(f"a name of {len(request_id)} characters; at most {MAX_ID_CHARS}", field="request_id")


def branches(n: int) -> tuple[Branch, ...]:
    """Return the further ones of `n` sequences that begin."""
    return tuple(Branch(index=index) for index in range(1, n))


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpec:
    """All an engine needs to run a request: one token stream, and as many more behind the same prompt as `branches`.

    `index` and `output` are those of the first stream. `output` holds tokens that the client already has (`Continue`):
    they are computed like a prompt, and count as output for every stop rule. `root` is where the hash chain starts; it
    carries model, layout, adapter, tenant. The lower its `priority`, the sooner it runs, where pods schedule by
    priority. What stays cached of it counts against its `cache_quota`, None for no limit. `adapter` is the name of the
    LoRA adapter that it is computed with, "" for the model alone.
    """

    request_id: str
    tokens: tuple[int, ...]
    sampling: SamplingParams
    root: BlockHash
    output: tuple[int, ...] = ()
    index: int = 0
    priority: int = 0
    branches: tuple[Branch, ...] = ()
    cache_quota: CacheQuota | None = None
    adapter: str = ""

    @property
    def num_sequences(self) -> int:
        """Token streams of the request that are to run."""
        return 1 + len(self.branches)
