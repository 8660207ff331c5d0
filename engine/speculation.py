"""Speculative decoding: how many drafted tokens each decode of a step computes beside its own, if any.

Whatever is drawn for a drafted token's place does not hang on the draft, since draws are stateless; so the tokens are
those without speculation, in fewer steps. A step of n decodes that takes T seconds yields n tokens; a draft's i-th
token is right with probability a^i and costs r seconds. Tokens are taken in the order of their probability p as long
as they raise the rate (n + sum p) / (T + sum r), which is while p / r is above it. T and r are measured. Knows no pool
and no budget. Invariant: a sequence is drafted for only where its next token is drawn from its logits alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pagewire.engine.drafter import Acceptance, Drafter
from pagewire.engine.grammars import Guided
from pagewire.engine.limits import Limits
from pagewire.engine.sequence import Sequence
from pagewire.engine.step_meter import StepMeter

Forced = Callable[[Guided], tuple[int, ...]]
"""Says which tokens a grammar leaves no choice about."""

PROBE = 32  # steps of one kind, after which one of the other kind shows whether it is still the worse


class Speculation:
    """One engine's. `num_drafted` tokens were computed in vain or not, `num_accepted` of them not."""

    def __init__(self, most: int, meter: StepMeter, forced: Forced | None = None) -> None:
        self.num_drafted = 0
        self.num_accepted = 0
        self._most = most
        self._meter = meter
        self._usual = Acceptance()
        self._forced = forced  # where outputs can be guided
        self._drafted = False  # in the last step that might have been,
        self._in_a_row = 0  # and in so many more before it

    def draft(self, decodes: list[Sequence], limits: Limits, room: int) -> dict[Sequence, tuple[int, ...]]:
        """Return what is to be computed for which of the decodes of a step, `room` tokens at most.

        What they draw comes to no more than they may say.
        """
        found = {sequence: self._draft(sequence, limits) for sequence in decodes if _may_be_drafted(sequence)}
        found = {sequence: tokens for sequence, tokens in found.items() if tokens}
        if not found or room < 1:
            return {}
        counts = self._counts(found, len(decodes), room)
        if self._in_a_row >= PROBE and bool(counts) == self._drafted:
            first = next(iter(found))
            counts = {} if self._drafted else {first: min(len(found[first]), room)}
        self._in_a_row = self._in_a_row + 1 if bool(counts) == self._drafted else 0
        self._drafted = bool(counts)
        return {sequence: found[sequence][:count] for sequence, count in counts.items()}

    def hear(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Account for the drafted tokens of a sequence that were computed."""
        assert sequence.drafter is not None, "it was drafted for"
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        for acceptance in (sequence.drafter.acceptance, self._usual):
            acceptance.hear(sequence.drafter.length, num_accepted, has_wrong=num_accepted < num_drafted)

    def _draft(self, sequence: Sequence, limits: Limits) -> tuple[int, ...]:
        last = limits.most_output(sequence.num_prompt, sequence.spec.sampling.max_tokens) - 1
        most = min(self._most, last - len(sequence.output))
        if most < 1:
            return ()
        if sequence.drafter is None:
            sequence.drafter = Drafter(sequence.spec.tokens, self._usual)
        grammar = sequence.spec.sampling.grammar
        if grammar is not None and self._forced is not None:
            guided = Guided(request_id=sequence.name, grammar=grammar, output=tuple(sequence.output))
            if forced := self._forced(guided)[:most]:
                return sequence.drafter.take(forced)
        return sequence.drafter.draft(sequence.output, most)

    def _counts(self, found: Mapping[Sequence, tuple[int, ...]], num_decodes: int, room: int) -> dict[Sequence, int]:
        """Return how many of each one's drafted tokens raise the rate of the step."""
        counts: dict[Sequence, int] = {}
        seconds, each_s = self._meter.decode_s(num_decodes), self._meter.draft_s(num_decodes)
        if seconds is None:  # there was no step of so many yet to compare with
            return counts
        chances = (
            (sequence.drafter.acceptance.of(sequence.drafter.length) ** depth, sequence)
            for sequence, tokens in found.items() if sequence.drafter is not None
            for depth in range(1, len(tokens) + 1)
        )  # fmt: skip
        tokens = float(num_decodes)
        for chance, sequence in sorted(chances, key=lambda pair: -pair[0])[:room]:
            if chance * seconds < tokens * each_s:
                break
            counts[sequence] = counts.get(sequence, 0) + 1
            tokens, seconds = tokens + chance, seconds + each_s
        return counts


def _may_be_drafted(sequence: Sequence) -> bool:
    """Return whether what follows is drawn at once: no beam, and nobody to fork off; and it does not spill."""
    return sequence.group.search is None and not sequence.unforked and not sequence.spilled
