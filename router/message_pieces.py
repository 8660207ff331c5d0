"""Messages of a chat while they are put together: what each of them says is a list, to which what comes is added.

Pure. Invariant: the work is linear in what is said, into however many pieces a caller cuts it: a text that grew by a
piece at a time would be copied for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]

_TEXTS = ("content", "reasoning_content")


def joined(messages: Iterable[Json]) -> list[Json]:
    """Return the messages with their texts in one, each piece on a line of its own."""
    return [
        {name: "\n".join(said) if name in _TEXTS else said for name, said in message.items()} for message in messages
    ]
