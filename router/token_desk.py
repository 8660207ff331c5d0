"""What `/tokenize` and `/detokenize` are asked and answer, in the shapes of vLLM's, and what counts the tokens of a
message's prompt and of a response's.

Knows JSON and the tokenizer. Invariant: what is counted is the prompt that a chat or a completion with the same body
has; a body that one would refuse is refused, but for the prompt's length, which whoever counts wants to know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagewire.core.errors import InvalidRequest
from pagewire.router.anthropic.call import parse_count
from pagewire.router.guard import caller
from pagewire.router.intake import Intake
from pagewire.router.models import Models
from pagewire.router.openai import Call, parse_detokenize, parse_tokenize
from pagewire.router.responses import call as responses
from pagewire.router.validation import Limits, check_token_ids


class TokenDesk:
    """Answers all, for the model that a body names. `on_unknown` is told how many fields of a body are unknown."""

    def __init__(self, models: Models, on_unknown: Callable[[int], None]) -> None:
        self._models = models
        self._on_unknown = on_unknown

    async def tokenize(self, data: bytes) -> dict[str, Any]:
        """Return the tokens of a text or a chat; raises InvalidRequest."""
        call, with_strings = parse_tokenize(data, _origin())
        intake, limits, tokens = await self._prompt(call)
        strings = [intake.token_text(token) for token in tokens] if with_strings else None
        return {
            "count": len(tokens), "max_model_len": limits.max_model_len, "tokens": list(tokens), "token_strs": strings,
        }  # fmt: skip

    async def count_message(self, data: bytes) -> dict[str, Any]:
        """Return how many tokens the prompt of a message has; raises InvalidRequest."""
        _, _, tokens = await self._prompt(parse_count(data, _origin()))
        return {"input_tokens": len(tokens)}

    async def count_response(self, data: bytes) -> dict[str, Any]:
        """Return how many tokens the prompt of a response has; raises InvalidRequest."""
        _, _, tokens = await self._prompt(responses.parse(data, _origin()))
        return {"object": "response.input_tokens", "input_tokens": len(tokens)}

    async def detokenize(self, data: bytes) -> dict[str, Any]:
        """Return the text of tokens, special ones too; raises InvalidRequest."""
        model, tokens, unknown_fields = parse_detokenize(data)
        self._on_unknown(len(unknown_fields))
        intake = self._models.of(model).intake
        limits = intake.limits()
        if len(tokens) > limits.max_model_len:  # decoding keeps this thread
            message = f"tokens holds {len(tokens)}, the model's context takes {limits.max_model_len}"
            raise InvalidRequest(message, field="tokens")
        check_token_ids("tokens", tokens, limits)
        return {"prompt": intake.text_of(tokens)}

    async def _prompt(self, call: Call) -> tuple[Intake, Limits, tuple[int, ...]]:
        self._on_unknown(len(call.unknown_fields))
        intake = self._models.of(call.ask.model).intake
        return intake, *await intake.tokenize(call.ask)


def _origin() -> dict[str, Any]:
    return {"request_id": "tokenize", "tenant": caller()}
