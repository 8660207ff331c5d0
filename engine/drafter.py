"""What a sequence may say next, looked up in what it or its prompt said before: prompt lookup, without a draft model.

    ... the cat sat on the mat and ...  sat on the  ->  mat and ...

The last two tokens are looked for where they stood last, and what followed there is the draft; how far back the two
places are alike says how much it is worth. Knows no scheduler and no probabilities. Invariant: every token is read
once, so that a step costs what is new in it, however long the sequence is.
"""

from __future__ import annotations

from collections.abc import Sequence

RUN = 2  # tokens that are looked for; one has nearly always stood somewhere, and what followed is seldom right
FORCED = 0  # in place of a run's length: nothing was looked up
LONGEST = 4  # runs are told apart up to this length
PRIOR = 0.5  # how likely a drafted token is right, until it is known
WEIGHT = 1 / 16  # of a drafted token that was heard of, beside what was known before


class Acceptance:
    """What share of drafted tokens proved right of late, by the length of the run that they were found behind."""

    def __init__(self, like: Acceptance | None = None) -> None:
        lengths = (FORCED, *range(RUN, LONGEST + 1))
        self._shares = {length: PRIOR if like is None else like.of(length) for length in lengths}

    def of(self, length: int) -> float:
        """Return it for a length, between 0 and 1."""
        return self._shares[length]

    def hear(self, length: int, num_right: int, *, has_wrong: bool) -> None:
        """Account for a draft, whose first so many tokens were right, and the one behind them wrong or none."""
        for is_right in (*(True,) * num_right, *(False,) * has_wrong):
            self._shares[length] += WEIGHT * (is_right - self._shares[length])


class Drafter:
    """One sequence's. `acceptance` begins with what is usual, `length` is that of the last draft's run."""

    def __init__(self, prompt: Sequence[int], usual: Acceptance | None = None) -> None:
        self.acceptance = Acceptance(usual)
        self.length = RUN
        self._tokens: list[int] = []
        self._behind: dict[int, int] = {}  # two tokens as one number, and the place behind where they stood last
        self._num_prompt = len(prompt)
        self._read(prompt)

    def draft(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that may follow the prompt and `output`, which goes on from that of the last call.

        Where they reach the end of what there is, they begin again: a period is continued.
        """
        tokens = self._tokens
        self._read(output[len(tokens) - self._num_prompt :])
        place = self._behind.get(_pair(tokens, len(tokens))) if len(tokens) >= RUN else None
        if place is None:
            return ()
        self.length = RUN
        while self.length < min(LONGEST, place) and tokens[place - 1 - self.length] == tokens[-1 - self.length]:
            self.length += 1
        period = tokens[place : place + most]
        return tuple((period * -(-most // len(period)))[:most])

    def take(self, forced: tuple[int, ...]) -> tuple[int, ...]:
        """Have a draft for its own that a grammar forces; return it."""
        self.length = FORCED
        return forced

    def _read(self, more: Sequence[int]) -> None:
        tokens = self._tokens
        last = len(tokens)
        tokens += more
        # The run that was at the end till now, too, but not the one that is: that is what is looked for.
        for end in range(max(RUN, last), len(tokens)):
            self._behind[_pair(tokens, end)] = end


def _pair(tokens: Sequence[int], end: int) -> int:
    """Return the two tokens before a place as one number, which takes a third of the memory that a tuple takes."""
    return tokens[end - 2] << 32 | tokens[end - 1]
