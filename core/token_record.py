"""What a sequence yields: its new tokens, and how likely they were where that was asked."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.core.sampling import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """How likely the model held a token, before anything was done to its logits, and what it held likelier.

    Natural logarithms. `rank` 1 is the likeliest. `top_tokens` are the likeliest first, of equal ones the lower id.
    """

    token: int
    logprob: float
    rank: int
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


# Not frozen, though nobody changes it: one is made of every token, in a third of the time.
@dataclass(slots=True, kw_only=True)
class TokenRecord:
    """New tokens of one sequence; `position` is the first one's index in its output, so a gap or a repeat shows.

    `logprobs` is empty or has an entry for each token. `prompt_logprobs` are those of the prompt's tokens from the
    second on, in order, as far as they are known now; a record may have them alone.

    A beam search that goes on says in a record of nothing, as index 0, that each of its beams has one token more; where
    the prompt is scored, its last scores stand for the first one. It says each answer in one record when it is over,
    the best as index 0: `cumulative_logprob` is the sum of its tokens' log probabilities, `score` that over its
    length**length_penalty.
    """

    request_id: str
    index: int
    position: int
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cumulative_logprob: float | None = None
    score: float | None = None
