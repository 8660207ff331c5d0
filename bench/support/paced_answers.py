"""Made-up answers at a set pace, for servers that stand behind a router: one token for each running request and step.

Knows moments and tokens; nothing of how they travel. A request is known by its number, which travels as its seed. The
clock is CLOCK_MONOTONIC, which all processes of a machine share: what a server stamps here and a client reads there
may be subtracted. Invariant: of each request, stamps are its arrival and then one for each token, in order; all tokens
of a step have that step's, taken before anything of it is made or sent. So it does not matter to what a token took from
there whether a server sends a step at once and its router takes it apart, or sends each token by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import tokenizers
import uvloop

WORDS = " time and tide wait for no one while the old mill by the river still turns its wheel in the morning light"


def token_ids(model: Path) -> list[int]:
    """Return the tokens that every answer repeats."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(WORDS, add_special_tokens=False).ids
    return ids


def token_texts(model: Path) -> list[str]:
    """Return the text of each of them."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    return [tokenizer.decode([token]) for token in token_ids(model)]


class Server(Protocol):
    """What answers at a pace."""

    async def serve(self) -> None:
        """Serve until cancelled."""
        ...


def serve(description: str | None, make: Callable[[argparse.Namespace], Server], *flags: str) -> None:
    """Read `--model`, `--step-ms` and more `flags` that are needed, and serve until interrupted."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    for flag in flags:
        parser.add_argument(flag, required=True)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(make(parser.parse_args()).serve())


@dataclass(slots=True)
class Paced:
    """One request: how many tokens it gets, and when it came and each of them went."""

    number: int
    length: int
    sent: int = 0
    stamps_s: list[float] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """True once its last token went."""
        return self.sent >= self.length


class PacedAnswers:
    """The running requests, stepped every `step_s` seconds: the first step begins when the first request comes."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._running: list[Paced] = []
        self._stamps: dict[int, list[float]] = {}
        self._filled = asyncio.Event()

    def begin(self, number: int, length: int) -> Paced:
        """Take a request that has just arrived."""
        request = Paced(number, length, stamps_s=[time.monotonic()])
        self._stamps[number] = request.stamps_s
        self._running.append(request)
        self._filled.set()
        return request

    def drop(self, request: Paced) -> None:
        """Let a request end without its tokens."""
        if request in self._running:
            self._running.remove(request)

    async def run(self, emit: Callable[[Sequence[Paced]], None]) -> None:
        """Call `emit` each step with the requests that get their token `sent` now, until cancelled."""
        while True:
            await self._filled.wait()
            next_s = time.monotonic() + self._step_s
            while self._running:
                await asyncio.sleep(next_s - time.monotonic())
                next_s = max(next_s + self._step_s, time.monotonic())
                batch = list(self._running)
                now_s = time.monotonic()
                for request in batch:
                    request.stamps_s.append(now_s)
                emit(batch)
                for request in batch:
                    request.sent += 1
                self._running = [request for request in self._running if not request.is_over]
            self._filled.clear()

    def announce(self, **addresses: str) -> None:
        """Say where we listen in one JSON line; from then on answer each line of stdin with one of stamps."""
        print(json.dumps({"pid": os.getpid(), **addresses}), flush=True)
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._answer)

    def _answer(self) -> None:
        """Tell the stamps since the last line, by number."""
        if not sys.stdin.readline():
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            return
        print(json.dumps(self._stamps), flush=True)
        self._stamps = {}
