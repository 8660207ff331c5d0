"""One accepted `Run`: an export whose blocks are still being built, and the words of its own.

Knows frames and what it fetches; knows no engine and no transport.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from pagewire.core.engine_messages import Add, ChunkDone, Join, Reserve
from pagewire.core.kv_layout import KVLayout
from pagewire.core.messages import ChunkReady, FirstToken, Run
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.core.span import Attribute, Span, SpanKind, between, mark
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.core.token_record import TokenRecord
from pagewire.engine.exchange.export import Export
from pagewire.engine.exchange.shipment_span import shipment_span
from pagewire.engine.exchange.taking import Taking
from pagewire.kvtransfer.effects import Announce


@dataclass(slots=True, kw_only=True)
class Prompt(Export):
    """A prompt of `link`'s pod. Its engine id is a name of its own: a request may come back in a new generation."""

    run: Run
    layout: KVLayout
    watch: Stopwatch
    taking: Taking
    computed_tokens: int = 0
    chunks: list[Span] = field(default_factory=list)  # in the order in which they were computed

    @property
    def spec(self) -> SequenceSpec:
        """The request as our engine knows it."""
        return dataclasses.replace(self.run.spec, request_id=self.engine_id)

    @property
    def add(self) -> Add:
        """Have it run from its tokens."""
        return Add(spec=self.spec, first_block=self.run.first_block)

    @property
    def reserve(self) -> Reserve:
        """Have its blocks promised, to fetch some of them."""
        return Reserve(spec=self.spec, first_block=self.run.first_block)

    def join(self, num_computed: int) -> Join:
        """Have it run on from what was fetched."""
        spec = self.run.spec
        return Join(
            request_id=self.engine_id,
            num_computed=num_computed,
            output=spec.output,
            index=spec.index,
            branches=spec.branches,
        )

    def say_ready(self, announced: Announce) -> None:
        """Announce the blocks of a chunk, or one layer group of them."""
        self.link.say(ChunkReady(**self._names(), **dataclasses.asdict(announced)))

    def say_first_token(self, chunk: ChunkDone, records: Sequence[TokenRecord], num_blocks: int) -> None:
        """Send the tokens that the last chunk gave, and how many blocks there are to come with them."""
        self.link.say(
            FirstToken(
                **self._names(),
                records=tuple(dataclasses.replace(each, request_id=self.run.spec.request_id) for each in records),
                num_blocks=num_blocks,
                chunks=len(self.chunks),
                cached_tokens=chunk.cached_tokens,
                computed_tokens=chunk.computed_tokens,
                fetched_tokens=chunk.fetched_tokens,
                timeline=self.watch.timeline(),
            )
        )

    def computed(self, chunk: ChunkDone, start_s: float, end_s: float) -> None:
        """Note a chunk."""
        attributes: dict[str, Attribute] = {
            "pagewire.tokens": chunk.computed_tokens - self.computed_tokens,
            "pagewire.blocks": len(chunk.block_ids),
        }
        self.computed_tokens = chunk.computed_tokens
        self.chunks.append(Span(name="chunk", start_s=start_s, end_s=end_s, attributes=attributes))

    def span(self, now_s: float) -> Span:
        """Return what a trace shows of it: until the last chunk, or now, where it did not come to that."""
        timeline = self.watch.timeline()
        at_s = {stamp.phase: stamp.at_s for stamp in timeline.stamps}
        end_s = at_s.get(Phase.LAST_CHUNK_COMPUTED, now_s)
        fetches = (shipment_span("fetch", each, self.layout, now_s) for each in self.taking.fetches)
        return Span(
            name="prefill",
            start_s=self.opened_s,
            end_s=end_s,
            attributes={
                "pagewire.prompt_tokens": len(self.run.spec.tokens),
                "pagewire.chunks": len(self.chunks),
                "pagewire.outcome": self._outcome,
                "pagewire.held_s": now_s - end_s,  # by the taker, from then on
            },
            marks=tuple(mark("first_token", timeline, Phase.LAST_CHUNK_COMPUTED)),
            parts=(*between("queue", timeline, Phase.RUN_RECEIVED, Phase.PREFILL_BEGUN), *fetches, *self.chunks),
            kind=SpanKind.SERVER,
        )

    async def stop(self) -> None:
        """End a fetch that still writes into the blocks."""
        await self.taking.settle()
