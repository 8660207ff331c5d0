"""A server that speaks OpenAI's HTTP API, asked for streams. Knows its words, and those that ours and vLLM add to them.

Invariant: bytes are stamped before they are read, and events that came together have one stamp.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Self

import httpx

from pagewire.client.security import call_metadata
from pagewire.core.certificates import client_context
from pagewire.core.documents import parse_object
from pagewire.core.errors import Unavailable
from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.slo.load.ask import Ask, AskFailed, Chat, Part, Usage

DONE = b"[DONE]"
CONNECT_S = 10.0
SOON_S = 0.002  # most servers end the body with the last event, or right behind it
REST_S = 1.0  # for a body to end behind its last event; nobody waits for that
DETAIL_CHARS = 300
GIVEN_UP = ("abort", "error", "cancelled")  # what servers call an end that was none of the answer's own
REASONING = ("reasoning", "reasoning_content")  # as servers call it
TIMELINE = {"x-pagewire-timeline": "1"}  # which others do not read
PHASES = {phase.value for phase in Phase}


class HttpTarget:
    """A server at `url`, with or without /v1; `now` is the player's clock. Use it in an `async with` block.

    Without `extends` it is asked with OpenAI's own fields alone: then answers may end before their length, and name no
    tokens. Streams have no timeout here: the player has one. Raises ValueError on what is no URL, or can be no key.
    """

    def __init__(
        self, url: str, *, now: Callable[[], float], extends: bool = True, model: str = "", api_key: str = "",
        ca: str = "", cert: str = "", key: str = "",
    ) -> None:  # fmt: skip
        self.model = model
        self._now = now
        self._extends = extends
        base = url.rstrip("/").removesuffix("/v1") + "/v1"
        try:
            base_url = httpx.URL(base)
        except httpx.InvalidURL as error:
            raise ValueError(f"{url!r} is no URL: {error}") from error
        self._client = httpx.AsyncClient(
            base_url=base_url,
            headers=call_metadata(api_key),
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
            verify=client_context(ca, cert, key) if ca or cert else True,
        )
        self._rests: set[asyncio.Task[None]] = set()  # each ends within REST_S, and at the latest with the target

    async def __aenter__(self) -> Self:
        """Ask which model is served, unless one was named; raises Unavailable where nobody says."""
        if not self.model:
            try:
                listed = (await self._client.get("/models", timeout=CONNECT_S)).raise_for_status().json()
                self.model = listed["data"][0]["id"]
            except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
                await self._client.aclose()
                said = str(error) or type(error).__name__
                raise Unavailable(f"{self._client.base_url} does not say what it serves: {said}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connections."""
        for rest in self._rests:
            rest.cancel()
        await asyncio.gather(*self._rests, return_exceptions=True)
        await self._client.aclose()

    def call(self, ask: Ask) -> AsyncGenerator[Part, None]:
        """Return the answer as it comes; its body is written now. Iterating raises AskFailed."""
        request = self._client.build_request(
            "POST",
            "/chat/completions" if isinstance(ask.prompt, Chat) else "/completions",
            content=json.dumps(self._body(ask), separators=(",", ":")).encode(),
            headers={
                "content-type": "application/json",
                "x-request-id": ask.request_id,
                **(TIMELINE if self._extends else {}),
            },
        )
        return self._parts(request)

    def _body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": ask.model or self.model,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if isinstance(ask.prompt, Chat):
            body["messages"] = [{"role": role, "content": text} for role, text in ask.prompt.messages]
        else:
            body["prompt"] = ask.prompt
        if self._extends:
            body |= {"ignore_eos": True, "return_token_ids": True}
            if ask.priority:
                body["priority"] = ask.priority
        return body

    async def _parts(self, request: httpx.Request) -> AsyncGenerator[Part, None]:
        try:
            response = await self._client.send(request, stream=True)
            async with AsyncExitStack() as opened:
                opened.push_async_callback(response.aclose)
                if response.status_code != httpx.codes.OK:
                    detail = (await response.aread()).decode(errors="replace")
                    raise AskFailed(f"http_{response.status_code}", detail[:DETAIL_CHARS])
                body = response.aiter_bytes()
                async for part in self._answer(body):
                    yield part
                rest = asyncio.create_task(_read_out(body, opened.pop_all()))
        except httpx.HTTPError as error:
            raise AskFailed("connection", str(error) or type(error).__name__) from error
        self._rests.add(rest)
        rest.add_done_callback(self._rests.discard)
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON_S):
                await asyncio.shield(rest)

    async def _answer(self, body: AsyncIterator[bytes]) -> AsyncGenerator[Part, None]:
        rest = b""
        async for data in body:
            at_s = self._now()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                event = line[5:].strip()
                if event == DONE:
                    yield Part(at_s=at_s)
                    return
                yield self._part(at_s, _object(event))
        raise AskFailed("stream", "it ended without [DONE]")

    def _part(self, at_s: float, event: Mapping[str, Any]) -> Part:
        try:
            if error := event.get("error"):
                raise AskFailed("stream", str(error)[:DETAIL_CHARS])
            text, token_ids, has_token = "", (), False
            for choice in event["choices"]:
                if (reason := choice.get("finish_reason")) in GIVEN_UP:
                    raise AskFailed("stream", f"it was given up: finish_reason {reason}")
                said = choice["delta"] if "delta" in choice else {"content": choice["text"]}
                text = said.get("content") or ""
                ids = choice.get("token_ids")
                token_ids = tuple(ids or ())
                # Where tokens are named they count: one may have no text yet, a head may have an empty one.
                is_said = bool(text or any(said.get(name) for name in REASONING))
                has_token = is_said if ids is None else bool(ids)
            return Part(
                at_s=at_s, has_token=has_token, text=text, token_ids=token_ids, usage=_usage(event.get("usage")),
                timelines=_timelines(event.get("pagewire")),
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError) as error:
            raise AskFailed("stream", f"no part of an answer: {event!r:.{DETAIL_CHARS}}") from error


async def _read_out(body: AsyncIterator[bytes], opened: AsyncExitStack) -> None:
    """Read what stands behind the last event, so that the connection is kept: a new one for each request costs TTFT.

    In a task of its own: a server that keeps bodies open must not keep users waiting.
    """
    with suppress(TimeoutError, httpx.HTTPError):
        async with opened, asyncio.timeout(REST_S):
            async for _ in body:
                pass


def _object(event: bytes) -> dict[str, Any]:
    try:
        return parse_object(event, repr(event[:DETAIL_CHARS]))
    except ValueError as error:
        raise AskFailed("stream", str(error)) from error


def _usage(told: Mapping[str, Any] | None) -> Usage | None:
    if told is None:
        return None
    details = told.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=_count(told, "prompt_tokens"),
        output_tokens=_count(told, "completion_tokens"),
        cached_tokens=_count(details, "cached_tokens"),
    )


def _count(told: Mapping[str, Any], name: str) -> int | None:
    count = told.get(name)
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
        raise AskFailed("stream", f"{name} of the usage is no count: {count!r:.80}")
    return count


def _timelines(told: Mapping[str, Any] | None) -> tuple[Timeline, ...]:
    return tuple(
        Timeline(
            process=each["process"],
            stamps=tuple(Stamp(Phase(one["phase"]), one["at_s"]) for one in each["stamps"] if one["phase"] in PHASES),
        )
        for each in (told or {}).get("timelines", ())
    )
