"""Answers at a pace that is set, for clients whose readings are to be known right: each request has the same times.

What a request was really given is stamped where its bytes are written. Each stream begins with a head that has no
token (the role of a chat, an empty text), well before its first token: a client that takes it for one is found out.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from load_peers import Timed
from stub_server import Asked


@dataclass(slots=True)
class PacedScript:
    """Heads after `head_s`, first tokens after `ttft_s`, the others `tpot_s` apart; `served` is by request."""

    head_s: float
    ttft_s: float
    tpot_s: float
    input_tokens: int
    served: dict[str, Timed] = field(default_factory=dict)

    async def answer(self, asked: Asked) -> None:
        """Answer one request; the script of a StubServer."""
        came_s = time.monotonic()
        request_id = asked.headers.get("x-request-id") or uuid.uuid4().hex
        is_chat, length = "chat" in asked.path, _length(asked.body)
        beside: dict[str, Any] = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{request_id}",
            "object": "chat.completion.chunk" if is_chat else "text_completion",
            "created": 1,
            "model": "stub",
        }
        head = {"delta": {"role": "assistant", "content": ""}} if is_chat else {"text": ""}
        await _until(came_s + self.head_s)
        await asked.send({"choices": [{"index": 0, **head, "finish_reason": None}], **beside})
        stamps_s = []
        for number in range(length):
            await _until(came_s + self.ttft_s + number * self.tpot_s)
            stamps_s.append(time.monotonic())
            await asked.token(number, **beside)
        self.served[request_id] = Timed(
            request_id=request_id,
            ttft_ms=1e3 * (stamps_s[0] - came_s),
            tpot_ms=1e3 * (stamps_s[-1] - stamps_s[0]) / (length - 1),
            input_tokens=self.input_tokens,
            output_tokens=length,
        )
        usage = {"prompt_tokens": self.input_tokens, "completion_tokens": length}
        await asked.send({"choices": [], "usage": usage | {"total_tokens": self.input_tokens + length}, **beside})
        await asked.end()


def _length(body: dict[str, Any]) -> int:
    return int(body.get("max_tokens") or body["max_completion_tokens"])


async def _until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
