"""One accepted `Run`: an export whose blocks are still being built, and the words of its own.

Knows frames and what it fetches; knows no engine and no transport.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.core.engine_messages import Add, ChunkDone, Join, Reserve
from pagewire.core.messages import ChunkReady, FirstToken, Run
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.core.timeline import Stopwatch
from pagewire.core.token_record import TokenRecord
from pagewire.engine.exchange.export import Export
from pagewire.engine.exchange.taking import Taking
from pagewire.kvtransfer.effects import Announce


@dataclass(slots=True, kw_only=True)
class Prompt(Export):
    """A prompt of `link`'s pod. Its engine id is a name of its own: a request may come back in a new generation."""

    run: Run
    watch: Stopwatch
    taking: Taking
    num_chunks: int = 0

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
        self._say(ChunkReady(**self._names(), **dataclasses.asdict(announced)))

    def say_first_token(self, chunk: ChunkDone, records: Sequence[TokenRecord], num_blocks: int) -> None:
        """Send the tokens that the last chunk gave, and how many blocks there are to come with them."""
        self._say(
            FirstToken(
                **self._names(),
                records=tuple(dataclasses.replace(each, request_id=self.run.spec.request_id) for each in records),
                num_blocks=num_blocks,
                chunks=self.num_chunks,
                cached_tokens=chunk.cached_tokens,
                computed_tokens=chunk.computed_tokens,
                fetched_tokens=chunk.fetched_tokens,
                timeline=self.watch.timeline(),
            )
        )

    async def stop(self) -> None:
        """End a fetch that still writes into the blocks."""
        await self.taking.settle()
