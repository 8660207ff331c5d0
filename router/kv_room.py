"""The KV blocks that one decode pod has to give: what it reported, less what this router has promised since.

Pure. Knows blocks and names, nothing of prompts. A promise is what a request may need to its completion. The prompt's
part counts until the pod's report shows it; that of the answer until it has been written. A report is a moment old, so
what was over since then is added to it. Invariant: a promise that was made and released leaves everything as it was,
and the next report replaces what was guessed by what is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pagewire.core.load import Load

# A report that was under way when a request was sent does not show it; the second one after that does.
REPORTS_UNTIL_SEEN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KvNeed:
    """The blocks that a request may need: `prompt`, at once, and `answer`, as it grows."""

    prompt: int
    answer: int

    @classmethod
    def of(cls, *, prompt_tokens: int, answer_tokens: int, num_sequences: int, block_size: int) -> KvNeed:
        """Return what `num_sequences` answers of up to `answer_tokens` to one prompt need.

        Full blocks of the prompt are shared; the last one, which is written on, each sequence has for itself.
        """
        shared = prompt_tokens // block_size
        each = -(-(prompt_tokens + answer_tokens) // block_size) - shared
        tails = min(each, 1)
        return cls(prompt=shared + num_sequences * tails, answer=num_sequences * (each - tails))

    def without(self, cached: int) -> KvNeed:
        """Return what is left to be found where `cached` blocks of the prompt lie already."""
        return KvNeed(prompt=max(0, self.prompt - cached), answer=self.answer) if cached else self

    @property
    def blocks(self) -> int:
        """All of them."""
        return self.prompt + self.answer


@dataclass(slots=True)
class _Promise:
    need: KvNeed
    written: Callable[[], float]
    unseen: int
    reports: int = 0

    def look(self) -> None:
        """A report came: what it shows of this request is no longer unseen."""
        self.reports += 1
        written = min(1.0, max(0.0, self.written()))
        is_seen = written > 0 or self.reports >= REPORTS_UNTIL_SEEN
        self.unseen = (0 if is_seen else self.need.prompt) + math.ceil(self.need.answer * (1.0 - written))


class KvRoom:
    """One decode pod's blocks as this router may give them away."""

    def __init__(self) -> None:
        self._load = Load()
        self._promises: dict[str, _Promise] = {}
        self._unseen = 0  # promised, and not in the report
        self._returned = 0  # of requests that are over, and still in the report

    @property
    def num_promises(self) -> int:
        """Requests that were promised blocks and are not over."""
        return len(self._promises)

    @property
    def blocks(self) -> int:
        """What may still be promised; negative where pods give less than they said."""
        load = self._load
        spare = load.blocks_free + load.blocks_cached - load.blocks_reserved
        return spare - self._unseen + self._returned

    def has_room(self, blocks: int) -> bool:
        """True when `blocks` may be promised.

        A pod that does nothing takes anything, since nothing will be gained by waiting: it knows whether it can, in
        parts or through host memory. One that has not said what it has is asked.
        """
        load = self._load
        if load.blocks_total == 0 or not (self._promises or load.num_running or load.num_waiting):
            return True
        return min(blocks, load.blocks_total) <= self.blocks

    def holds(self, blocks: int) -> bool:
        """True when the pool could ever hold as many at once, or has not said how many it has."""
        load = self._load
        return load.blocks_total == 0 or blocks <= load.blocks_total - load.blocks_pinned

    def report(self, load: Load) -> None:
        """Take the pod's word for what it has."""
        self._load = load
        self._returned = 0
        for promise in self._promises.values():
            promise.look()
        self._unseen = sum(promise.unseen for promise in self._promises.values())

    def promise(self, name: str, need: KvNeed, written: Callable[[], float]) -> None:
        """Set blocks aside until `release`; `written` says which share of the answer is there. Names are used once."""
        self._promises[name] = _Promise(need, written, need.blocks)
        self._unseen += need.blocks

    def release(self, name: str) -> None:
        """The request is over; one that was never promised anything is nothing."""
        promise = self._promises.pop(name, None)
        if promise is not None:
            self._unseen -= promise.unseen
            self._returned += promise.need.blocks - promise.unseen
