"""What the prompts of one request cost together: all of it is charged before any of them runs, or nothing is.

Each prompt is a request of its own, which knows its tokens once it is prepared. Whoever is the last to be pays for all.
One that fails before pays nothing, and nobody waits for it: it ends the others (`several.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bill:
    """One bill of `num` prompts; `charge` takes the tokens of all, or raises what refuses them."""

    def __init__(self, num: int, charge: Callable[[int], None]) -> None:
        self._left = num
        self._charge = charge
        self._tokens = 0
        self._paid = asyncio.Event()

    @property
    def is_paid(self) -> bool:
        """True once all was charged: who does not run gets its part back."""
        return self._paid.is_set()

    async def share(self, tokens: int) -> None:
        """Add a prompt, and wait until all are paid; for the last one raises what `charge` does."""
        self._tokens += tokens
        self._left -= 1
        if not self._left:
            self._charge(self._tokens)
            self._paid.set()
        await self._paid.wait()
