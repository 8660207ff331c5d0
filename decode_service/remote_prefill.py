"""How one request's prompt gets its KV onto this pod: built on prefill pods, fetched, or left to be computed here.

Prefill pods are tried one after another, each try a shipment of its own generation. Knows tries and what they brought;
nothing of the engine's batch and of the client. Invariants: at most one shipment is open at a time; the first first
token stands, whoever samples it again; what landed is never shipped twice.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from pagewire.core.block_hash import max_hit_blocks
from pagewire.core.engine_messages import Keep
from pagewire.core.messages import Candidate, FirstToken, Run, Source
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.core.span import Span
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.core.trace_context import TraceContext
from pagewire.decode_service.surroundings import Surroundings
from pagewire.engine.exchange.delivery import Delivery, unheard
from pagewire.engine.exchange.shipment_span import shipment_span
from pagewire.engine.exchange.taking import Taking
from pagewire.kvtransfer.effects import Outcome
from pagewire.kvtransfer.shipment import IncomingShipment

log = logging.getLogger(__name__)


class RemotePrefill:
    """The tries of one request. `deadline_s` is absolute; `on_first_token` is called once at most."""

    def __init__(
        self,
        spec: SequenceSpec,
        sources: tuple[Source, ...],
        around: Surroundings,
        *,
        deadline_s: float,
        watch: Stopwatch,
        on_first_token: Callable[[FirstToken], None],
        trace: TraceContext | None,
    ) -> None:
        self.first_token: FirstToken | None = None
        self.fetched_blocks = 0
        self._spec = spec
        self._sources = tuple(source for source in sources if source.pod_id != around.pod_id)
        self._around = around
        self._watch = watch
        self._on_first_token = on_first_token
        self._num_tokens = len(spec.tokens) + len(spec.output)
        self._block_size = around.layout.block_size
        self._taking: Taking = around.exchange.taking(spec.request_id, deadline_s, watch, self._take_first_token, trace)

    @property
    def runs(self) -> list[Delivery]:
        """The tries that reached a prefill pod, the last one last."""
        return self._taking.runs

    @property
    def losses(self) -> list[tuple[str, str]]:
        """Which pods could not be asked for the prompt, or lost it, each with why, in their order."""
        return self._taking.losses

    @property
    def is_finished(self) -> bool:
        """True when the first tokens ended all sequences."""
        first = self.first_token
        return first is not None and all(record.finish_reason is not None for record in first.records)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Other pods that probably hold a beginning of the prompt."""
        return self._sources

    async def sample(self, candidates: tuple[Candidate, ...]) -> None:
        """Have the first tokens sampled and nothing shipped, by the first candidate that does."""
        for candidate in candidates:
            await self._run_on(candidate, first_block=0, ship=False)
            if self.first_token is not None:
                return

    async def ship(self, candidates: tuple[Candidate, ...], hit_blocks: int) -> int:
        """Have the KV behind the `hit_blocks` cached ones brought here; return the tokens that need no computing.

        A pod that is not there or refuses costs nothing, and the next one is asked. When one is lost on the way, what
        landed stays: the next one fetches it from here and computes the rest, or we do, whichever is predicted to be
        sooner. Once there is a first token little is missing, and it is computed here.
        """
        num_blocks = hit_blocks
        for candidate in candidates:
            if self.has_lost and not self._is_sooner_on(candidate, num_blocks):
                break
            delivery = await self._run_on(candidate, first_block=num_blocks, ship=True)
            if delivery is None or delivery.outcome is Outcome.REFUSED:
                continue
            if delivery.outcome is Outcome.LANDED:
                return self._num_tokens
            if delivery.outcome is not Outcome.LOST:
                break
            num_blocks += delivery.kept_blocks
            self._keep(num_blocks)
        # Without a first token the last prompt token is computed here, for its logits; a partial block never is kept.
        return min(num_blocks, max_hit_blocks(self._num_tokens, self._block_size)) * self._block_size

    async def fetch(self, hit_blocks: int) -> int:
        """Bring what other pods hold behind the `hit_blocks` cached ones, where copying beats computing.

        Returns how many blocks of the chain are here then.
        """
        plan = functools.partial(self._around.costs.prefix, self._num_tokens)
        num_blocks = await self._taking.fetch_prefix(self._spec, hit_blocks, self._sources, plan)
        self.fetched_blocks = num_blocks - hit_blocks
        return num_blocks

    def spans(self, now_s: float) -> tuple[Span, ...]:
        """Return what a trace shows of what was brought here."""
        layout = self._around.layout
        fetches = (shipment_span("fetch", each, layout, now_s) for each in self._taking.fetches)
        return (*fetches, *(shipment_span("shipment", each, layout, now_s) for each in self.runs))

    async def settle(self) -> None:
        """End what is on its way; returns when nobody writes into the request's blocks any more."""
        await self._taking.settle()
        self._on_first_token = unheard  # the request holds this: it shall not be held in turn

    # ----------------------------------------------------------------------------------------------------------- a try

    @property
    def has_lost(self) -> bool:
        """True when a prefill pod was lost on the way."""
        return any(delivery.outcome is Outcome.LOST for delivery in self.runs)

    def _is_sooner_on(self, candidate: Candidate, num_blocks: int) -> bool:
        """Whether another prefill pod, fetching what landed, is predicted to be done before this pod is.

        It is not even asked where there is a first token, or nothing left to ship: one block at most is computed then.
        """
        if self.first_token is not None or num_blocks > max_hit_blocks(self._num_tokens, self._block_size):
            return False
        costs, sources = self._around.costs, self._known_sources(num_blocks)
        remote_s = costs.remote_s(self._num_tokens, candidate, sources)
        return remote_s < costs.local_s(self._num_tokens, num_blocks, ())

    def _keep(self, num_blocks: int) -> None:
        """Let other pods fetch what landed here."""
        num_computed = min(num_blocks * self._block_size, self._num_tokens)
        self._around.engine.keep(Keep(request_id=self._spec.request_id, num_computed=num_computed))

    def _known_sources(self, num_blocks: int) -> tuple[Source, ...]:
        ours = Source(
            pod_id=self._around.pod_id, address=self._around.address(), num_tokens=num_blocks * self._block_size
        )
        return (ours, *self._sources) if num_blocks else self._sources

    async def _run_on(self, candidate: Candidate, *, first_block: int, ship: bool) -> Delivery | None:
        """Run the prompt on one prefill pod and see it to its end; None when the pod cannot be reached."""
        sources = tuple(each for each in self._known_sources(first_block) if each.pod_id != candidate.pod_id)

        def question(shipment: IncomingShipment, ticket: bytes, traceparent: str) -> Run:
            self._watch.stamp(Phase.RUN_SENT, self._around.clock.now())
            return Run(
                spec=self._spec,
                generation=shipment.generation,
                shipment_id=shipment.shipment_id,
                first_block=shipment.first_block,
                ship=ship,
                ticket=ticket,
                lease_s=self._around.lease_s,
                deadline_s=self._taking.remaining_s,
                sources=sources,
                traceparent=traceparent,
            )

        return await self._taking.run(
            candidate.pod_id,
            candidate.address,
            first_block=first_block,
            max_blocks=self._around.layout.num_blocks(self._num_tokens) - first_block,
            question=question,
        )

    def _take_first_token(self, message: FirstToken) -> None:
        asked = [self._spec.index, *(branch.index for branch in self._spec.branches)]
        said = [record.index for record in message.records if len(record.tokens) == 1]
        vocab_size = self._around.vocab_size
        if said != asked or any(record.tokens[0] >= vocab_size for record in message.records):
            log.warning(
                "%s: first tokens of %s came, and those of %s were asked",
                self._spec.request_id,
                said,
                asked,
                extra={"request_id": self._spec.request_id},
            )
        elif self.first_token is None:
            self.first_token = message
            self._on_first_token(message)
