"""The content of a message while it grows: blocks of thinking, of text and of tool use, and the events that tell of
them.

Pure. Invariants: a block is begun by `content_block_start` and ended by `content_block_stop`, one after the other; the
deltas of a block, joined, are what it holds at its end, but for a call whose arguments are no JSON: that holds none.
"""

from __future__ import annotations

from typing import Any

from pagewire.router.events import Chunk
from pagewire.router.json_text import object_or_empty
from pagewire.text.tools.reader import CallPart

Json = dict[str, Any]
THINKING, TEXT, TOOL_USE = "thinking", "text", "tool_use"


class ContentBlocks:
    """Of one message."""

    def __init__(self) -> None:
        self.blocks: list[Json] = []  # the last of them is open

    def take(self, chunk: Chunk) -> list[Json]:
        """Take new output, and return the events that tell of it."""
        told: list[Json] = []
        if chunk.reasoning:
            told += self._begin({"type": THINKING, "thinking": "", "signature": ""})
            told.append(self._add(THINKING, "thinking_delta", chunk.reasoning))
        for piece in chunk.said:
            if isinstance(piece, CallPart):
                told += self._call(piece)
            else:
                told += self._begin({"type": TEXT, "text": ""})
                told.append(self._add(TEXT, "text_delta", piece))
        return told

    def finish(self) -> list[Json]:
        """End the content; where there is none, with a text that says nothing."""
        told = [] if self.blocks else self._begin({"type": TEXT, "text": ""})
        return told + self._close()

    def _begin(self, block: Json) -> list[Json]:
        """Begin a block, unless one of its kind is open; each call is one of its own."""
        if self.blocks and block["type"] == self.blocks[-1]["type"] != TOOL_USE:
            return []
        told = self._close()
        self.blocks.append(block)
        self._arguments = ""  # where it is a call
        return [*told, self._event("content_block_start", content_block=dict(block))]

    def _close(self) -> list[Json]:
        if not self.blocks:
            return []
        if self.blocks[-1]["type"] == TOOL_USE:
            self.blocks[-1]["input"] = object_or_empty(self._arguments)
        return [self._event("content_block_stop")]

    def _add(self, name: str, kind: str, text: str) -> Json:
        self.blocks[-1][name] += text
        return self._event("content_block_delta", delta={"type": kind, name: text})

    def _call(self, part: CallPart) -> list[Json]:
        told: list[Json] = []
        if part.name:
            told += self._begin({"type": TOOL_USE, "id": part.id, "name": part.name, "input": {}})
        if part.arguments:
            self._arguments += part.arguments
            delta = {"type": "input_json_delta", "partial_json": part.arguments}
            told.append(self._event("content_block_delta", delta=delta))
        return told

    def _event(self, kind: str, **members: Any) -> Json:
        """Return an event of the last block."""
        return {"type": kind, "index": len(self.blocks) - 1, **members}
