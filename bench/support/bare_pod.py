"""What stands behind `bare_router.py`: made-up tokens over one gRPC stream, a step's in one message.

    python bare_pod.py --model FOLDER --step-ms MS

Says where it listens in one JSON line, then answers each line of stdin with its stamps, taken as in `paced_pod.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import grpc
from paced_answers import Paced, PacedAnswers, serve, token_texts

SERVICE = "bare.Link"


class BarePod:
    """Answers the one router that is connected."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.answers = PacedAnswers(options.step_ms / 1e3)
        self._texts = token_texts(options.model)
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(self) -> None:
        """Serve until cancelled."""
        server = grpc.aio.server()
        method = grpc.stream_stream_rpc_method_handler(self._connect)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Connect": method}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.answers.announce(grpc=f"127.0.0.1:{port}")
        await self.answers.run(self._emit)

    async def _connect(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        async def write() -> None:
            while True:
                await context.write(await self._outbox.get())

        writer = asyncio.create_task(write())
        try:
            async for data in requests:
                self.answers.begin(*json.loads(data))
        finally:
            writer.cancel()

    def _emit(self, batch: Sequence[Paced]) -> None:
        step = []
        for request in batch:
            text = self._texts[request.sent % len(self._texts)]
            step.append((request.number, text, request.sent + 1 == request.length))
        self._outbox.put_nowait(json.dumps(step).encode())


if __name__ == "__main__":
    serve(__doc__, BarePod)
