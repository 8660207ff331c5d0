"""The numbers of a stream's messages, by which a taker knows one that came twice, and that one is missing.

For carriers whose payload comes beside its message, each once: a message without its own would be given another's.
"""

from __future__ import annotations

from pagewire.core.errors import ContractBroken


class MessageNumbers:
    """Numbers of `num_bits` bits, from 0 on and around: given out at a source, expected at its taker."""

    def __init__(self, num_bits: int) -> None:
        self._mask = (1 << num_bits) - 1
        self._next = 0

    def take(self) -> int:
        """Return that of the next message."""
        number, self._next = self._next, (self._next + 1) & self._mask
        return number

    def came(self, number: int) -> bool:
        """Return whether a message is the next one; False: it came before. Raises ContractBroken past a gap."""
        ahead = (number - self._next) & self._mask
        if ahead > self._mask // 2:
            return False
        if ahead:
            raise ContractBroken(f"{ahead} messages are missing")
        self.take()
        return True
