"""From the log probabilities that pods report to scored tokens, which read as text.

Pure; knows how to spell a token and nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagewire.core.token_record import TokenLogprobs
from pagewire.router.events import ScoredToken

TokenBytes = Callable[[int], bytes]
"""The UTF-8 of one token by itself."""


def scored(logprobs: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> tuple[ScoredToken, ...]:
    """Return the tokens of an output, scored."""
    return tuple(_scored(each, token_bytes) for each in logprobs)


def scored_prompt(
    prompt: Sequence[int], logprobs: Sequence[TokenLogprobs], token_bytes: TokenBytes
) -> tuple[ScoredToken, ...]:
    """Return the tokens of a prompt, scored from the second on."""
    first = ScoredToken(token_id=prompt[0], data=token_bytes(prompt[0]), logprob=None)
    return (first, *scored(logprobs, token_bytes))


def _scored(logprobs: TokenLogprobs, token_bytes: TokenBytes) -> ScoredToken:
    top = zip(logprobs.top_tokens, logprobs.top_logprobs, strict=True)
    return ScoredToken(
        token_id=logprobs.token,
        data=token_bytes(logprobs.token),
        logprob=logprobs.logprob,
        rank=logprobs.rank,
        top=tuple(
            ScoredToken(token_id=token, data=token_bytes(token), logprob=logprob, rank=place)
            for place, (token, logprob) in enumerate(top, start=1)
        ),
    )
