"""What one iteration of the engine has to do, as a value: no tensors, and nothing that changes while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.messages import TokenLogprobs
from pagewire.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Sample one token after the grant: `index` of the sequence, `position` of the token in its output.

    `prompt` and `output` are the sequence's tokens where its parameters fold over them, else empty.
    """

    sampling: SamplingParams
    index: int
    position: int
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Say how likely each of `targets` was after its row of the grant, from `first_row` on, and the `num_top` best."""

    first_row: int
    targets: tuple[int, ...]
    num_top: int


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
    scoring: Scoring | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The grants of one iteration, each of another sequence."""

    grants: tuple[Grant, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(len(grant.tokens) for grant in self.grants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What a step found out for one grant: the token of a draw, with its log probabilities where asked; the scores."""

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
