"""What the sequences of one request have said, here and before, and which of them go on.

The beams of a search run until it is over, and then the first `n` indices answer: nothing is heard of the others, and
none ends before. Pure. Knows tokens; nothing of engines, pods and links. Invariant: a sequence that has ended says
nothing more.
"""

from __future__ import annotations

from pagewire.core.engine_messages import Join
from pagewire.core.sequence_spec import Branch, SequenceSpec
from pagewire.core.token_record import TokenRecord


class Streams:
    """The sequences of `spec`, each with the output that it came with."""

    def __init__(self, spec: SequenceSpec) -> None:
        self._request_id = spec.request_id
        self._is_search = spec.sampling.use_beam_search
        every = (Branch(index=spec.index, output=spec.output), *spec.branches)
        self._silent = [each for each in every if self._is_search and each.index >= spec.sampling.n]
        self._outputs = {each.index: [*each.output] for each in every if each not in self._silent}
        self._running = dict.fromkeys(self._outputs)  # in the order of the spec

    @property
    def is_over(self) -> bool:
        """True when no sequence goes on that answers."""
        return not self._running

    def hear(self, record: TokenRecord) -> bool:
        """Take what one of them said; False when it has ended, and nobody is to hear of it."""
        if record.index not in self._running:
            return False
        self._outputs[record.index] += record.tokens
        if record.finish_reason is not None:
            del self._running[record.index]
        return True

    def stop(self, index: int) -> bool:
        """Let one say nothing more; False when it has ended already, or is a beam, which the others need."""
        if self._is_search or index not in self._running:
            return False
        del self._running[index]
        return True

    def output(self) -> tuple[int, ...]:
        """Return what the first of those that go on has said; there must be one."""
        return self._running_ones()[0].output

    def join(self, num_computed: int) -> Join:
        """Let those that go on run, with the KV of the first `num_computed` tokens; there must be one."""
        first, *others = (*self._running_ones(), *self._silent)
        return Join(
            request_id=self._request_id,
            num_computed=num_computed,
            output=first.output,
            index=first.index,
            branches=tuple(others),
        )

    def _running_ones(self) -> list[Branch]:
        return [Branch(index=index, output=tuple(self._outputs[index])) for index in self._running]
