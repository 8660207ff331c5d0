"""From the log probabilities that pods report to scored tokens, which read as text.

Pure; knows how to spell a token and nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

from pagewire.core.token_record import TokenLogprobs
from pagewire.router.events import ScoredToken

TokenBytes = Callable[[int], bytes]
"""The UTF-8 of one token by itself."""


def scored(
    logprobs: Sequence[TokenLogprobs], token_bytes: TokenBytes, offsets: Sequence[int] = ()
) -> tuple[ScoredToken, ...]:
    """Return the tokens of an output, scored; `offsets` say where each begins in its text."""
    pairs = zip(logprobs, offsets or repeat(0), strict=False)
    return tuple(_scored(each, token_bytes, offset) for each, offset in pairs)


def scored_prompt(
    prompt: Sequence[int], logprobs: Sequence[TokenLogprobs], token_bytes: TokenBytes, offsets: Sequence[int] = ()
) -> tuple[ScoredToken, ...]:
    """Return the tokens of a prompt, scored from the second on; `offsets` say where each begins in its text."""
    first = ScoredToken(token_id=prompt[0], data=token_bytes(prompt[0]), logprob=None)
    return (first, *scored(logprobs, token_bytes, offsets[1:]))


def _scored(logprobs: TokenLogprobs, token_bytes: TokenBytes, offset: int) -> ScoredToken:
    top = zip(logprobs.top_tokens, logprobs.top_logprobs, strict=True)
    return ScoredToken(
        token_id=logprobs.token,
        data=token_bytes(logprobs.token),
        logprob=logprobs.logprob,
        rank=logprobs.rank,
        offset=offset,
        top=tuple(
            ScoredToken(token_id=token, data=token_bytes(token), logprob=logprob, rank=place)
            for place, (token, logprob) in enumerate(top, start=1)
        ),
    )
