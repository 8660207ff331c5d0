"""What a caller gets back: plain frozen values. Knows nothing of gRPC or protobuf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagewire.client.explanation import Explanation
from pagewire.core.sampling import FinishReason
from pagewire.core.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What a model called. `arguments` is a JSON object, as the model wrote it; cut off where the answer was."""

    id: str
    name: str
    arguments: str

    def parsed(self) -> dict[str, Any]:
        """Return the arguments; raises ValueError where they are no JSON object."""
        value = json.loads(self.arguments)
        if not isinstance(value, dict):
            raise ValueError(f"the arguments of {self.name} are no object: {self.arguments!r}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallPart:
    """A piece of call `index`: the first of each has its id and name, and the arguments of all belong together."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat: `role` is "system", "user", "assistant" or "tool".

    An assistant's may have `tool_calls`, and `reasoning` that came before; one of a tool says in `tool_call_id` which
    call it answers.
    """

    role: str
    content: str = ""
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """How likely the model held a token, as a natural logarithm, and the likeliest tokens.

    `data` is the token's UTF-8, not always whole characters; `rank` 1 is the likeliest. The first token of a prompt has
    no log probability.
    """

    token_id: int
    data: bytes
    logprob: float | None
    rank: int
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one step added to the answer `index`.

    `text` may be empty while a character is incomplete, or held back for a stop string. `logprobs` has an entry for
    each token where they were asked for. The last chunk of an answer has its `finish_reason`, and in `stop` the stop
    string or token that ended it, or None. Where there are tools, `tool_calls` are the pieces of calls in it, one of
    each call at most; where reasoning is told apart, `reasoning` is what of it is in it. `text` is the rest.
    """

    text: str
    token_ids: tuple[int, ...]
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    tool_calls: tuple[ToolCallPart, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a request, whose prompt counts once; `cached_tokens` of it were not computed anew.

    `reasoning_tokens` of the completion were reasoning and its marks; None where nothing was told apart.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """Where a request ran and what its KV cost to move.

    `transfer_s` is how long bytes were on their way, `exposed_s` the part of it that decoding waited for. `causes` say
    why prefill pods could not be asked or lost the prompt, fetched tokens were copied from other pods' caches,
    predictions are of the first token. `notes` say what was done otherwise than asked, such as a `max_tokens` that a
    pod under pressure clipped.
    """

    placement: str
    prefill_pod: str
    decode_pod: str
    prefill_cached_tokens: int
    prefill_computed_tokens: int
    decode_cached_tokens: int
    decode_computed_tokens: int
    chunks: int
    manifest_blocks: int
    blocks_shipped: int
    bytes_shipped: int
    transfer_s: float
    exposed_s: float
    transport: str = ""
    causes: tuple[str, ...] = ()
    prefill_fetched_tokens: int = 0
    decode_fetched_tokens: int = 0
    predicted_local_s: float = 0.0
    predicted_remote_s: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One finished answer. `stop` is the stop string or token that ended it, or None; `reasoning` came before `text`.

    One that calls tools ends with `FinishReason.TOOL_CALLS`; `message` is what the chat goes on with. Of a beam search,
    `cumulative_logprob` is the sum over `token_ids`, and `score` what the outputs are ordered by.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | int | None
    logprobs: tuple[TokenLogprob, ...] = ()
    cumulative_logprob: float | None = None
    score: float | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""

    @property
    def message(self) -> Message:
        """The answer as a turn of the chat."""
        return Message(role="assistant", content=self.text, tool_calls=self.tool_calls, reasoning=self.reasoning)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished request: `n` outputs in the order of their index, and what the first one has by its short names.

    Those of a beam search are the best first, and fewer than `n` where what is allowed makes no more. `explanation` is
    there where it was asked for.
    """

    request_id: str
    outputs: tuple[Output, ...]
    usage: Usage
    timelines: tuple[Timeline, ...] = ()
    transfer: TransferReport | None = None
    prompt_token_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    explanation: Explanation | None = None

    @property
    def text(self) -> str:
        """The text of the first output."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of the first output."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first output ended."""
        return self.outputs[0].finish_reason

    @property
    def stop(self) -> str | int | None:
        """What stopped the first output."""
        return self.outputs[0].stop

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """The log probabilities of the first output."""
        return self.outputs[0].logprobs

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """What the first output calls."""
        return self.outputs[0].tool_calls

    @property
    def reasoning(self) -> str:
        """What the first output reasoned."""
        return self.outputs[0].reasoning

    @property
    def message(self) -> Message:
        """The first output as a turn of the chat."""
        return self.outputs[0].message


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model that is served, its limits in tokens, and the adapters that may be named in its place."""

    model: str
    max_model_len: int
    block_size: int
    vocab_size: int
    adapters: tuple[str, ...] = ()
