"""`chat` and `complete`: a running cluster through the SDK, streamed to a terminal or a pipe."""

from __future__ import annotations

import dataclasses
import json
import sys

from pagewire.cli.progress import say
from pagewire.client import Client, Message, Options, Prompt, Result
from pagewire.core.errors import PagewireError


def options(max_tokens: int | None, temperature: float | None) -> Options:
    """Return what was asked for; what was not stays with the server."""
    return Options(max_tokens=max_tokens, temperature=temperature)


def chat(url: str, *, system: str, options: Options) -> None:
    """Answer one line after the other, each with all that was said before it."""
    messages = [Message(role="system", content=system)] if system else []
    with Client(url) as client:
        if sys.stdin.isatty():
            say(f"talking to {client.model_info().model}; an empty line leaves")
        while line := _ask():
            messages.append(Message(role="user", content=line))
            try:
                answer = _stream(client, messages, options)
            except PagewireError as error:
                # The conversation goes on from before the question that failed.
                messages.pop()
                say(f"pagewire: {error}")
                continue
            messages.append(Message(role="assistant", content=answer.text))


def complete(url: str, prompt: str, *, as_json: bool, options: Options) -> None:
    """Print the continuation as it comes, or the whole result as one JSON object."""
    with Client(url) as client:
        if as_json:
            print(json.dumps(dataclasses.asdict(client.generate(prompt, **options))))
        else:
            _stream(client, prompt, options)


def _ask() -> str:
    if sys.stdin.isatty():
        print("> ", end="", flush=True, file=sys.stderr)
    return sys.stdin.readline().strip()


def _stream(client: Client, prompt: Prompt, options: Options) -> Result:
    with client.stream(prompt, **options) as stream:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
        print(flush=True)
        return stream.result
