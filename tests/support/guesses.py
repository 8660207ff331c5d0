"""Drafts that are right as often as not, wherever there is room: what will be said is known beforehand."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Listed

from pagewire.engine.drafter import Drafter
from pagewire.engine.limits import Limits
from pagewire.engine.sequence import Sequence
from pagewire.engine.speculation import Speculation
from pagewire.engine.step_meter import StepMeter

TokenOf = Callable[[Sequence, int], int]
"""What a sequence says at a place of its output."""


class _Guesser(Drafter):
    def __init__(self, sequence: Sequence, token_of: TokenOf, wrong: int, chance: random.Random) -> None:
        super().__init__(())
        self._sequence = sequence
        self._token_of = token_of
        self._wrong = wrong
        self._chance = chance

    def draft(self, output: Listed[int], most: int) -> tuple[int, ...]:
        first_wrong = self._chance.choice([0, 1, 5, most])
        places = range(len(output), len(output) + self._chance.randint(0, most))
        right = [self._token_of(self._sequence, place) for place in places]
        return (*right[:first_wrong], *[self._wrong] * len(right[first_wrong:]))


class Guesses(Speculation):
    """Up to `most` tokens for each decode; a `wrong` one stands where a draft goes wrong."""

    def __init__(self, most: int, token_of: TokenOf, wrong: int) -> None:
        super().__init__(most, StepMeter())
        self._token_of = token_of
        self._wrong = wrong
        self._chance = random.Random(most)
        self._largest = 1000  # as if everything had been tried

    def _draft(self, sequence: Sequence, limits: Limits) -> tuple[int, ...]:
        if sequence.drafter is None:
            sequence.drafter = _Guesser(sequence, self._token_of, self._wrong, self._chance)
        return super()._draft(sequence, limits)

    def _best(self, gains: list[float], num_decodes: int) -> int:
        return len(gains)


def measured(*num_decodes: int) -> StepMeter:
    """Return what has seen that steps of so many decodes take a second, and a drafted token nothing."""
    meter = StepMeter()
    for count in num_decodes:
        meter.observe(0, count, 1.0)
    return meter
