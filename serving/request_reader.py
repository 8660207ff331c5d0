"""Reads the requests of gRPC calls, a bounded number at once.

What gRPC takes of a message that is read it keeps, and says nothing of it until all is here: so it is the number of
those that are bounded, and who comes beyond waits in line. Most come at once. Invariants: no more than `most` are being
read; as many as wait give way once they have had `BRISK_S`, those first that have been read longest, so that the line
goes on whoever sends how slowly, and nobody gives way to nobody.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from pagewire.core.errors import Cancelled, InvalidRequest, Overloaded

BRISK_S = 3.0


class RequestReader:
    """Reads `most` at once, each for `upload_s` at most."""

    def __init__(self, most: int, upload_s: float) -> None:
        self._room = asyncio.Semaphore(most)
        self._upload_s = upload_s
        self._num_waiting = 0
        self._reading: dict[asyncio.Timeout, float] = {}  # and when each began

    async def read(self, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        """Return the bytes of a call's request.

        Raises Cancelled where they do not come in time, Overloaded where others wait or go before for too long,
        InvalidRequest where none come.
        """
        if self._room.locked():
            self._num_waiting += 1
            self._hurry()
            try:
                async with asyncio.timeout(self._upload_s):
                    await self._room.acquire()
            except TimeoutError as error:
                raise Overloaded("too many requests are on their way to be read", retry_after_s=1.0) from error
            finally:
                self._num_waiting -= 1
        else:
            await self._room.acquire()
        try:
            return await self._read(context)
        finally:
            self._room.release()

    async def _read(self, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        began_s = asyncio.get_running_loop().time()
        patience = asyncio.timeout(self._upload_s)
        try:
            async with patience:
                self._reading[patience] = began_s
                self._hurry()
                data: Any = await context.read()
        except TimeoutError as error:
            if (patience.when() or 0.0) < began_s + self._upload_s:
                raise Overloaded("the request comes slowly, and others wait to be read", retry_after_s=1.0) from error
            raise Cancelled(f"the request had not come after {self._upload_s:g} s") from error
        finally:
            del self._reading[patience]
        if data is grpc.aio.EOF:
            raise InvalidRequest("the call came without its request", field="body")
        return bytes(data)

    def _hurry(self) -> None:
        """Have as many give way as wait: who began first, of those that do not yet."""
        there = [each for each in self._reading.items() if not each[0].expired()]
        for patience, began_s in there[: self._num_waiting]:
            patience.reschedule(min(patience.when() or 0.0, began_s + BRISK_S))
