"""Reduced service under pressure: in named steps, one after the other, and all the way back.

    normal <-> offload <-> small_prefill <-> short_answers

A level is entered after pressure was at its `enter` for RISE_S, and left after it was below its `leave` for CALM_S.
Pure: time is a parameter. Knows pressure and pools; no links. Invariants: between a level's `leave` and the
next one's `enter` nothing changes, however pressure moves there; levels change one at a time; when pressure has gone,
service is normal within CALM_S for each level.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from pagewire.core.load import BrownoutLevel
from pagewire.core.messages import Submit
from pagewire.engine.block_pool import BlockPool

RISE_S = 0.5
CALM_S = 3.0
QUEUE_S = 10.0  # a queue that takes this long is a pressure of 1
FREE_SHARE = 0.1  # of the pool, kept free by offloading
OFFLOADS_PER_STEP = 16  # blocks; bounds what it costs a step
PREFILL_SHARE = 0.25  # of the budget, when prefill is small


class Threshold(NamedTuple):
    """The pressures at which a level is entered and left."""

    enter: float
    leave: float


LEVELS = tuple(BrownoutLevel)
THRESHOLDS = {
    BrownoutLevel.OFFLOAD: Threshold(0.85, 0.75),
    BrownoutLevel.SMALL_PREFILL: Threshold(0.92, 0.82),
    BrownoutLevel.SHORT_ANSWERS: Threshold(0.98, 0.90),
}


def pressure_of(pool: BlockPool, queue_s: float) -> float:
    """Return the larger of two shares: of the pool's blocks that are held or promised, and of a queue of QUEUE_S.

    Pinned blocks are no part of the pool here: they are never to be had.
    """
    return max((pool.num_held + pool.num_reserved) / max(1, pool.num_blocks - pool.num_pinned), queue_s / QUEUE_S)


def shorten(submit: Submit, level: BrownoutLevel, max_tokens: int) -> tuple[Submit, tuple[str, ...]]:
    """Return a new request as it is to run at `level`, and a note where its answer may be no longer than `max_tokens`.

    One that asks for a least length gets it. One that is continued stays as it was asked: its client has seen the
    beginning of a longer answer.
    """
    spec = submit.spec
    asked, max_tokens = spec.sampling.max_tokens, max(max_tokens, spec.sampling.min_tokens)
    if level is not BrownoutLevel.SHORT_ANSWERS or spec.output or asked <= max_tokens:
        return submit, ()
    sampling = dataclasses.replace(spec.sampling, max_tokens=max_tokens)
    note = f"brownout {level}: max_tokens is {max_tokens} instead of {asked}"
    return dataclasses.replace(submit, spec=dataclasses.replace(spec, sampling=sampling)), (note,)


class Brownout:
    """One engine's level of service; `least_prefill` tokens of prompt go into a step at any level."""

    def __init__(self, *, least_prefill: int) -> None:
        self.level = BrownoutLevel.NORMAL
        self.least_prefill = least_prefill
        self._wish = 0  # +1 up, -1 down
        self._since_s = 0.0

    @property
    def is_active(self) -> bool:
        """True while service is reduced."""
        return self.level is not BrownoutLevel.NORMAL

    def observe(self, pressure: float, now_s: float) -> BrownoutLevel:
        """Take note of the pressure at `now_s`; return the level that holds from now on."""
        wish = self._wanted(pressure)
        if wish != self._wish:
            self._wish, self._since_s = wish, now_s
        if wish and now_s - self._since_s >= (RISE_S if wish > 0 else CALM_S):
            self.level = LEVELS[LEVELS.index(self.level) + wish]
            self._since_s = now_s
        return self.level

    def most_prefill(self, most: int) -> int:
        """Return how many of `most` prompt tokens a step may have."""
        if LEVELS.index(self.level) < LEVELS.index(BrownoutLevel.SMALL_PREFILL):
            return most
        return min(most, max(self.least_prefill, int(most * PREFILL_SHARE)))

    def relieve(self, pool: BlockPool) -> None:
        """Move idle cached blocks out of the pool, where it is time to."""
        if self.is_active:
            pool.offload(OFFLOADS_PER_STEP, int(pool.num_blocks * FREE_SHARE))

    def _wanted(self, pressure: float) -> int:
        place = LEVELS.index(self.level)
        if place + 1 < len(LEVELS) and pressure >= THRESHOLDS[LEVELS[place + 1]].enter:
            return 1
        return -1 if place and pressure < THRESHOLDS[self.level].leave else 0
