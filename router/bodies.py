"""The fields of a body by name: what is honoured and of what type, what is ignored, what is refused.

Fields that hold many values are typed `Any` here, and read in `long_fields.py`, `tool_fields.py` and `guided.py`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

# Fields that are about the caller's bookkeeping, or about our insides, which no caller may steer.
IGNORED = frozenset(
    ("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "session_id", "kv_transfer_params")
)
# Known and not honoured: refused by name, but for the values that ask for nothing.
REFUSED: dict[str, tuple[object, ...]] = {
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
    "spaces_between_special_tokens": (True,),
    "chat_template": (),
    "vllm_xargs": ({},),
    "prompt_embeds": (),
    "logprob_token_ids": ([],),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "prompt_cache_retention": ("in_memory", "in-memory"),
}
# The other endpoint's.
REFUSED_OF_CHATS: dict[str, tuple[object, ...]] = {"echo": (False,), "best_of": (1,)}
REFUSED_OF_COMPLETIONS: dict[str, tuple[object, ...]] = {
    "max_completion_tokens": (),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "documents": ([],),
    "chat_template_kwargs": ({},),
    "reasoning_effort": (),
    "separate_reasoning": (True,),
    "include_reasoning": (True,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
}
# What chats and completions have, and the other two say by fields of their own or not at all.
_OF_CHATS_AND_COMPLETIONS: dict[str, tuple[object, ...]] = {
    "prompt": (),
    "response_format": (),
    "reasoning_effort": (),
    "max_completion_tokens": (),
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "beam_width": (),
    "length_penalty": (),
    "early_stopping": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "truncate_prompt_tokens": (),
    "truncation_side": ("left",),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
}
# What would have to be stored, what goes on when its caller is gone, and a manner that no template knows.
REFUSED_OF_RESPONSES: dict[str, tuple[object, ...]] = _OF_CHATS_AND_COMPLETIONS | {
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "personality": (),
    "messages": (),
    "max_tokens": (),
}
# What a message's own fields say, what would have to be stored or written anew, and what its servers would have to have
# besides the model.
REFUSED_OF_MESSAGES: dict[str, tuple[object, ...]] = _OF_CHATS_AND_COMPLETIONS | {
    "input": (),
    "stop": (),
    "output_format": (),
    "separate_reasoning": (True,),
    "include_reasoning": (True,),
    "max_output_tokens": (),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True,),
    "service_tier": ("auto", "standard_only"),
    "thread": (),
    "compaction": (),
    "mcp_servers": ([],),
    "container": (),
    "fallbacks": ([],),
}


class Schema(BaseModel):
    """An object whose other members are kept."""

    model_config = ConfigDict(strict=True, extra="allow")


class StreamOptions(Schema):
    """`stream_options` of a streaming request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Wishes(Schema):
    """The request field `pagewire`: what of our own to answer with."""

    timeline: bool | None = None


class Common(Schema):
    """What all endpoints that generate take."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    logit_bias: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    seed: int | None = None
    stop: Any = None
    stop_token_ids: Any = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_interval: int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None
    pagewire: Wishes | None = None


class Body(Common):
    """What chats and completions take."""

    n: int | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    max_tokens: int | None = None
    logprobs: int | bool | None = None
    prompt_logprobs: int | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class CompletionBody(Body):
    """Body of /v1/completions."""

    prompt: Any = None
    echo: bool | None = None
    best_of: int | None = None


class ChatBody(Body):
    """Body of /v1/chat/completions."""

    messages: Any = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: Any = None
    function_call: Any = None
    documents: Any = None
    chat_template_kwargs: Any = None
    reasoning_effort: str | None = None
    separate_reasoning: bool | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    max_completion_tokens: int | None = None
    top_logprobs: int | None = None


class ResponsesBody(Common):
    """Body of /v1/responses. What there is of streams, of tools that OpenAI runs, of its cache and of compaction, which
    would only make room, changes nothing.
    """

    input: Any = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: Any = None
    reasoning: Any = None
    include: Any = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    documents: Any = None
    chat_template_kwargs: Any = None
    separate_reasoning: bool | None = None
    include_reasoning: bool | None = None
    stream_options: Any = None
    max_tool_calls: Any = None
    prompt_cache_options: Any = None
    context_management: Any = None
    metadata: Any = None


class MessagesBody(Common):
    """Body of /v1/messages. What there is of Anthropic's caches, tiers and accounts changes nothing."""

    messages: Any = None
    system: Any = None
    max_tokens: int | None = None
    stop_sequences: Any = None
    tools: Any = None
    tool_choice: Any = None
    thinking: Any = None
    output_config: Any = None
    documents: Any = None
    chat_template_kwargs: Any = None
    metadata: Any = None
    cache_control: Any = None
    context_management: Any = None
    service_tier: Any = None
    speed: Any = None
    inference_geo: Any = None
    diagnostics: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None


class TokenizeTextBody(CompletionBody):
    """Body of /tokenize with a text: that of a completion, of one prompt."""

    prompt: str | None = None
    return_token_strs: bool | None = None


class TokenizeChatBody(ChatBody):
    """Body of /tokenize with messages: that of a chat."""

    return_token_strs: bool | None = None


class DetokenizeBody(Schema):
    """Body of /detokenize."""

    model: str | None = None
    tokens: Any = None
