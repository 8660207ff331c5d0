"""Speculative decoding: how many drafted tokens each decode of a step computes beside its own, if any.

Whatever is drawn for a drafted token's place does not hang on the draft, since draws are stateless; so the tokens are
those without speculation, in fewer steps. A step of n decodes takes T seconds, and m(d) more with d drafted tokens; a
draft's i-th token is right with probability a^i, so a sequence that is drafted k tokens says 1 + a + .. + a^k of them.
Those are drafted with which the sequences' mean time per token is least:

    (T + m(d)) / n x sum over sequences of 1 / (1 + a + .. + a^k)

Not with which most tokens come in a second: who has no drafts would wait for those of others. a, T and m are measured.
Knows no pool and no budget. Invariant: a sequence is drafted for only where its next token is drawn from its logits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from pagewire.core.sampling import Grammar
from pagewire.engine.drafter import Acceptance, Drafter
from pagewire.engine.limits import Limits
from pagewire.engine.sequence import Sequence
from pagewire.engine.step_meter import StepMeter

Forced = Callable[[str, Grammar, tuple[int, ...]], tuple[int, ...]]
"""Says which tokens a grammar leaves no choice about, behind the output of the sequence of that name."""

PROBE = 16  # every so many steps one has no drafts, or another number of them, so that what it takes is known of late
NEAR = 4  # tokens beyond twice what was tried: nobody is to wait for a step of which nothing is known
LEAST_S = 1e-9  # in place of no time at all, as a clock shows that stands


class Speculation:
    """One engine's. `num_drafted` tokens were computed in vain or not, `num_accepted` of them not."""

    def __init__(self, most: int, meter: StepMeter, forced: Forced | None = None) -> None:
        self.num_drafted = 0
        self.num_accepted = 0
        self._most = most
        self._meter = meter
        self._usual = Acceptance()
        self._forced = forced  # where outputs can be guided
        self._num_steps = 0  # for which there were drafts
        self._largest = 0  # number of tokens that a step was drafted

    def draft(self, decodes: list[Sequence], limits: Limits, room: int) -> dict[Sequence, tuple[int, ...]]:
        """Return what is to be computed for which of the decodes of a step, `room` tokens at most.

        What they draw comes to no more than they may say.
        """
        found = {sequence: self._draft(sequence, limits) for sequence in decodes if _may_be_drafted(sequence)}
        found = {sequence: tokens for sequence, tokens in found.items() if tokens}
        if not found or room < 1:
            return {}
        gains = _gains(found)[: min(room, _near(self._largest))]
        count = self._best([gain for gain, _ in gains], len(decodes))
        self._num_steps += 1
        probe, rest = divmod(self._num_steps, PROBE)
        if rest == 0:
            count = 0 if probe % 2 else 1 + probe // 2 % min(len(gains), _near(count))
        self._largest = max(self._largest, count)
        counts = Counter(sequence for _, sequence in gains[:count])
        return {sequence: found[sequence][:most] for sequence, most in counts.items()}

    def hear(self, sequence: Sequence, num_drafted: int, num_right: int, *, has_wrong: bool) -> None:
        """Account for the drafted tokens of a sequence that were computed, and whether one was found to be wrong."""
        assert sequence.drafter is not None, "it was drafted for"
        self.num_drafted += num_drafted
        self.num_accepted += num_right
        for acceptance in (sequence.drafter.acceptance, self._usual):
            acceptance.hear(sequence.drafter.length, num_right, has_wrong=has_wrong)

    def _draft(self, sequence: Sequence, limits: Limits) -> tuple[int, ...]:
        last = limits.most_output(sequence.num_prompt, sequence.spec.sampling.max_tokens) - 1
        most = min(self._most, last - len(sequence.output))
        if most < 1:
            return ()
        if sequence.drafter is None:
            sequence.drafter = Drafter(sequence.spec.tokens, self._usual)
        grammar = sequence.spec.sampling.grammar
        forced: tuple[int, ...] = ()
        if grammar is not None and self._forced is not None:
            forced = self._forced(sequence.name, grammar, tuple(sequence.output))[:most]
        return sequence.drafter.take(forced) if forced else sequence.drafter.draft(sequence.output, most)

    def _best(self, gains: list[float], num_decodes: int) -> int:
        """Return with how many of the tokens the mean time is least, 0 where that is not known yet."""
        if (plain_s := self._meter.decode_s(num_decodes)) is None:
            return 0
        left, best, least_s = float(num_decodes), 0, num_decodes * max(plain_s, LEAST_S)
        for count, gain in enumerate(gains, 1):
            left -= gain
            seconds = left * max(plain_s + self._meter.draft_s(num_decodes, count), LEAST_S)
            if seconds < least_s:
                best, least_s = count, seconds
        return best


def _gains(found: Mapping[Sequence, tuple[int, ...]]) -> list[tuple[float, Sequence]]:
    """Return by what share of a step each drafted token shortens its sequence's time per token; the most first."""
    gains: list[tuple[float, Sequence]] = []
    for sequence, tokens in found.items():
        if sequence.drafter is not None:
            share, said = sequence.drafter.acceptance.of(sequence.drafter.length), 1.0
            for depth in range(1, len(tokens) + 1):
                more = said + share**depth
                gains.append((1 / said - 1 / more, sequence))
                said = more
    return sorted(gains, key=lambda pair: -pair[0])


def _near(count: int) -> int:
    """Return how many tokens may be tried where so many are known to be bearable."""
    return 2 * count + NEAR


def _may_be_drafted(sequence: Sequence) -> bool:
    """Return whether what follows is drawn at once: no beam, and nobody to fork off; and it does not spill."""
    return sequence.group.search is None and not sequence.unforked and not sequence.spilled
