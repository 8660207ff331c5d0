"""The predictions of one decode pod: what it knows of itself, of its links and of the prefill pods, put together.

Reads loads and meters; decides nothing. Invariant: it never dials anybody to know more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagewire.core.kv_layout import KVLayout
from pagewire.core.load import Load
from pagewire.core.messages import Candidate, Source
from pagewire.decode_service.prefill_choice import Calibration, local_s, remote_s
from pagewire.engine.exchange.peers import Peers
from pagewire.engine.exchange.prefix_plan import PrefixPlan, plan_prefix


class PrefillCosts:
    """Predicts seconds until a first token; `here` learns of local prompts, `there` of remote ones."""

    def __init__(self, layout: KVLayout, load: Callable[[], Load], peers: Peers) -> None:
        self.here = Calibration()
        self.there = Calibration()
        self._layout = layout
        self._load = load
        self._peers = peers

    @property
    def s_per_token(self) -> float:
        """Seconds per prompt token here: as measured, else as the quickest peer measured, 0 while nobody has.

        Pods of one cluster run the same model; one that has only ever decoded takes a peer's word for it.
        """
        if own := self._load().prefill_s_per_token:
            return own
        loads = (peer.load for peer in self._peers.all().values())
        return min((load.prefill_s_per_token for load in loads if load and load.prefill_s_per_token), default=0.0)

    def prefix(self, num_tokens: int, cached_blocks: int, sources: Sequence[Source]) -> PrefixPlan:
        """Return the cheapest beginning of a prompt that is built here."""
        known = [(source, self._peers.cost(source.pod_id, source.address)) for source in sources]
        return plan_prefix(num_tokens, cached_blocks, known, self._layout, self.s_per_token)

    def local_s(self, num_tokens: int, cached_blocks: int, sources: Sequence[Source]) -> float:
        """Return the predicted seconds until the first token of a prompt that is built here."""
        prefix = self.prefix(num_tokens, cached_blocks, sources)
        return self.here.factor * local_s(prefix, self._load(), self.s_per_token)

    def remote_s(self, num_tokens: int, candidate: Candidate, sources: Sequence[Source]) -> float:
        """Return the same for a prompt that `candidate` builds; what it fetches is taken to cost what it costs us."""
        peer = self._peers.known(candidate.pod_id, candidate.address)
        load = peer.load if peer is not None else None
        link = self._peers.cost(candidate.pod_id, candidate.address)
        cost_s = (load.prefill_s_per_token if load is not None else 0.0) or self.s_per_token
        cached_blocks = max(0, candidate.cached_tokens) // self._layout.block_size
        plan = plan_prefix(num_tokens, cached_blocks, [(source, link) for source in sources], self._layout, cost_s)
        return self.there.factor * remote_s(plan, candidate, load, cost_s, link)
