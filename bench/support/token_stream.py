"""One streamed completion, as its client sees it: when it was sent, and when each token came.

Knows the OpenAI completions endpoint and nothing of who answers. It reads with a blocking socket, because an event
loop's wake-ups would be counted too. Invariant: moments are of one clock, this process's.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 120.0


@dataclass(slots=True)
class TokenStream:
    """What came back: `arrivals` are (seconds, tokens) of each event with tokens; `last` is the last event."""

    sent_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first token."""
        return self.arrivals[0][0] - self.sent_s

    @property
    def first_gap_s(self) -> float:
        """Seconds between token 0 and token 1; none where they came in one event."""
        return self._gaps_s[0] if self.arrivals[0][1] == 1 else 0.0

    @property
    def tpot_s(self) -> float:
        """The median of the seconds per token after token 1."""
        return statistics.median(self._gaps_s[1:])

    @property
    def num_tokens(self) -> int:
        """How many tokens came."""
        return sum(tokens for _, tokens in self.arrivals)

    @property
    def _gaps_s(self) -> list[float]:
        moments = [at_s for at_s, _ in self.arrivals]
        return [
            (after_s - before_s) / tokens
            for before_s, after_s, (_, tokens) in zip(moments, moments[1:], self.arrivals[1:], strict=False)
        ]


def stream(url: str, body: Mapping[str, Any], *, sent_s: float | None = None) -> TokenStream:
    """Stream `body` from the server at `url`; `sent_s` is when its work began, now unless given.

    Raises RuntimeError where the server refuses, ends in an error, or sends fewer tokens than were asked for.
    """
    found = TokenStream(time.perf_counter() if sent_s is None else sent_s)
    connection, answer = _post(url, {**body, "stream": True, "return_token_ids": True})
    try:
        while line := answer.readline():
            now_s = time.perf_counter()
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"the stream ended in an error: {event['error']}")
            tokens = sum(len(choice.get("token_ids") or ()) for choice in event["choices"])
            if tokens:
                found.arrivals.append((now_s, tokens))
            found.own = event.get("pagewire") or found.own
    finally:
        connection.close()
    if found.num_tokens != body["max_tokens"]:
        raise RuntimeError(f"{found.num_tokens} tokens came, {body['max_tokens']} were asked for")
    return found


def ask(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Post `body` and return the whole answer. Raises RuntimeError where the server refuses."""
    connection, answer = _post(url, body)
    try:
        said: dict[str, Any] = json.loads(answer.read())
        return said
    finally:
        connection.close()


def prompt_body(model: str, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
    """Return a greedy request that runs to `max_tokens`."""
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def _post(url: str, body: Mapping[str, Any]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        said = answer.read().decode(errors="replace")
        connection.close()
        raise RuntimeError(f"{url} answered {answer.status}: {said}")
    return connection, answer
