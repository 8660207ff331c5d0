"""One streamed completion of a live cluster, in the background: what it said so far, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
from live_cluster import LiveCluster

WAIT_S = 120.0


class Stream:
    """The tokens of one request so far; `error` is the body's where it failed, `said` the last `pagewire` object.

    Its code is "broken" where the connection ended.

    Of one with several choices the tokens are mixed.
    """

    def __init__(self, cluster: LiveCluster, prompt: list[int], max_tokens: int, salt: str, **fields: Any) -> None:
        self.tokens: list[int] = []
        self.finish_reason = ""
        self.error: dict[str, Any] = {}
        self.said: dict[str, Any] = {}
        self._body = {
            "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "return_token_ids": True, "pagewire": {"timeline": True}, "cache_salt": salt, **fields,
        }  # fmt: skip
        self._heard = asyncio.Event()
        self._task = asyncio.create_task(self._listen(cluster.http))

    @property
    def report(self) -> dict[str, Any]:
        """What the pods counted."""
        report: dict[str, Any] = self.said["report"]
        return report

    @property
    def is_over(self) -> bool:
        """True once nothing more comes."""
        return self._task.done()

    async def heard(self, num_tokens: int) -> None:
        """Return when so many tokens are here."""
        async with asyncio.timeout(WAIT_S):
            while len(self.tokens) < num_tokens:
                assert not self.is_over, f"over with {len(self.tokens)} tokens: {self.error}"
                self._heard.clear()
                await self._heard.wait()

    async def end(self) -> None:
        """Return when it is over."""
        async with asyncio.timeout(WAIT_S):
            await asyncio.shield(self._task)

    async def leave(self) -> None:
        """Go away in the middle."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _listen(self, url: str) -> None:
        try:
            await self._read(url)
        except httpx.TransportError:
            self.error = {"code": "broken"}

    async def _read(self, url: str) -> None:
        async with (
            httpx.AsyncClient(base_url=url, timeout=WAIT_S, trust_env=False) as client,
            client.stream("POST", "/v1/completions", json=self._body) as response,
        ):
            if response.status_code != httpx.codes.OK:
                self.error = json.loads(await response.aread())["error"]
                return
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._take(json.loads(line.removeprefix("data: ")))
                    self._heard.set()

    def _take(self, said: dict[str, Any]) -> None:
        self.error = said.get("error", {})
        self.said = said.get("pagewire") or self.said
        for choice in said.get("choices", ()):
            self.tokens += choice.get("token_ids") or []
            self.finish_reason = choice["finish_reason"] or self.finish_reason


@contextlib.asynccontextmanager
async def streaming(
    cluster: LiveCluster, prompt: list[int], max_tokens: int, salt: str, **fields: Any
) -> AsyncIterator[Callable[[], Stream]]:
    """Yield what asks, each time with a salt of its own; whatever happens, nobody listens at the end."""
    streams: list[Stream] = []

    def begin() -> Stream:
        streams.append(Stream(cluster, prompt, max_tokens, f"{salt}.{len(streams)}" if streams else salt, **fields))
        return streams[-1]

    try:
        yield begin
    finally:
        for stream in streams:
            await stream.leave()


async def completed(cluster: LiveCluster, prompt: list[int], max_tokens: int, salt: str) -> Stream:
    """Ask, and return the answer once it is whole."""
    async with streaming(cluster, prompt, max_tokens, salt) as begin:
        stream = begin()
        await stream.end()
    return stream
