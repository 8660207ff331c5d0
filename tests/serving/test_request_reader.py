"""Who is read when more come than are read at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pagewire.core.errors import Cancelled, Overloaded
from pagewire.serving import request_reader
from pagewire.serving.request_reader import RequestReader

BRISK_S = 0.1


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "BRISK_S", BRISK_S)


class Upload:
    """A call whose request comes after a while."""

    def __init__(self, takes_s: float) -> None:
        self._takes_s = takes_s

    async def read(self) -> bytes:
        await asyncio.sleep(self._takes_s)
        return b"here"


async def asked(reader: RequestReader, takes_s: float) -> bytes | None:
    context: Any = Upload(takes_s)
    try:
        return await reader.read(context)
    except Overloaded:
        return None


async def test_one_gives_way_to_one() -> None:
    """And who began first, once it had its time."""
    reader = RequestReader(3, 60)
    slow = [asyncio.create_task(asked(reader, 1e9)) for _ in range(3)]
    await asyncio.sleep(0)
    assert await asked(reader, 0) == b"here"
    assert await slow[0] is None
    assert not any(each.done() for each in slow[1:])
    for each in slow[1:]:
        each.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert await asyncio.gather(*(asked(reader, 0) for _ in range(9))) == [b"here"] * 9


async def test_who_is_slower_than_that_is_read_where_one_comes_too_many() -> None:
    """Others than the one that gives way are read to their end."""
    reader = RequestReader(4, 60)
    found = await asyncio.gather(*(asked(reader, 3 * BRISK_S) for _ in range(5)))
    assert found.count(b"here") == 4


async def test_nobody_waits_for_ever() -> None:
    reader = RequestReader(1, 3 * BRISK_S)
    with pytest.raises(Cancelled, match="had not come after"):
        await asked(reader, 1e9)
