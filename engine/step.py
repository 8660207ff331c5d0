"""What one iteration of the engine has to do, as a value: no tensors, and nothing that changes while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Sample one token after the grant: `index` of the sequence, `position` of the token in its output."""

    sampling: SamplingParams
    index: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Compute `tokens`, which stand at `start` in their sequence; the block table covers them.

    `draw` is None for a chunk that is not the last. `seal` zeroes the unfilled slots of the last block, because the
    block is about to leave the pod.
    """

    request_id: str
    tokens: tuple[int, ...]
    start: int
    block_ids: tuple[int, ...]
    draw: Draw | None
    seal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The grants of one iteration, each of another sequence."""

    grants: tuple[Grant, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(len(grant.tokens) for grant in self.grants)
