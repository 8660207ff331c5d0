"""What a caller may ask for beside the prompt, stated once for both shells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pagewire.client.results import Message, Tool

Prompt = str | Sequence[int] | Sequence[Message | Mapping[str, Any]]
Tools = Sequence[Tool | Mapping[str, Any]]


class Rendering(TypedDict, total=False):
    """How a prompt becomes tokens: arguments of `tokenize`, `generate` and `stream`; all but the first for chats.

    add_special_tokens  whether it gets the tokenizer's special tokens; else a text does, and a chat does not
    add_generation_prompt  False does not begin an answer
    continue_final_message  True goes on with the last message
    documents           objects that the chat template may show
    chat_template_kwargs  variables that the model's chat template reads, such as {"enable_thinking": False}
    """

    add_special_tokens: bool | None
    add_generation_prompt: bool | None
    continue_final_message: bool
    documents: Sequence[Mapping[str, Any]]
    chat_template_kwargs: Mapping[str, Any]


class Options(Rendering, total=False):
    """Keyword arguments of `generate` and `stream`. What is left out, or None, takes the server's default.

    Those of `Rendering`, and

    model            name of the model; the router's first one when left out
    n                how many answers, each with an index of its own
    use_beam_search  have the likeliest answers searched rather than drawn, best first; each comes whole, at the end
    beam_width       beams that search, n when left out
    length_penalty   a found answer's score is its log probability over its number of tokens to this power
    early_stopping   when a search is over: False, True or "never", as transformers has it
    max_tokens       output tokens at most; 0 with `prompt_logprobs` has the prompt scored, and nothing answered
    temperature      0 is greedy
    top_k            most likely tokens to draw from, 0 for all
    top_p, min_p     share of probability to draw from; least probability relative to the most likely
    typical_p        share of probability to draw from, nearest the expected surprise first
    repetition_penalty, presence_penalty, frequency_penalty
                     against tokens that were there: in prompt or answer; in the answer; as often as in the answer
    logit_bias       what to add to the logits of tokens, by their ids
    allowed_token_ids  the only tokens that may be chosen
    bad_words        texts, or token sequences, that never come
    min_tokens       output tokens at least
    json_schema, json_object, regex, lark
                     what the answer has to be: a schema (an object, or its JSON), any object, a grammar; one of them
    logprobs         report each token's log probability, and those of so many of the likeliest
    prompt_logprobs  the same for the prompt's tokens, in the result
    tools            functions that the model may call in a chat: `Tool`s, or objects as in OpenAI's API
    tool_choice      "none", "auto", "required", or the tool that has to be called: a `Tool`, or an object as there
    parallel_tool_calls  False is one call at most
    seed             makes the answer repeatable
    stop             strings that end the answer; they are not part of it
    stop_token_ids   tokens that end the answer
    ignore_eos       go on after the end-of-sequence token
    skip_special_tokens  False has special tokens in the text
    include_stop_str_in_output  leaves the stop string, or the stop token, in the text
    separate_reasoning  False leaves what a chat's model marks as reasoning in the text, marks and all
    include_reasoning  False leaves it out of the answer
    truncate_prompt_tokens  keeps so many tokens of a prompt that may be too long, -1 as many as leave room
    truncation_side  what goes of such a prompt: "left" or "right"
    cache_salt       prompts with different salts never share cached KV
    priority         the lower, the sooner, where the cluster schedules by priority: -100 to 100, 0 when left out
    stream_interval  a chunk has so many tokens at least, after an answer's first one; 1 when left out
    explain          have the result say why the request was placed as it was
    request_id       for logs; the router makes one when left out
    traceparent      W3C's header of the span that the request is part of; OpenTelemetry's current one when left out,
                     where the program has OpenTelemetry, and "" for none
    """

    model: str
    n: int | None
    use_beam_search: bool
    beam_width: int | None
    length_penalty: float | None
    early_stopping: bool | str | None
    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[str | Sequence[int]]
    min_tokens: int | None
    json_schema: str | Mapping[str, object]
    json_object: bool
    regex: str
    lark: str
    logprobs: int | None
    prompt_logprobs: int | None
    tools: Tools
    tool_choice: str | Tool | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    skip_special_tokens: bool | None
    include_stop_str_in_output: bool
    separate_reasoning: bool | None
    include_reasoning: bool | None
    truncate_prompt_tokens: int | None
    truncation_side: str
    cache_salt: str
    priority: int
    stream_interval: int | None
    explain: bool
    request_id: str
    traceparent: str | None
