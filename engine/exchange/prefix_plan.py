"""Where the beginning of a prompt's KV comes from at the least cost: the own cache, another pod's, or computing.

    seconds = min over sources s of  copy(s) + (T - tokens that are here then) x c      copy(none) = 0

c is seconds per prompt token, copy(s) what the link to s is known to cost. Pure. Invariant: nothing is copied that is
here already, and the last token is always computed. A mode may force the choice, never the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pagewire.core.block_hash import max_hit_blocks
from pagewire.core.kv_layout import KVLayout
from pagewire.core.messages import Source
from pagewire.kvtransfer.link_cost import LinkCost

PRIOR_S_PER_TOKEN = 1e-4  # until a pod has measured itself


class FetchMode(StrEnum):
    """Whether KV that another pod holds is copied: where that beats computing it, wherever more is held, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPlan:
    """What is the cheapest: fetch from `source` up to `num_blocks` of the chain, or fetch nothing; and its seconds."""

    num_blocks: int
    seconds: float
    source: Source | None = None


def plan_prefix(
    num_tokens: int,
    cached_blocks: int,
    sources: Iterable[tuple[Source, LinkCost]],
    layout: KVLayout,
    s_per_token: float,
    mode: FetchMode = FetchMode.AUTO,
) -> PrefixPlan:
    """Return how to build a prompt of `num_tokens` of which the first `cached_blocks` blocks are here."""
    cost_s = s_per_token or PRIOR_S_PER_TOKEN
    best = PrefixPlan(num_blocks=cached_blocks, seconds=(num_tokens - cached_blocks * layout.block_size) * cost_s)
    most = max_hit_blocks(num_tokens, layout.block_size)
    for source, link in sources if mode is not FetchMode.NEVER else ():
        end = min(source.num_tokens // layout.block_size, most)
        if end <= cached_blocks:
            continue
        copy_s = link.seconds((end - cached_blocks) * layout.block_bytes)
        seconds = copy_s + (num_tokens - end * layout.block_size) * cost_s
        if mode is FetchMode.ALWAYS:
            is_better = (end, -seconds) > (best.num_blocks, -best.seconds)
        else:
            is_better = seconds < best.seconds
        if is_better:
            best = PrefixPlan(num_blocks=end, seconds=seconds, source=source)
    return best
