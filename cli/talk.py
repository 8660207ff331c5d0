"""`chat` and `complete`: a running cluster through the SDK, streamed to a terminal or a pipe."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pagewire.cli.progress import say
from pagewire.client import Client, Message, Options, Prompt, Tls
from pagewire.core.errors import Cancelled, PagewireError

PALE, PLAIN = "\x1b[2m", "\x1b[0m"  # to a terminal


def options(model: str, max_tokens: int | None, temperature: float | None) -> Options:
    """Return what was asked for; what was not stays with the server."""
    return Options(model=model, max_tokens=max_tokens, temperature=temperature)


def client_of(
    url: str, *, api_key: str, tls_ca: Path | None, tls_cert: Path | None = None, tls_key: Path | None = None
) -> Client:
    """Return a client of a router. `tls_ca` is whom to believe where it speaks TLS, the rest what to show to it.

    Raises ValueError on a file that cannot be used, or a certificate without its key.
    """
    tls = Tls(ca=tls_ca, cert=tls_cert, key=tls_key)
    return Client(url, api_key=api_key, tls=tls if tls.files else None)


def chat(connected: Client, *, system: str, options: Options) -> int:
    """Answer one line after the other, each with all that was said before it; end of input leaves.

    Return the exit code: 1 where an answer failed and nobody was there to see it. Bytes that are no text are U+FFFD.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    num_failed = 0
    messages = [Message(role="system", content=system)] if system else []
    with connected as client:
        model = client.model_info(options.get("model") or "").model
        if sys.stdin.isatty():
            # Lines can be edited and come back with the arrow keys.
            import readline  # noqa: F401

            say(f"talking to {model}; Ctrl-C cuts an answer off, Ctrl-D leaves")
        for line in _lines():
            messages.append(Message(role="user", content=line))
            answer, is_failed = _answer(client, messages, options)
            num_failed += is_failed
            if answer.content:
                messages.append(answer)
            else:
                # The conversation goes on from before the question that has no answer.
                messages.pop()
    return 1 if num_failed and not sys.stdin.isatty() else 0


def complete(connected: Client, prompt: str, *, as_json: bool, options: Options) -> None:
    """Print the continuation as it comes, or the whole result as one JSON object."""
    with connected as client:
        if as_json:
            print(json.dumps(dataclasses.asdict(client.generate(prompt, **options))))
        else:
            _stream(client, prompt, options)


def _lines() -> Iterator[str]:
    """Yield what is asked, without empty lines, until the end of input; Ctrl-C begins the line anew."""
    while True:
        try:
            line = input("> ") if sys.stdin.isatty() else sys.stdin.readline()
        except EOFError:
            say("")
            return
        except KeyboardInterrupt:
            say("")
            continue
        if not line and not sys.stdin.isatty():
            return
        if line.strip():
            yield line.strip()


def _answer(client: Client, messages: Sequence[Message], options: Options) -> tuple[Message, bool]:
    """Print an answer as it comes and return what came of it before it ended, failed or was cut off; whether it failed.

    Reasoning is shown to people alone, paler, with an empty line behind it.
    """
    said, thought, is_failed = "", "", False
    shows_reasoning = sys.stdout.isatty()
    try:
        with client.stream(messages, **options) as stream, _interrupt_calls(stream.cancel):
            for chunk in stream:
                if chunk.reasoning and shows_reasoning:
                    print(f"{PALE}{chunk.reasoning}{PLAIN}", end="", flush=True)
                thought += chunk.reasoning
                if chunk.text and not said and thought and shows_reasoning:
                    print("\n")
                said += chunk.text
                print(chunk.text, end="", flush=True)
    except (Cancelled, KeyboardInterrupt):
        print(" [cut off]", end="")
    except PagewireError as error:
        say(f"pagewire: {error}")
        is_failed = True
    print(flush=True)
    return Message(role="assistant", content=said, reasoning=thought), is_failed


@contextlib.contextmanager
def _interrupt_calls(function: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C call `function`. A KeyboardInterrupt instead may be raised where a library ignores it.

    It is called in a thread of its own: the main thread may hold a lock that it wants.
    """
    before = signal.signal(signal.SIGINT, lambda _number, _frame: threading.Thread(target=function).start())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stream(client: Client, prompt: Prompt, options: Options) -> None:
    with client.stream(prompt, **options) as stream:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
        print(flush=True)
