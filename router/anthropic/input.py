"""The messages of a body of /v1/messages, lists of blocks, as those of a chat.

Pure; knows JSON values. What a tool returned stands in a user's message there, and is a message of its own here; turns
of the user's that follow one another are one. What no model here could see is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.router.message_pieces import joined

FIELD = "messages"
_BILLS = re.compile(r"\Ax-anthropic-billing-header:.*\n?")

Json = dict[str, Any]


def messages(system: Any, given: Any) -> list[Json]:
    """Return the messages of a chat; raises InvalidRequest or UnsupportedField."""
    found: list[Json] = []
    if system is not None and (said := _system(system)):
        found.append({"role": "system", "content": [said]})
    if not isinstance(given, list) or not given:
        raise InvalidRequest("messages is a list of messages, one at least", field=FIELD)
    for place, message in enumerate(given):
        where = f"messages.{place}"
        role = message.get("role") if isinstance(message, dict) else None
        if role == "assistant":
            _say(found, _assistant(f"{where}.content", message.get("content")))
        elif role == "user":
            _hear(found, f"{where}.content", message.get("content"))
        elif role == "system":
            found.append({"role": role, "content": [_text(f"{where}.content", message.get("content"))]})
        else:
            raise InvalidRequest(f"{where} is an object whose role is user, assistant or system", field=FIELD)
    return joined(found)


def is_begun(found: Sequence[Mapping[str, Any]]) -> bool:
    """True where the last message is the beginning of the answer."""
    last = found[-1]
    return last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last


def _system(system: Any) -> str:
    """Return a system prompt without what Claude Code tells Anthropic's bills in it: other in each request, it would
    leave prompts no beginning in common.
    """
    blocks = _blocks("system", system, "system", ("text",))
    texts = (_BILLS.sub("", _word(at, block, "text", "system")) for at, block in blocks)
    return "\n".join(filter(None, texts))


def _say(found: list[Json], message: Json) -> None:
    """Add what the model said, to what it said right before where that is the last message."""
    if not found or found[-1]["role"] != "assistant":
        found.append(message)
        return
    for name, said in message.items():
        if name != "role":
            found[-1].setdefault(name, []).extend(said)


def _assistant(where: str, content: Any) -> Json:
    """Return what the model said, in pieces: thinking, words, calls; what is empty is none."""
    thought, words = [], []
    calls: list[Json] = []
    for at, block in _blocks(where, content):
        match block["type"]:
            case "text":
                words.append(_word(at, block, "text"))
            case "thinking":
                thought.append(_word(at, block, "thinking"))
            case "redacted_thinking":  # nobody but who wrote it can read it
                pass
            case "tool_use":
                calls.append(_call(at, block))
            case _:
                raise _unknown(at, block)
    message: Json = {"role": "assistant", "content": _piece(words)}
    if thought:
        message["reasoning_content"] = _piece(thought)
    return {**message, "tool_calls": calls} if calls else message


def _piece(texts: Sequence[str]) -> list[str]:
    return [text] if (text := "\n".join(texts)) else []


def _hear(found: list[Json], where: str, content: Any) -> None:
    """Add what a user's message says, and what tools returned in it, in their order."""
    blocks = _blocks(where, content)
    if not blocks:
        raise InvalidRequest(f"{where} has one block at least", field=FIELD)
    for at, block in blocks:
        match block["type"]:
            case "text":
                said = _word(at, block, "text")
                if found and found[-1]["role"] == "user":
                    found[-1]["content"].append(said)
                else:
                    found.append({"role": "user", "content": [said]})
            case "tool_result":
                content = block.get("content")
                result = "" if content is None else _text(f"{at}.content", content)
                found.append({"role": "tool", "content": [result], "tool_call_id": _word(at, block, "tool_use_id")})
            case _:
                raise _unknown(at, block)


def _call(where: str, block: Json) -> Json:
    given = block.get("input")
    if not isinstance(given, dict):
        raise InvalidRequest(f"{where}.input is an object", field=FIELD)
    function = {"name": _word(where, block, "name"), "arguments": json.dumps(given)}
    return {"id": _word(where, block, "id"), "type": "function", "function": function}


def _text(where: str, content: Any) -> str:
    """Return a content that is text alone."""
    return "\n".join(_word(at, block, "text") for at, block in _blocks(where, content, FIELD, ("text",)))


def _blocks(
    where: str, content: Any, field: str = FIELD, kinds: tuple[str, ...] | None = None
) -> list[tuple[str, Json]]:
    """Return the blocks of a content, of `kinds` alone where these are given, and where each stands; a text is one."""
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} is a text, or a list of blocks", field=field)
    for place, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise InvalidRequest(f"{where}.{place} is a block, an object with a type", field=field)
        if kinds is not None and block["type"] not in kinds:
            raise _unknown(f"{where}.{place}", block, field)
    return [(f"{where}.{place}", block) for place, block in enumerate(content)]


def _word(where: str, block: Mapping[str, Any], name: str, field: str = FIELD) -> str:
    if not isinstance(block.get(name), str):
        raise InvalidRequest(f"{where}.{name} is a text", field=field)
    return str(block[name])


def _unknown(where: str, block: Mapping[str, Any], field: str = FIELD) -> UnsupportedField:
    return UnsupportedField(f"{where}: blocks of type {block['type'][:50]!r} are not supported here", field=field)
