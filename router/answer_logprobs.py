"""Log probabilities in the shapes of OpenAI's two endpoints, and vLLM's for those of a prompt.

Pure: scored tokens in, JSON-ready values out. A token reads as it does by itself: one that is no whole character as
U+FFFD, and its bytes say the rest where the shape has room for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagewire.router.events import ScoredToken

LEAST = -9999.0  # JSON has no infinity

Json = dict[str, Any]
Name = Callable[[ScoredToken], str]


def chat(tokens: Sequence[ScoredToken], name: Name) -> Json:
    """Return `logprobs` of a chat's choice; `name` says what a token is called."""
    return {
        "content": [
            {**_entry(token, name), "top_logprobs": [_entry(each, name) for each in token.top]} for token in tokens
        ]
    }


def completion(tokens: Sequence[ScoredToken], name: Name) -> Json:
    """Return `logprobs` of a completion's choice; `name` says what a token is called."""
    return {
        "tokens": [name(token) for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [_alternatives(token, name) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def prompt(tokens: Sequence[ScoredToken]) -> list[Json | None]:
    """Return `prompt_logprobs` as vLLM has it: null for the first token, then objects by token id."""
    return [
        None
        if token.logprob is None
        else {
            str(each.token_id): {"logprob": _finite(each.logprob), "rank": each.rank, "decoded_token": each.text}
            for each in (*token.top, token)  # the token itself last: its rank counts ties as one
        }
        for token in tokens
    ]


def _entry(token: ScoredToken, name: Name) -> Json:
    return {"token": name(token), "logprob": _finite(token.logprob), "bytes": list(token.data)}


def _alternatives(token: ScoredToken, name: Name) -> Json | None:
    # The token itself is always among them, as in OpenAI's answers. Of equal texts the likelier stands.
    if token.logprob is None:
        return None
    found: Json = {}
    for each in (*token.top, token):
        found.setdefault(name(each), _finite(each.logprob))
    return found


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST)
