"""What `/tokenize` and `/detokenize` are asked and answer, in the shapes of vLLM's.

Knows JSON and the tokenizer. A chat is rendered and encoded as a completion of it would be.
"""

from __future__ import annotations

from typing import Any

from pagewire.core.errors import InvalidRequest
from pagewire.router import long_fields
from pagewire.router.bodies import TokenizeBody
from pagewire.router.json_text import read_body
from pagewire.router.models import Models
from pagewire.router.openai import tokenize_ask, validated
from pagewire.router.validation import check_token_ids


class TokenDesk:
    """Answers both, for the model that a body names."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def tokenize(self, data: bytes) -> dict[str, Any]:
        """Return the tokens of a text or a chat; raises InvalidRequest."""
        raw = read_body(data)
        body = validated(TokenizeBody, raw)
        ask = tokenize_ask(body, raw)
        intake = self._models.of(ask.model).intake
        limits = intake.check(ask)
        tokens = await intake.tokenize(ask, limits)
        strings = [intake.token_text(token) for token in tokens] if body.return_token_strs else None
        return {
            "count": len(tokens), "max_model_len": limits.max_model_len, "tokens": list(tokens), "token_strs": strings,
        }  # fmt: skip

    async def detokenize(self, data: bytes) -> dict[str, Any]:
        """Return the text of tokens, special ones too; raises InvalidRequest."""
        raw = read_body(data)
        model = raw.get("model")
        if model is not None and not isinstance(model, str):
            raise InvalidRequest("model is a string", field="model")
        intake = self._models.of(model or "").intake
        if raw.get("tokens") is None:
            raise InvalidRequest("tokens is missing", field="tokens")
        tokens = long_fields.token_ids("tokens", raw["tokens"])
        limits = intake.limits()
        if len(tokens) > limits.max_model_len:  # decoding keeps this thread
            message = f"tokens holds {len(tokens)}, the model's context takes {limits.max_model_len}"
            raise InvalidRequest(message, field="tokens")
        check_token_ids("tokens", tokens, limits)
        return {"prompt": intake.text_of(tokens)}
