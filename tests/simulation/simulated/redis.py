"""A Redis that keeps what registration, discovery and the prefix index ask for, speaks RESP, and forgets when told to.

Knows its commands and nothing of what values mean. It may lose everything, or find itself as it was a while ago, as a
replica that was promoted does. Invariant: answers come in the order of commands.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

import hiredis

from simulated.loop import Process
from simulated.network import End, Listener, Network

ADDRESS = "redis:6379"


class RedisDouble:
    """One server."""

    def __init__(self, process: Process, network: Network, draw: Random) -> None:
        self.process = process
        self.num_commands = 0
        self._draw = draw
        self._values: dict[bytes, bytes | dict[bytes, None]] = {}  # sets keep their order
        self._expires_s: dict[bytes, float] = {}
        self._before: Any = None
        network.listen(ADDRESS, Listener(process, self._accept))

    # ------------------------------------------------------------------------------------------------------- its faults

    def flush(self) -> None:
        """Lose everything."""
        self._values, self._expires_s = {}, {}

    def save(self) -> None:
        """Remember what there is now."""
        self._before = copy.deepcopy((self._values, self._expires_s))

    def go_back(self) -> None:
        """Be as it was when it was saved; no-op before."""
        if self._before is not None:
            self._values, self._expires_s = copy.deepcopy(self._before)

    def lie(self) -> None:
        """Have every indexed block be held by whoever holds any."""
        members = [list(value) for key, value in self._values.items() if b":h:" in key and isinstance(value, dict)]
        for key, value in self._values.items():
            if b":h:" in key and isinstance(value, dict):
                value.update(dict.fromkeys(self._draw.choice(members)))

    # ----------------------------------------------------------------------------------------------------- its clients

    def _accept(self, end: End) -> None:
        reader = hiredis.Reader()

        def take(data: bytes) -> None:
            if not data:
                end.send(b"")
                return
            reader.feed(data)
            answers = []
            while (command := reader.gets()) is not False:
                self.num_commands += 1
                answers.append(self._answer(command))
            end.send(b"".join(answers))

        end.on_message = take

    def _answer(self, command: list[bytes]) -> bytes:
        name, *words = command
        handler: Callable[..., bytes] | None = getattr(self, f"_{name.decode().lower()}", None)
        if handler is None:
            return b"-ERR unknown command '%s'\r\n" % name
        return handler(*words)

    def _alive(self, key: bytes) -> None:
        if self._expires_s.get(key, float("inf")) <= self.process.now():
            self._forget(key)

    def _forget(self, key: bytes) -> bool:
        self._expires_s.pop(key, None)
        return self._values.pop(key, None) is not None

    def _members(self, key: bytes) -> dict[bytes, None]:
        self._alive(key)
        value = self._values.get(key, {})
        return value if isinstance(value, dict) else {}

    def _hello(self, version: bytes, *_: bytes) -> bytes:
        return b"%1\r\n" + _bulk(b"proto") + _number(int(version))

    def _client(self, *_: bytes) -> bytes:
        return b"+OK\r\n"

    def _select(self, _number: bytes) -> bytes:
        return b"+OK\r\n"

    def _ping(self) -> bytes:
        return b"+PONG\r\n"

    def _sadd(self, key: bytes, *members: bytes) -> bytes:
        held = self._members(key)
        before = len(held)
        held.update(dict.fromkeys(members))
        self._values[key] = held
        return _number(len(held) - before)

    def _srem(self, key: bytes, *members: bytes) -> bytes:
        held = self._members(key)
        gone = sum(held.pop(member, False) is None for member in members)
        if not held:
            self._forget(key)
        return _number(gone)

    def _srandmember(self, key: bytes, count: bytes) -> bytes:
        return _array(list(self._members(key))[: int(count)])

    def _get(self, key: bytes) -> bytes:
        self._alive(key)
        value = self._values.get(key)
        return _bulk(value if isinstance(value, bytes) else None)

    def _set(self, key: bytes, value: bytes, *options: bytes) -> bytes:
        before = self._get(key)
        self._values[key] = value
        words = [option.upper() for option in options]
        if b"PX" in words:
            self._expires_s[key] = self.process.now() + int(options[words.index(b"PX") + 1]) / 1000
        return before if b"GET" in words else b"+OK\r\n"

    def _del(self, *keys: bytes) -> bytes:
        return _number(sum(self._forget(key) for key in keys))

    def _expire(self, key: bytes, seconds: bytes) -> bytes:
        if key in self._values:
            self._expires_s[key] = self.process.now() + int(seconds)
        return _number(key in self._values)


def _number(number: int) -> bytes:
    return b":%d\r\n" % number


def _bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)


def _array(values: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(values) + b"".join(map(_bulk, values))
