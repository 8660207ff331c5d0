"""One accepted `Run`: its link, its shipment, and the words that it says to its decode pod.

Knows frames; knows no engine and no transport. Invariant: all that it says carries its request and generation.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any

from pagewire.core.engine_messages import Add, ChunkDone
from pagewire.core.errors import Unavailable
from pagewire.core.messages import (
    ChunkReady,
    ErrorInfo,
    Fenced,
    FirstToken,
    LinkMessage,
    PrefillFailed,
    Run,
    TokenRecord,
)
from pagewire.core.timeline import Stopwatch
from pagewire.kvtransfer.outgoing import OutgoingShipment
from pagewire.serving.link import Link

log = logging.getLogger(__name__)

PromptKey = tuple[str, int]
"""Request id and generation."""


@dataclass(slots=True, kw_only=True)
class Prompt:
    """A prompt of `link`'s pod. `engine_id` names its sequence: a request may come back in a new generation.

    `deadline_s` is absolute, on this pod's clock: what remained of the request's time when it came.
    """

    link: Link
    run: Run
    engine_id: str
    shipment: OutgoingShipment
    watch: Stopwatch
    deadline_s: float
    num_chunks: int = 0

    @property
    def key(self) -> PromptKey:
        """What the frames of this run carry."""
        return (self.run.spec.request_id, self.run.generation)

    @property
    def command(self) -> Add:
        """What the engine is told."""
        spec = dataclasses.replace(self.run.spec, request_id=self.engine_id)
        return Add(spec=spec, first_block=self.run.first_block)

    def say_chunk_ready(self, first_block: int, num_blocks: int) -> None:
        """Announce blocks."""
        self._say(ChunkReady(**self._names(), first_block=first_block, num_blocks=num_blocks))

    def say_first_token(self, chunk: ChunkDone, record: TokenRecord, num_blocks: int) -> None:
        """Send the token that the last chunk gave, and how many blocks there are to come with it."""
        self._say(
            FirstToken(
                **self._names(),
                record=dataclasses.replace(record, request_id=self.run.spec.request_id),
                num_blocks=num_blocks,
                chunks=self.num_chunks,
                cached_tokens=chunk.cached_tokens,
                computed_tokens=chunk.computed_tokens,
                timeline=self.watch.timeline(),
            )
        )

    def say_failed(self, error: ErrorInfo) -> None:
        """Give the request up."""
        self._say(PrefillFailed(**self._names(), error=error))

    def say_fenced(self) -> None:
        """Tell that nothing more comes and the blocks are released."""
        self._say(Fenced(**self._names()))

    def _names(self) -> dict[str, Any]:
        return {"request_id": self.run.spec.request_id, "generation": self.run.generation}

    def _say(self, message: LinkMessage) -> None:
        say(self.link, message)


def say(link: Link, message: LinkMessage) -> None:
    """Send a frame, unless the link is down: its end is an event of its own, and settles what was on it."""
    try:
        link.send(message)
    except Unavailable:
        log.debug("%s not said to %s", type(message).__name__, link.peer.peer_id)
