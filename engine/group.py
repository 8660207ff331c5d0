"""The sequences of one request: they begin as one, fork behind the prompt, and end one by one.

Those of a beam search are its beams: they fork and are dropped with every token, and end together.

Knows its members and what was counted for all of them; who runs is the scheduler's to say. Invariant: a request's group
lives until its last member is gone, and members differ in their index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagewire.core.sequence_spec import Branch
from pagewire.engine.beam_search import BeamSearch

if TYPE_CHECKING:
    from pagewire.engine.sequence import Sequence


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """`members` are the sequences that have not ended.

    Of the tokens that the request came with, `cached_tokens` came from the prefix cache when it was first admitted,
    `fetched_tokens` from another pod when it joined, and `computed_tokens` were computed here in `num_chunks`
    steps, those of a recompute after preemption included. `search` chooses among the members where these are beams.
    """

    request_id: str
    members: list[Sequence] = field(default_factory=list)
    cached_tokens: int | None = None
    fetched_tokens: int = 0
    computed_tokens: int = 0
    num_chunks: int = 0
    search: BeamSearch | None = None

    def member(self, index: int) -> Sequence | None:
        """Return the member with that index, None when it has ended."""
        return next((each for each in self.members if each.index == index), None)

    def stop(self, index: int) -> Sequence | None:
        """Have nothing more of an index; return the member that is to be removed for it, None where none is.

        Until the fork a member is all that fork off it: without one of them it goes on as the others. A search is told
        nothing of the kind: what it finds hangs on all of its beams.
        """
        if self.search is not None:
            return None
        for each in self.members:
            left = [branch for branch in (Branch(index=each.index), *each.unforked) if branch.index != index]
            if 0 < len(left) < each.num_seats:
                each.index, each.unforked = left[0].index, tuple(left[1:])
                return None
        return self.member(index)
