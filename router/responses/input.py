"""The input of a response as the messages of a chat.

Pure; knows JSON values. Items of one turn of the assistant, its reasoning, its words and its calls, are one message;
what no model here could see is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.router.message_pieces import joined

FIELD = "input"
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")

Json = dict[str, Any]


def messages(instructions: str | None, given: Any) -> list[Json]:
    """Return messages of `instructions` and of an `input`, a text or a list of items.

    Raises InvalidRequest or UnsupportedField.
    """
    found: list[Json] = []
    if instructions:
        found.append({"role": "system", "content": [instructions]})
    if isinstance(given, str) and given:
        return joined([*found, {"role": "user", "content": [given]}])
    if not isinstance(given, list) or not given:
        raise InvalidRequest("input is a text that is not empty, or a list of items", field=FIELD)
    turns = _Turns(found)
    for place, item in enumerate(given):
        if not isinstance(item, dict):
            raise InvalidRequest(f"input.{place} is not an object", field=FIELD)
        turns.take(f"input.{place}", item)
    turns.end()
    return joined(found)


class _Turns:
    """Puts items to messages."""

    def __init__(self, found: list[Json]) -> None:
        self._found = found
        self._reasoning: list[str] = []  # of the turn that begins

    def take(self, where: str, item: Mapping[str, Any]) -> None:
        """Add an item."""
        kind = item.get("type")
        match kind:
            case "message" | None:
                self._say(where, item)
            case "reasoning":
                thought = _text(f"{where}.content", item.get("content") or item.get("summary") or "")
                self._reasoning += _piece(thought)
            case "function_call":
                self._call(where, item)
            case "function_call_output":
                output = _text(f"{where}.output", item.get("output"))
                self.end()
                call_id = _word(where, item, "call_id")
                self._found.append({"role": "tool", "content": [output], "tool_call_id": call_id})
            case _:
                raise UnsupportedField(f"{where}: items of type {str(kind)[:50]!r} are not supported", field=FIELD)

    def _say(self, where: str, item: Mapping[str, Any]) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise InvalidRequest(f"{where}.role is one of {', '.join(_ROLES)}", field=FIELD)
        content = _text(f"{where}.content", item.get("content"))
        if role != "assistant":
            self.end()
            self._found.append({"role": role, "content": [content]})
        elif self._goes_on and self._found[-1].get("tool_calls"):  # the answers of its calls are to follow it
            self._found[-1]["content"] += _piece(content)
        else:
            self._begin(content)

    def end(self) -> None:
        """The turn is over: reasoning that nothing followed, of an answer that was cut off, is a message of its own."""
        if self._reasoning:
            self._begin("")

    def _call(self, where: str, item: Mapping[str, Any]) -> None:
        names = ("call_id", "name", "arguments")
        call_id, name, arguments = (_word(where, item, each) for each in names)
        if not self._goes_on:
            self._begin("")
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._found[-1].setdefault("tool_calls", []).append(call)

    @property
    def _goes_on(self) -> bool:
        """True where the last message is of the assistant's turn that goes on."""
        return bool(self._found) and self._found[-1]["role"] == "assistant" and not self._reasoning

    def _begin(self, content: str) -> None:
        """Begin a message of the assistant's with the reasoning that came before it."""
        reasoning, self._reasoning = self._reasoning, []
        message = {"role": "assistant", "content": _piece(content)}
        self._found.append({**message, "reasoning_content": reasoning} if reasoning else message)


def _piece(text: str) -> list[str]:
    return [text] if text else []


def _word(where: str, item: Mapping[str, Any], name: str) -> str:
    if not isinstance(item.get(name), str):
        raise InvalidRequest(f"{where}.{name} is a text", field=FIELD)
    return str(item[name])


def _text(where: str, content: Any) -> str:
    """Return a content, a text or a list of parts that are texts, as one text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"{where} is a text, or a list of parts", field=FIELD)
    return "\n".join(_part(f"{where}.{place}", part) for place, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in (*_TEXTS, "refusal"):
        raise UnsupportedField(f"{where}: parts of type {str(kind)[:50]!r} are not supported", field=FIELD)
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}: a part of type {kind} has a text", field=FIELD)
    return text
