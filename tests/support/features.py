"""Every feature that an answer may have, as a request that asks for it, and how one sees that it was had.

Requests of the tests' tiny models over HTTP: prompts of several blocks, answers of more than a dozen tokens. Knows
nothing of pods but the settings that a feature needs of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lora_folders
from pods import prompt

from pagewire.core.load import Load

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MAX_TOKENS = 24
PROMPT = prompt(1, 70)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
}
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
NAMED = {"type": "function", "function": {"name": "weather"}}
BLOCK_BYTES = 3 * 2 * 2 * 16 * 16 * 4  # of the tiny models: L, K and V, Hk, B, D, fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What pods have to be for a feature. `model` names a tiny model, `prefill_mode` is the router's.

    `was_used` sees of a pod that decoded for requests of every way whether it was what it is for. `answer` has the
    tokens that the feature's request must have, by another hand than ours, where there is one.
    """

    model: str = "llama"
    settings: dict[str, Any] = field(default_factory=dict)
    of_decode: dict[str, Any] = field(default_factory=dict)  # of pods that decode, besides
    prefill_mode: str = "remote"
    was_used: Callable[[Load], bool] = lambda load: True
    answer: Callable[[Path], Sequence[int]] | None = None


PLAIN = Kind()
KINDS: dict[str, Kind] = {
    "plain": PLAIN,
    "fp8": Kind(settings={"kv_dtype": "fp8"}),
    "int8": Kind(settings={"kv_dtype": "int8"}),
    "weights fp8": Kind(settings={"weight_dtype": "fp8"}),
    "weights int8": Kind(settings={"weight_dtype": "int8"}),
    "window": Kind(model="mistral"),
    "priority": Kind(settings={"scheduling": "priority"}),
    "pinned": Kind(settings={"prefix": tuple(PROMPT[:48])}, was_used=lambda load: load.prompt_tokens_pinned > 0),
    "adapter": Kind(
        settings={"adapter": "all"},
        answer=lambda model: lora_folders.answers(model, lora_folders.beside(model, "all"), [PROMPT], MAX_TOKENS)[0],
    ),
    "speculative": Kind(settings={"speculative_tokens": 4}, was_used=lambda load: load.draft_tokens_accepted > 0),
    "host": Kind(
        settings={"host_kv_memory_bytes": 64 * BLOCK_BYTES},
        of_decode={"preemption": "swap"},
        was_used=lambda load: load.preemptions_swapped > 0,
    ),
    "larger": Kind(
        of_decode={"kv_memory_bytes": 10 * BLOCK_BYTES, "host_kv_memory_bytes": 20 * BLOCK_BYTES}, prefill_mode="auto"
    ),
    "larger, remote": Kind(of_decode={"kv_memory_bytes": 10 * BLOCK_BYTES, "host_kv_memory_bytes": 20 * BLOCK_BYTES}),
}

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A request, and what its answer must show. `refused` is the cause and field where nobody takes it."""

    name: str
    body: dict[str, Any]
    shows: Callable[[Answer], bool] = lambda answer: True
    path: str = COMPLETIONS
    kind: str = "plain"
    refused: tuple[str, str] = ("", "")


def _texts(answer: Answer) -> list[str]:
    return [str(choice["text"]) for choice in answer["choices"]]


def _tokens(answer: Answer) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


def _is_whole(answer: Answer) -> bool:
    return len(_tokens(answer)) == MAX_TOKENS


def _differ(answer: Answer) -> bool:
    texts = _texts(answer)
    return len(texts) == 3 and len(set(texts)) == 3


def _beams(answer: Answer) -> bool:
    scores = [choice["score"] for choice in answer["choices"]]
    return len(scores) == 2 and scores == sorted(scores, reverse=True)


def _scored(answer: Answer) -> bool:
    return len(answer["choices"][0]["logprobs"]["token_logprobs"]) == MAX_TOKENS


def _prompt_scored(answer: Answer) -> bool:
    return len(answer["choices"][0]["prompt_logprobs"]) == len(PROMPT)


def _ends(answer: Answer, *tokens: int) -> bool:
    choice = answer["choices"][0]
    return choice["finish_reason"] == "stop" and (not tokens or choice["token_ids"][-1] in tokens)


def _json(answer: Answer) -> bool:
    said = json.loads(_texts(answer)[0])
    return said["a"] in ("x", "yy") and isinstance(said["b"], bool)


def _calls(answer: Answer) -> bool:
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    return bool(call["function"]["name"] == "weather" and json.loads(call["function"]["arguments"])["city"])


def completion(
    name: str, shows: Callable[[Answer], bool] = _is_whole, *, kind: str = "plain", **fields: Any
) -> Feature:
    """Return a feature of completions; greedy and as long as it may be unless said otherwise."""
    body = {
        "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    return Feature(name=name, body={**body, **fields}, shows=shows, kind=kind)


def chat(name: str, shows: Callable[[Answer], bool], **fields: Any) -> Feature:
    """Return a feature of chats."""
    body = {
        "messages": [{"role": "user", "content": "What will the weather be in Rome, and in Paris?"}],
        "max_tokens": MAX_TOKENS, "temperature": 0, "return_token_ids": True,
    }  # fmt: skip
    return Feature(name=name, body={**body, **fields}, shows=shows, path=CHAT)


DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 5}
REGEX = "[a-f]{5}-[0-9]{12}"
ECHOED = "A prompt that is said again, and then some more of it"
LARGER = prompt(40, 200)  # beside what it says too much for ten blocks

FEATURES: tuple[Feature, ...] = (
    completion("greedy"),
    completion("seeded sampling, `top_k`, `top_p`, `min_p`, `typical_p`",
               **DRAWN | {"top_k": 40, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.98}),
    completion("penalties", **DRAWN, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.8),
    completion("`logit_bias`, `allowed_token_ids`, `bad_words`", lambda answer: set(_tokens(answer)) <= {65, 66, 67},
               **DRAWN, logit_bias={"66": 2.0}, allowed_token_ids=[65, 66, 67, 68], bad_words=["D"]),
    completion("`min_tokens`, `stop_token_ids`", lambda answer: _ends(answer, 1, 2) and len(_tokens(answer)) > 10,
               **DRAWN, min_tokens=10, stop_token_ids=[1, 2], allowed_token_ids=[1, 2, 3]),
    completion("stop strings", lambda answer: _ends(answer) and "AB" not in _texts(answer)[0],
               **DRAWN | {"seed": 3}, stop=["AB"], allowed_token_ids=[65, 66, 67], min_tokens=9),
    completion("`logprobs`", _scored, logprobs=3),
    completion("`prompt_logprobs`", _prompt_scored, prompt_logprobs=2),
    completion("`echo`", lambda answer: len(_texts(answer)[0]) > MAX_TOKENS, echo=True, prompt=ECHOED),
    completion("several answers, `n`", _differ, **DRAWN, n=3),
    completion("beam search", _beams, use_beam_search=True, beam_width=3, n=2),
    completion("guided by a regular expression", lambda answer: re.fullmatch(REGEX, _texts(answer)[0]) is not None,
               **DRAWN, guided_regex=REGEX, ignore_eos=False),
    completion("guided by a JSON schema", _json, guided_json={**SCHEMA, "x-guidance": {"whitespace_flexible": False}},
               ignore_eos=False, max_tokens=60),
    completion("several prompts", lambda answer: len(answer["choices"]) == 2, prompt=[PROMPT, prompt(2, 40)]),
    completion("streaming", stream=True),
    chat("chats", lambda answer: len(answer["choices"][0]["token_ids"]) == MAX_TOKENS, ignore_eos=True),
    chat("tools, a named one", _calls, tools=[WEATHER], tool_choice=NAMED, seed=1, max_tokens=100),
    completion("`cache_salt`", cache_salt="a tenant's"),
    completion("`priority`, `--scheduling priority`", priority=-7, kind="priority"),
    completion("KV in fp8", kind="fp8"),
    completion("KV in int8", kind="int8"),
    completion("weights in fp8", kind="weights fp8"),
    completion("products in 8 bits, weights in int8", kind="weights int8"),
    completion("sliding windows", prompt=prompt(3, 90), kind="window"),
    completion("pinned prefixes", kind="pinned"),
    completion("LoRA adapters", lambda answer: _is_whole(answer) and answer["model"] == "all", model="all",
               kind="adapter"),
    completion("speculative decoding", kind="speculative", allowed_token_ids=[5, 9, 11]),
    completion("a tier of host memory", kind="host"),
    completion("sequences larger than the pool, prefill `auto`", prompt=LARGER, kind="larger"),
    completion("sequences larger than the pool, prefill `remote`", prompt=LARGER, kind="larger, remote"),
    Feature(name="`best_of` above `n`", body={"prompt": "a", "best_of": 2}, refused=("unsupported_field", "best_of")),
    Feature(name="beam search in a stream", body={"prompt": "a", "use_beam_search": True, "n": 2, "stream": True},
            refused=("unsupported_field", "stream")),
    Feature(name="`suffix`", body={"prompt": "a", "suffix": "b"}, refused=("unsupported_field", "suffix")),
)  # fmt: skip
