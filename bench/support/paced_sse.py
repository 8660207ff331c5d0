"""A bare OpenAI server without an engine: chat completions streamed at a set pace. It is what a peer's router stands
before, and, asked directly, the measure of what client, kernel and event loop cost without any router.

    python paced_sse.py --model FOLDER --step-ms MS

Says where it listens in one JSON line, then answers each line of stdin with its stamps; a request's is from after its
body was read. Reads just enough HTTP for that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import cast

from paced_answers import Paced, PacedAnswers, serve, token_texts

MODELS = {"object": "list", "data": [{"id": "paced", "object": "model", "owned_by": "paced", "max_model_len": 8192}]}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class PacedServer:
    """Writes the tokens of a step, one connection after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.answers = PacedAnswers(options.step_ms / 1e3)
        self._texts = token_texts(options.model)
        self._streams: dict[int, Connection] = {}

    async def serve(self) -> None:
        """Serve until cancelled."""
        server = await asyncio.get_running_loop().create_server(lambda: Connection(self), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.answers.announce(http=f"http://127.0.0.1:{port}")
        await self.answers.run(self._emit)

    def begin(self, connection: Connection, body: dict[str, object]) -> Paced:
        """Take a request."""
        number, length = int(str(body["seed"])), int(str(body["max_tokens"]))
        self._streams[number] = connection
        return self.answers.begin(number, length)

    def end(self, request: Paced) -> None:
        """Forget a request whose client went away."""
        self.answers.drop(request)
        self._streams.pop(request.number, None)

    def _emit(self, batch: Sequence[Paced]) -> None:
        for request in batch:
            connection = self._streams[request.number]
            is_last = request.sent + 1 == request.length
            head = STREAM_HEAD + _event(request, {"role": "assistant", "content": ""}) if request.sent == 0 else b""
            token = _event(request, {"content": self._texts[request.sent % len(self._texts)]})
            tail = _event(request, {}, "length") + END if is_last else b""
            connection.write(head + token + tail)
            if is_last:
                self._streams.pop(request.number)
                connection.request = None


class Connection(asyncio.Protocol):
    """One client, one request at a time."""

    def __init__(self, server: PacedServer) -> None:
        self._server = server
        self._data = b""
        self.request: Paced | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's derives from nothing of asyncio

    def connection_lost(self, _error: Exception | None) -> None:
        """Let go of what runs."""
        if self.request is not None:
            self._server.end(self.request)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Answer a request once it is whole."""
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found or len(body) < _content_length(head):
            return
        self._data = b""
        if head.startswith(b"POST /v1/chat/completions"):
            self.request = self._server.begin(self, json.loads(body))
            return
        said = json.dumps(MODELS).encode()
        self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(said) + said
        )


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _event(request: Paced, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    body = {
        "id": f"chatcmpl-{request.number}", "object": "chat.completion.chunk", "created": 1, "model": "paced",
        "choices": [choice],
    }  # fmt: skip
    data = b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


if __name__ == "__main__":
    serve(__doc__, PacedServer)
