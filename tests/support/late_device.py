"""A made-up device that computes what was launched as late as it may, on a memory of tokens in the place of KV.

What a sequence is given next is a function of all that its blocks hold: who writes into a block that is not its own, or
reads one too early, says other tokens. The reference is that function of the tokens alone.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Sequence

from pagewire.core.token_record import TokenLogprobs
from pagewire.engine.beam_search import Candidates
from pagewire.engine.moves import Move, Way
from pagewire.engine.runner import OnGroup, Pending
from pagewire.engine.step import AHEAD, Computed, Grant, Step

VOCABULARY = 40
BEAM_VOCABULARY, BEAM_END = 7, 6  # few, so that beams meet; the last one ends them


def following(tokens: Sequence[int], index: int, window: int = 0) -> int:
    """Return the token that follows in the sequence of that index, which sees `window` tokens, 0 for all."""
    return zlib.crc32(bytes((index, *tokens[-window:]))) % VOCABULARY


def candidates(tokens: Sequence[int], count: int, window: int = 0) -> Candidates:
    """Return the `count` likeliest of the few tokens that may follow in a beam, which sees `window` tokens, 0 for all.

    After some tokens the end is as likely as others, after some a hundred times less.
    """
    chance = random.Random(zlib.crc32(bytes(tokens[-window:])))
    weights = [1 + 0.2 * chance.random() for _ in range(BEAM_VOCABULARY)]
    weights[BEAM_END] *= chance.choice((0.01, 1.0))
    best = sorted(range(BEAM_VOCABULARY), key=lambda token: -weights[token])[:count]
    return Candidates(tokens=tuple(best), logprobs=tuple(math.log(weights[token] / sum(weights)) for token in best))


class LateDevice:
    """Runner, launcher and mover. `during` runs while a step is waited for, before any of it is computed.

    A sequence sees `window` tokens, 0 for all: what lies before them may be anybody's.
    """

    def __init__(self, block_size: int, chance: random.Random, window: int = 0) -> None:
        self.num_recaptures = 0
        self.during: Callable[[], None] = lambda: None
        self.num_launched = 0
        self.num_ahead = 0
        self.fails = 0.0  # how likely it is that a launched step fails
        self._block_size = block_size
        self._window = window
        self._chance = chance
        self._slots: dict[tuple[int, int], int] = {}
        self._host: dict[tuple[int, int], int] = {}
        self._queue: list[tuple[Callable[[], None], set[int]]] = []  # with the blocks that it writes to
        self._drawn: dict[str, int] = {}

    def launch(self, step: Step) -> Pending | None:
        """Queue a step in which everybody draws one token from what is in the pool."""
        if not all(_is_plain(grant) for grant in step.grants):
            return None
        self.num_launched += 1
        self.num_ahead += step.grants[0].tokens[0] == AHEAD
        found: dict[str, Computed] = {}

        def work() -> None:
            found.update(self._compute(step))

        self._queue.append((work, {block for grant in step.grants for block in self._written(grant)}))
        if self._chance.random() < 0.3:  # it may be quick
            self._flush()
        fails = self._chance.random() < self.fails

        def wait() -> dict[str, Computed]:
            self.during()
            while any(each is work for each, _ in self._queue):  # and no further
                self._next()
            if fails:
                raise RuntimeError("a launched step failed")
            return found

        return wait

    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        """Compute a step behind all that was launched."""
        self.during()
        self._flush()
        return self._compute(step)

    @property
    def is_busy(self) -> bool:
        """True while something that was launched is not computed."""
        return bool(self._queue)

    def rehearse(self) -> None:
        """Compute nothing."""

    def move(self, moves: Sequence[Move]) -> None:
        """Copy blocks behind all that was launched."""
        self._flush()
        for move in moves:
            source = self._host if move.way is Way.IN else self._slots
            target = self._host if move.way is Way.OUT else self._slots
            for offset in range(self._block_size):
                target[move.target, offset] = source.get((move.source, offset), -1)

    def write(self, block_ids: Sequence[int], tokens: Sequence[int]) -> None:
        """Write what another pod sent, at once."""
        to_write = {block_id for _, written in self._queue for block_id in written}
        assert not to_write & {*block_ids}, "blocks were given to another while a step that writes them computes"
        for at, token in enumerate(tokens):
            self._slots[block_ids[at // self._block_size], at % self._block_size] = token

    def _flush(self) -> None:
        while self._queue:
            self._next()

    def _next(self) -> None:
        work, _ = self._queue.pop(0)
        work()

    def _compute(self, step: Step) -> dict[str, Computed]:
        found: dict[str, Computed] = {}
        assert len(step.grants) == 1 or not any(grant.spilled for grant in step.grants)
        for grant in step.grants:
            tokens = [self._drawn[grant.request_id] if token == AHEAD else token for token in grant.tokens]
            for at, token in enumerate(tokens, grant.start):
                place, slot = self._slot(grant, at)
                assert place is self._slots, "host memory is written"
                place[slot] = token
            draws, first_row = grant.draws(), len(tokens) - 1 - len(grant.checks)
            # Forks draw where their sequence does. Said here, since calls of the engine's functions are counted.
            rows = [first_row] * (len(draws) - len(grant.checks)) + list(range(first_row + 1, len(tokens)))
            for row, (name, draw) in zip(rows, draws.items(), strict=True):
                seen = self._seen(grant, grant.start + row + 1)
                if draw.num_candidates:
                    found[name] = Computed(candidates=candidates(seen, draw.num_candidates))
                else:
                    self._drawn[name] = following(seen, draw.index)
                    found[name] = Computed(token=self._drawn[name])
            if grant.scoring is not None:
                scores = tuple(TokenLogprobs(token=target, logprob=-1.0, rank=2) for target in grant.scoring.targets)
                found.setdefault(grant.request_id, Computed()).prompt_logprobs = scores
        return found

    def _seen(self, grant: Grant, stop: int) -> list[int]:
        found = []
        for at in range(max(0, stop - self._window) if self._window else 0, stop):
            place, slot = self._slot(grant, at)
            found.append(place.get(slot, -1) % 251)
        return found

    def _written(self, grant: Grant) -> Sequence[int]:
        return grant.block_ids[grant.start // self._block_size :]

    def _slot(self, grant: Grant, at: int) -> tuple[dict[tuple[int, int], int], tuple[int, int]]:
        block, offset = divmod(at, self._block_size)
        if block < len(grant.spilled):
            return self._host, (grant.spilled[block], offset)
        return self._slots, (grant.block_ids[block], offset)


def _is_plain(grant: Grant) -> bool:
    finds = grant.draw is not None and grant.draw.num_candidates
    return not (grant.forks or grant.spilled or grant.scoring or finds)
