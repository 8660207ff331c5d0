"""The output of a response while it grows: items of reasoning, of words and of calls, and the events that tell of them.

Pure. Invariants: an item is begun by `response.output_item.added` and ended by `response.output_item.done`, one after
the other; the deltas of an item, joined, are what it holds at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagewire.router.events import Chunk, ScoredToken
from pagewire.text.tools.reader import CallPart

Json = dict[str, Any]
REASONING, MESSAGE, CALL = "reasoning", "message", "function_call"


class OutputItems:
    """Of one response; `name` makes ids of its items. `entries` says how likely tokens were, where that was asked."""

    def __init__(self, name: str, entries: Callable[[Sequence[ScoredToken]], list[Json]]) -> None:
        self.items: list[Json] = []
        self._name = name
        self._entries = entries
        self._open: Json | None = None
        self._unsaid: list[Json] = []  # of tokens whose text is still to come

    def take(self, chunk: Chunk) -> list[Json]:
        """Take new output, and return the events that tell of it."""
        told: list[Json] = []
        if chunk.reasoning:
            told += self._begin(REASONING)
            told.append(self._add(chunk.reasoning, "response.reasoning_text.delta"))
        if chunk.num_reasoning or chunk.calls:
            self._unsaid = []
        if chunk.text or not chunk.calls:
            self._unsaid += self._entries(chunk.logprobs[chunk.num_reasoning :])
        for piece in chunk.said:
            told += self._say(piece) if isinstance(piece, str) else self._call(piece)
        return told

    def finish(self, status: str) -> list[Json]:
        """End the output, whose last item has a `status`; where there is none, with a message that says nothing."""
        told = [] if self.items else self._begin(MESSAGE)
        return told + self.close(status)

    def close(self, status: str = "completed") -> list[Json]:
        """End the item that is open, if one is."""
        if self._open is None:
            return []
        item, self._open = self._open, None
        item["status"] = status
        told: list[Json] = []
        if item["type"] == CALL:
            arguments = {"arguments": item["arguments"], "name": item["name"]}
            told.append(self._event("response.function_call_arguments.done", **arguments))
        else:
            (part,) = item["content"]
            of_text = {name: part[name] for name in ("text", "logprobs") if name in part}
            told.append(self._of_part(f"response.{part['type']}.done", **of_text))
            told.append(self._of_part("response.content_part.done", part=dict(part)))
        return [*told, self._of_item("response.output_item.done", item)]

    def _begin(self, kind: str, **members: Any) -> list[Json]:
        """Begin an item of a kind, unless one is open."""
        if self._open is not None and self._open["type"] == kind:
            return []
        told = self.close()
        prefix = {REASONING: "rs", MESSAGE: "msg", CALL: "fc"}[kind]
        item: Json = {
            "type": kind,
            "id": f"{prefix}_{self._name}_{len(self.items)}",
            "status": "in_progress",
            **members,
        }
        part: Json = {}
        if kind == REASONING:
            item |= {"summary": [], "content": []}
            part = {"type": "reasoning_text", "text": ""}
        elif kind == MESSAGE:
            item |= {"role": "assistant", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.items.append(item)
        self._open = item
        told.append(self._of_item("response.output_item.added", item))
        if part:
            told.append(self._of_part("response.content_part.added", part=dict(part)))
            item["content"] = [part]
        return told

    def _say(self, text: str) -> list[Json]:
        logprobs, self._unsaid = self._unsaid, []
        return [*self._begin(MESSAGE), self._add(text, "response.output_text.delta", logprobs)]

    def _add(self, text: str, kind: str, logprobs: list[Json] | None = None) -> Json:
        assert self._open is not None
        (part,) = self._open["content"]
        part["text"] += text
        if logprobs is None:
            return self._of_part(kind, delta=text)
        part["logprobs"] = [*part["logprobs"], *logprobs]
        return self._of_part(kind, delta=text, logprobs=logprobs)

    def _call(self, part: CallPart) -> list[Json]:
        told: list[Json] = []
        if part.name:
            told += self.close()
            told += self._begin(CALL, call_id=part.id, name=part.name, arguments="")
        if part.arguments:
            assert self._open is not None
            self._open["arguments"] += part.arguments
            told.append(self._event("response.function_call_arguments.delta", delta=part.arguments))
        return told

    def _event(self, kind: str, **members: Any) -> Json:
        """Return an event of the last item."""
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **members}

    def _of_part(self, kind: str, **members: Any) -> Json:
        """Return an event of its one part."""
        return self._event(kind, content_index=0, **members)

    def _of_item(self, kind: str, item: Json) -> Json:
        return {"type": kind, "output_index": len(self.items) - 1, "item": dict(item)}
