"""What the prompts of one request cost together, and whether they are let in: all of them or none.

Each prompt is a request of its own, which knows its tokens once it is prepared. Whoever is the last to be pays for all,
and then finds a pod, or is refused, for all: the others run behind it, and wait for room as long as it takes. One that
fails before pays nothing, and nobody waits for it: it ends the others (`several.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bill:
    """One bill of `num` prompts; `charge` takes the tokens of all, or raises what refuses them."""

    def __init__(self, num: int, charge: Callable[[int], None]) -> None:
        self._num = self._left = num
        self._charge = charge
        self._tokens = 0
        self._let_in = asyncio.Event()
        self.is_paid = False  # once all was charged, who does not run gets its part back

    @property
    def lets_in(self) -> bool:
        """True where a prompt has a pod and others do not have theirs yet, or not any more: they are not refused."""
        return self._num > 1 and self._let_in.is_set()

    def placed(self) -> None:
        """A prompt has a pod."""
        self._let_in.set()

    async def share(self, tokens: int) -> None:
        """Add a prompt; the last one pays, and raises what `charge` does, the others wait until a prompt is placed."""
        self._tokens += tokens
        self._left -= 1
        if not self._left:
            self._charge(self._tokens)
            self.is_paid = True
        else:
            await self._let_in.wait()
