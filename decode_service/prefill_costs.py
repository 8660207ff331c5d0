"""The predictions of one decode pod: what it knows of itself, of its links and of the prefill pods, put together.

Reads loads and meters; decides nothing. Invariant: it never dials anybody to know more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Protocol

from pagewire.core.kv_layout import KVLayout
from pagewire.core.load import Load
from pagewire.core.messages import Candidate, Source
from pagewire.core.rest import faded
from pagewire.decode_service.prefill_choice import Calibration, local_s, remote_s
from pagewire.engine.exchange.prefix_plan import FetchMode, PrefixPlan, plan_prefix
from pagewire.kvtransfer.link_cost import LinkCost


class KnownPeer(Protocol):
    """A pod that was met: its own latest word on its load, None before the first."""

    @property
    def load(self) -> Load | None:
        """What it said last."""
        ...

    @property
    def belief(self) -> float:
        """What share of that is believed where it speaks against asking it, 0 to 1."""
        ...


class KnownPeers(Protocol):
    """The pods that were met, and what taking blocks from them costs."""

    def all(self) -> Mapping[str, KnownPeer]:
        """Return all of them, by pod id."""
        ...

    def known(self, pod_id: str, address: str) -> KnownPeer | None:
        """Return one, None where it was never met."""
        ...

    def cost(self, pod_id: str, address: str) -> LinkCost:
        """Return what taking blocks from it is known to cost."""
        ...


class PrefillCosts:
    """Predicts seconds until a first token; `here` learns of local prompts, `there` of remote ones.

    `fetch` holds for all pods: those that prefill for this one are told the same at their start.
    """

    def __init__(
        self, layout: KVLayout, load: Callable[[], Load], peers: KnownPeers, fetch: FetchMode = FetchMode.AUTO
    ) -> None:
        self.here = Calibration()
        self.there = Calibration()
        self._ticked_s: float | None = None
        self._layout = layout
        self._load = load
        self._peers = peers
        self._fetch = fetch

    @property
    def s_per_token(self) -> float:
        """Seconds per prompt token here: as measured, else the median of what peers measured, 0 while nobody has.

        Pods of one cluster run the same model; one that has only ever decoded takes their word for it. That of the
        quickest alone would be too little, and would speak for computing here wherever the candidate is another. If one
        was slow once and computes no prompt since then, what it measured fades to their word likewise.
        """
        own = self._load().prefill_s_per_token
        loads = [peer.load for peer in self._peers.all().values()]
        measured = [load.prefill_s_per_token for load in loads if load and load.prefill_s_per_token]
        if not measured:
            return own
        return faded(own, median(measured), self.here.belief) if own else median(measured)

    def tick(self, now_s: float) -> None:
        """Look at the clock: corrections that nothing comes to fade."""
        seconds = now_s - (now_s if self._ticked_s is None else self._ticked_s)
        self._ticked_s = now_s
        self.here.rested(seconds)
        self.there.rested(seconds)

    def prefix(self, num_tokens: int, cached_blocks: int, sources: Sequence[Source]) -> PrefixPlan:
        """Return the cheapest beginning of a prompt that is built here."""
        known = [(source, self._peers.cost(source.pod_id, source.address)) for source in sources]
        return plan_prefix(num_tokens, cached_blocks, known, self._layout, self.s_per_token, self._fetch)

    def local_s(self, num_tokens: int, cached_blocks: int, sources: Sequence[Source]) -> float:
        """Return the predicted seconds until the first token of a prompt that is built here."""
        prefix = self.prefix(num_tokens, cached_blocks, sources)
        return self.here.factor * local_s(prefix, self._load(), self.s_per_token)

    def remote_s(self, num_tokens: int, candidate: Candidate, sources: Sequence[Source]) -> float:
        """Return the same for a prompt that `candidate` builds; what it fetches is taken to cost what it costs us.

        A pod that nobody asks measures nothing anew: if it was slow once, what it says of itself fades to what we are.
        """
        peer = self._peers.known(candidate.pod_id, candidate.address)
        load = peer.load if peer is not None else None
        link = self._peers.cost(candidate.pod_id, candidate.address)
        own_s = cost_s = self.s_per_token
        if peer is not None and load is not None and load.prefill_s_per_token:
            cost_s = faded(load.prefill_s_per_token, own_s, peer.belief)
        cached_blocks = max(0, candidate.cached_tokens) // self._layout.block_size
        known = [(source, link) for source in sources]
        plan = plan_prefix(num_tokens, cached_blocks, known, self._layout, cost_s, self._fetch)
        return self.there.factor * remote_s(plan, candidate, load, cost_s, link)
