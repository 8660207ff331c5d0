"""Log probabilities in the shapes of OpenAI and vLLM, of tokens that are made up; whole answers: test_logprobs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from pagewire.router import answer_logprobs
from pagewire.router.events import ScoredToken


def token(
    token_id: int, data: bytes, logprob: float | None, *top: ScoredToken, rank: int = 1, offset: int = 0
) -> ScoredToken:
    return ScoredToken(token_id=token_id, data=data, logprob=logprob, rank=rank, top=top, offset=offset)


HALF = token(7, b"\xc3", -math.inf, rank=9)
LIKELY, LIKELIER = token(3, b"b", -2.0, rank=2), token(2, b"a", -0.5)
TOKENS = [token(5, b"ab", -1.5, LIKELIER, LIKELY, rank=3), HALF, token(2, "é".encode(), -0.25)]


def name(each: ScoredToken) -> str:
    return f"<{each.text}>"


def test_a_chat_has_an_entry_for_each_token_with_its_bytes() -> None:
    assert answer_logprobs.chat(TOKENS, name) == {
        "content": [
            {
                "token": "<ab>",
                "logprob": -1.5,
                "bytes": [97, 98],
                "top_logprobs": [
                    {"token": "<a>", "logprob": -0.5, "bytes": [97]},
                    {"token": "<b>", "logprob": -2.0, "bytes": [98]},
                ],
            },
            {"token": "<\ufffd>", "logprob": -9999.0, "bytes": [0xC3], "top_logprobs": []},
            {"token": "<é>", "logprob": -0.25, "bytes": [0xC3, 0xA9], "top_logprobs": []},
        ]
    }
    json.dumps(answer_logprobs.chat(TOKENS, name), allow_nan=False)


def test_a_completion_has_lists_and_the_token_itself_is_among_its_alternatives() -> None:
    first = token(1, b"one", None)
    placed = [replace(each, offset=offset) for each, offset in zip([first, *TOKENS], (0, 3, 5, 5), strict=True)]
    assert answer_logprobs.completion(placed, name) == {
        "tokens": ["<one>", "<ab>", "<\ufffd>", "<é>"],
        "token_logprobs": [None, -1.5, -9999.0, -0.25],
        "top_logprobs": [None, {"<a>": -0.5, "<b>": -2.0, "<ab>": -1.5}, {"<\ufffd>": -9999.0}, {"<é>": -0.25}],
        "text_offset": [0, 3, 5, 5],
    }


def test_of_alternatives_that_read_alike_the_likelier_stands() -> None:
    other = token(8, b"\xc4", -0.125)
    (found,) = answer_logprobs.completion([token(7, b"\xc3", -3.0, other)], name)["top_logprobs"]
    assert found == {"<\ufffd>": -0.125}


def test_a_prompts_tokens_are_by_their_ids_and_the_first_has_none() -> None:
    itself = token(2, b"a", -0.5, LIKELIER, LIKELY, rank=4)
    assert answer_logprobs.prompt([token(1, b"one", None), itself, HALF]) == [
        None,
        {
            "2": {"logprob": -0.5, "rank": 4, "decoded_token": "a"},  # the token itself: its rank counts ties
            "3": {"logprob": -2.0, "rank": 2, "decoded_token": "b"},
        },
        {"7": {"logprob": -9999.0, "rank": 9, "decoded_token": "\ufffd"}},
    ]
