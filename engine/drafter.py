"""What a sequence may say next, looked up in what it or its prompt said before: prompt lookup, without a draft model.

    ... the cat sat on the mat and ...  sat on the  ->  mat and ...

The last tokens are looked for where they stood last, the longest run of them first, and what followed there is the
draft. Knows no scheduler and no probabilities. Invariant: every token is read once, so that a step costs what is new in
it, however long the sequence is.
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTHS = (3, 2)  # of the runs that are looked for; of one token there is always one, and it is seldom right
PRIOR = 0.5  # how likely a drafted token is right, until it is known
WEIGHT = 1 / 16  # of a drafted token that was heard of, beside what was known before


class Drafter:
    """One sequence's. `acceptance` is what share of tokens behind a run as the last draft's proved right of late."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._num_prompt = len(prompt)
        self._num_read = 0
        self._behind: dict[tuple[int, ...], int] = {}  # runs of tokens, and the place behind where each stood last
        self._length = LENGTHS[0]  # of the run that the last draft was found behind
        self._acceptance = dict.fromkeys(LENGTHS, PRIOR)

    @property
    def acceptance(self) -> float:
        """Between 0 and 1."""
        return self._acceptance[self._length]

    def draft(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that may follow the prompt and `output`, which goes on from that of the last call.

        Where they reach the end of what there is, they begin again: a period is continued.
        """
        self._read(output)
        tokens = self._tokens
        for length in LENGTHS:
            place = self._behind.get(tuple(tokens[-length:]))
            if place is not None:
                self._length = length
                period = tokens[place : place + most]
                return tuple((period * -(-most // len(period)))[:most])
        return ()

    def hear(self, num_right: int, *, has_wrong: bool) -> None:
        """Account for the last draft, whose first so many tokens were right, and the one behind them wrong or none."""
        for is_right in (*(True,) * num_right, *(False,) * has_wrong):
            self._acceptance[self._length] += WEIGHT * (is_right - self.acceptance)

    def _read(self, output: Sequence[int]) -> None:
        tokens = self._tokens
        tokens += output[len(tokens) - self._num_prompt :]
        # Not the run at the end: that is what is looked for.
        for end in range(self._num_read + 1, len(tokens)):
            for length in LENGTHS:
                if length <= end:
                    self._behind[tuple(tokens[end - length : end])] = end
        self._num_read = max(self._num_read, len(tokens) - 1)
