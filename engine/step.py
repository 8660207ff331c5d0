"""What one iteration of the engine has to do, as a value: no tensors, and nothing that changes while it runs.

What is made for every token of every sequence is no frozen dataclass: to make one of those takes three times as long,
and a step of 256 sequences has a thousand. It is not changed all the same.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from pagewire.core.sampling import SamplingParams
from pagewire.core.token_record import TokenLogprobs
from pagewire.engine.beam_search import Candidates

AHEAD = -1  # in place of a token: the one that the step before draws for the sequence, not known yet


@dataclass(slots=True, kw_only=True)
class Draw:
    """Sample one token after a token of the grant: `index` of the sequence, `position` of the token in its output.

    `prompt` and `output` are the sequence's tokens where its parameters fold over them, else empty. For a beam nothing
    is sampled: so many candidates as `num_candidates` are found.
    """

    sampling: SamplingParams
    index: int
    position: int
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    num_candidates: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Say how likely each of `targets` was after its row of the grant, from `first_row` on, and the `num_top` best."""

    first_row: int
    targets: tuple[int, ...]
    num_top: int


def fork_name(request_id: str, index: int) -> str:
    """Return what the engine calls a sequence that forked off its request's first; no request's id holds the mark."""
    return f"{request_id}\x1f{index}"


def check_name(name: str, place: int) -> str:
    """Return what the token is called that is drawn behind a sequence's drafted token of that place."""
    return f"{name}\x1e{place}"


def name_of(drawn: str) -> str:
    """Return the name of the sequence that a draw or a check is for."""
    return drawn.partition("\x1e")[0]


@dataclass(slots=True, kw_only=True)
class Grant:
    """Compute `tokens`, which stand at `start` in their sequence; the block table covers them and all that they see.

    `request_id` is the sequence's name: its request's id, and for those that forked off their index behind it. `draw`
    is None for a chunk that is not the last. `forks` are the draws, from the same logits, of the sequences that fork
    off after it. `seal` zeroes the unfilled slots of the last block, because the block is about to leave the pod.
    `checks` are for a decode whose last tokens are drafted, as many of them: the draws behind each, where `draw` is
    behind the token before; the drafted ones stand as far as they are what is drawn in their places.
    The token of a step that is begun ahead of the one before is `AHEAD`.
    `spilled` are the slots of host memory that its first blocks lie in, of which the block table says nothing; such a
    grant is alone in its step. `adapter` is which of the engine's adapters it is computed with, from 1 on, 0 for none.
    """

    request_id: str
    tokens: tuple[int, ...]
    start: int
    block_ids: array[int]
    draw: Draw | None
    seal: bool = False
    scoring: Scoring | None = None
    forks: tuple[Draw, ...] = ()
    checks: tuple[Draw, ...] = ()
    spilled: tuple[int, ...] = ()
    adapter: int = 0

    @property
    def num_draws(self) -> int:
        """How many tokens are drawn, or candidates for one found."""
        return 0 if self.draw is None else 1 + len(self.forks) + len(self.checks)

    @property
    def drafted(self) -> tuple[int, ...]:
        """The tokens that are drafted."""
        return self.tokens[len(self.tokens) - len(self.checks) :]

    def undrafted(self) -> Grant:
        """Return what there is to compute without the drafted tokens."""
        return replace(self, tokens=self.tokens[: len(self.tokens) - len(self.checks)], checks=())

    def draws(self) -> dict[str, Draw]:
        """Return all draws by the names of the sequences, or of the checks, that they are for."""
        if self.draw is None:
            return {}
        draws = {self.request_id: self.draw}
        for draw in self.forks:
            draws[fork_name(self.request_id, draw.index)] = draw
        for place, draw in enumerate(self.checks):
            draws[check_name(self.request_id, place)] = draw
        return draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The grants of one iteration, each of another sequence."""

    grants: tuple[Grant, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(len(grant.tokens) for grant in self.grants)


@dataclass(slots=True, kw_only=True)
class Computed:
    """What a step found out for one grant: the token of a draw, with its log probabilities where asked; the scores.

    Of a beam's draw, `candidates` in place of a token.
    """

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    candidates: Candidates | None = None
