"""What one step may grant: so many tokens in all, and so many of them to sequences that do not decode.

Counts tokens; knows no blocks and no order. Invariant: what is granted never exceeds either bound.
"""

from __future__ import annotations

from pagewire.engine.sequence import Sequence


class StepBudget:
    """The grants of a step that is being made, tokens by sequence, and what is left for more."""

    def __init__(self, most: int, most_prefill: int | None = None) -> None:
        self.grants: dict[Sequence, int] = {}
        self._left = most
        self._left_prefill = most if most_prefill is None else max(1, most_prefill)

    @property
    def is_spent(self) -> bool:
        """True when nothing can be granted to anybody."""
        return self._left == 0

    def room(self, sequence: Sequence) -> int:
        """Return the tokens that a sequence may be granted."""
        return self._left if sequence.num_left == 1 else min(self._left, self._left_prefill)

    def grant(self, sequence: Sequence, count: int) -> None:
        """Let a sequence compute `count` tokens, no more than there is room for."""
        self._spend(sequence, count)
        self.grants[sequence] = count
        assert count > 0
        assert min(self._left, self._left_prefill) >= 0, f"{count} tokens are more than there is room for"

    def grant_token(self, sequence: Sequence) -> None:
        """Let one that decodes compute its token; there is room for one."""
        self._left -= 1
        self.grants[sequence] = 1

    @property
    def room_for_drafts(self) -> int:
        """Tokens that may be computed beside what is granted."""
        return min(self._left, self._left_prefill)

    def take_back(self, sequence: Sequence) -> None:
        """Let a sequence compute nothing after all."""
        self._spend(sequence, -self.grants.pop(sequence, 0))

    def _spend(self, sequence: Sequence, count: int) -> None:
        self._left -= count
        if sequence.num_left > 1:
            self._left_prefill -= count
