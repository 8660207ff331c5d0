"""Streams asked for over a bare socket: an HTTP client's own cost would hide what hundreds of them come to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import byte_tokenizer

PROMPT = "hello world"
TIMEOUT_S = 60.0
_IDS = byte_tokenizer.build().encode(PROMPT).ids


def repeated(count: int) -> str:
    """Return what a fake pod answers to `request()` in `count` tokens."""
    return str(byte_tokenizer.build().decode([_IDS[place % len(_IDS)] for place in range(count)]))


def request(**fields: Any) -> bytes:
    """Return a whole request for a stream."""
    body = {"prompt": PROMPT, "max_tokens": 8, "stream": True, "ignore_eos": True, **fields}
    data = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data


def text_of(answer: bytes) -> str:
    """Return what a stream said that came as HTTP chunks."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer[:500]
    body = b""
    while rest and not rest.startswith(b"0\r\n"):
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    *said, last = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    assert last == b"[DONE]", answer[-300:]
    return "".join(choice["text"] for part in said for choice in json.loads(part)["choices"])


async def read_whole(reader: asyncio.StreamReader) -> bytes:
    """Read one stream to its end. Raises ConnectionError where it breaks off."""
    said = bytearray()
    async with asyncio.timeout(TIMEOUT_S):
        while not said.endswith(b"0\r\n\r\n"):
            part = await reader.read(1 << 16)
            if not part:
                raise ConnectionError(f"the stream broke off after {len(said)} bytes")
            said += part
    return bytes(said)


async def streamed(url: str, max_tokens: int) -> str:
    """Stream one answer over a connection of its own. Raises ConnectionError where it breaks off."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request(max_tokens=max_tokens))
        return text_of(await read_whole(reader))
    finally:
        writer.close()
