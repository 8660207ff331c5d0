"""A router of ours, asked over gRPC through the SDK. Knows no retry: a request that fails is a figure of the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Self

from pagewire.client import AsyncClient, Message, Options, RetryPolicy, Timeout, Tls
from pagewire.client import Prompt as ClientPrompt
from pagewire.core.errors import PagewireError
from pagewire.slo.load.ask import Ask, AskFailed, Chat, Part, Usage

ONE_ATTEMPT = RetryPolicy(max_attempts=1, resumes=False)
DAY_S = 86_400.0  # the player has a timeout of its own


class GrpcTarget:
    """The router at `url` (HOST:PORT); `now` is the player's clock. Use it in an `async with` block."""

    def __init__(
        self, url: str, *, now: Callable[[], float], model: str = "", api_key: str = "", tls: Tls | None = None
    ) -> None:
        self.model = model
        self._now = now
        self._client = AsyncClient(url, api_key=api_key, tls=tls, timeout=Timeout(total_s=DAY_S), retry=ONE_ATTEMPT)

    async def __aenter__(self) -> Self:
        """Ask which model is served; raises PagewireError where nobody says."""
        try:
            self.model = (await self._client.model_info(self.model)).model
        except PagewireError:
            await self._client.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self._client.close()

    def call(self, ask: Ask) -> AsyncGenerator[Part, None]:
        """Return the answer as it comes. Iterating raises AskFailed."""
        prompt: ClientPrompt
        if isinstance(ask.prompt, Chat):
            prompt = [Message(role=role, content=text) for role, text in ask.prompt.messages]
        else:
            prompt = ask.prompt
        options = Options(
            model=ask.model or self.model,
            max_tokens=ask.max_tokens,
            temperature=0.0,
            ignore_eos=True,
            priority=ask.priority,
            request_id=ask.request_id,
        )
        return self._parts(prompt, options)

    async def _parts(self, prompt: ClientPrompt, options: Options) -> AsyncGenerator[Part, None]:
        try:
            async with self._client.stream(prompt, **options) as stream:
                async for chunk in stream:
                    at_s = self._now()
                    ids = chunk.token_ids
                    yield Part(at_s=at_s, has_token=bool(ids), text=chunk.text, token_ids=ids)
                used, timelines = stream.result.usage, stream.result.timelines
        except PagewireError as error:
            raise AskFailed(error.cause, error.message) from error
        usage = Usage(
            prompt_tokens=used.prompt_tokens, output_tokens=used.completion_tokens, cached_tokens=used.cached_tokens
        )
        yield Part(at_s=self._now(), usage=usage, timelines=timelines)
