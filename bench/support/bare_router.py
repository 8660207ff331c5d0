"""The least that a router of these libraries can be: uvicorn before, one gRPC stream behind, and nothing between.

    python bare_router.py --pod HOST:PORT

It checks nothing, tokenizes nothing, asks nobody and chooses nothing: what a request and a token take here is the floor
under any router on uvicorn and grpc.aio. Says where it listens in one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket

import grpc
import uvicorn
import uvloop
from bare_pod import SERVICE
from starlette.types import Receive, Scope, Send

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


class BareRouter:
    """Passes requests on, and tokens back."""

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._inboxes: dict[int, asyncio.Queue[tuple[str, bool]]] = {}
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()  # gRPC takes one message at a time

    async def serve(self) -> None:
        """Serve until cancelled."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(512)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with grpc.aio.insecure_channel(self._pod) as channel:
                self._call = channel.stream_stream(f"/{SERVICE}/Connect")()
                carriers = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
                config = uvicorn.Config(
                    self._answer, interface="asgi3", lifespan="off", ws="none", log_level="warning", proxy_headers=False
                )
                print(json.dumps({"pid": os.getpid(), "http": url}), flush=True)
                await uvicorn.Server(config).serve(sockets=[listener])
                for carrier in carriers:
                    carrier.cancel()

    async def _read(self) -> None:
        while (data := await self._call.read()) is not grpc.aio.EOF:
            for number, text, is_last in json.loads(data):
                self._inboxes[number].put_nowait((text, is_last))

    async def _write(self) -> None:
        while True:
            await self._call.write(await self._outbox.get())

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":  # is it up?
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        body, is_whole = b"", False
        while not is_whole:
            part = await receive()
            body, is_whole = body + part["body"], not part["more_body"]
        asked = json.loads(body)
        number = asked["seed"]
        inbox = self._inboxes[number] = asyncio.Queue()
        self._outbox.put_nowait(json.dumps((number, asked["max_tokens"])).encode())
        is_begun = is_last = False
        while not is_last:
            text, is_last = await inbox.get()
            if not is_begun:
                await send(HEAD)
                is_begun = True
            event = b'data: {"choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % json.dumps(text).encode()
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        del self._inboxes[number]


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pod", required=True)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(BareRouter(options.pod).serve())


if __name__ == "__main__":
    main()
