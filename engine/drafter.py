"""What a sequence may say next, looked up in what it or its prompt said before: prompt lookup, without a draft model.

    ... the cat sat on the mat and ...  sat on the  ->  mat and ...

The last two tokens are looked for where they stood last, and what followed there is the draft; how far back the two
places are alike says how much it is worth. Knows no scheduler and no probabilities. Invariant: every token is read
once, so that a step costs what is new in it, however long the sequence is.
"""

from __future__ import annotations

from collections.abc import Sequence

RUN = 2  # tokens that are looked for; one has nearly always stood somewhere, and what followed is seldom right
LONGEST = 4  # runs are told apart up to this length
PRIOR = 0.5  # how likely a drafted token is right, until it is known
WEIGHT = 1 / 16  # of a drafted token that was heard of, beside what was known before


class Drafter:
    """One sequence's. `acceptance` is what share of tokens behind a run as long as the last proved right of late."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._num_prompt = len(prompt)
        self._num_read = 0
        self._behind: dict[int, int] = {}  # two tokens as one number, and the place behind where they stood last
        self._length = RUN  # of the run that the last draft was found behind
        self._acceptance = dict.fromkeys(range(RUN, LONGEST + 1), PRIOR)

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
        place = self._behind.get(_pair(tokens, len(tokens))) if len(tokens) >= RUN else None
        if place is None:
            return ()
        self._length = RUN
        while self._length < min(LONGEST, place) and tokens[place - 1 - self._length] == tokens[-1 - self._length]:
            self._length += 1
        period = tokens[place : place + most]
        return tuple((period * -(-most // len(period)))[:most])

    def hear(self, num_right: int, *, has_wrong: bool) -> None:
        """Account for the last draft, whose first so many tokens were right, and the one behind them wrong or none."""
        for is_right in (*(True,) * num_right, *(False,) * has_wrong):
            self._acceptance[self._length] += WEIGHT * (is_right - self.acceptance)

    def _read(self, output: Sequence[int]) -> None:
        tokens = self._tokens
        tokens += output[len(tokens) - self._num_prompt :]
        # Not the run at the end: that is what is looked for.
        for end in range(max(RUN, self._num_read + 1), len(tokens)):
            self._behind[_pair(tokens, end)] = end
        self._num_read = max(self._num_read, len(tokens) - 1)


def _pair(tokens: Sequence[int], end: int) -> int:
    """Return the two tokens before a place as one number, which takes a third of the memory that a tuple takes."""
    return tokens[end - 2] << 32 | tokens[end - 1]
