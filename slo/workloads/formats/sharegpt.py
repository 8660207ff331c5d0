"""ShareGPT's JSON: conversations as texts, without times; each becomes a session that asks turn by turn.

    [{"id": "a", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}]

What stands before an answer is one turn, and the answer's length is how many tokens it asks for; an answer that nothing
asked for, and what stands behind the last answer, is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.formats.fields import Fields, TraceError
from pagewire.slo.workloads.formats.recording import recorded
from pagewire.slo.workloads.workload import Workload

ASKING = ("human", "user", "system")
ANSWERING = ("gpt", "chatgpt", "assistant", "bing", "bard")
CHARS_PER_TOKEN = 4


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has, where no tokenizer is at hand: one for every four characters."""
    return max(1, round(len(text) / CHARS_PER_TOKEN))


def read_sharegpt(path: Path, *, seed: int = 0, think_s: float = 0.0) -> Workload:
    """Return the conversations in their order, all at 0: give them times, or go through them in a closed loop.

    Raises TraceError, which names the line where a conversation begins and the field in it, and OSError.
    """
    arrivals = []
    for value, line in _elements(path):
        fields = _object(value, path.name, line, "")
        turns = tuple(_turns(value, fields, path.name, line, think_s))
        if turns:
            session = str(value["id"]) if "id" in fields else ""
            arrivals.append(Arrival(at_s=0.0, turns=turns, session=session))
    return recorded(path, arrivals, seed)


def _turns(value: dict[str, Any], fields: Fields, file: str, line: int, think_s: float) -> Iterator[Turn]:
    messages = value.get("conversations")
    if not isinstance(messages, list):
        raise fields.wrong("conversations", "not a list")
    asked: list[str] = []
    is_first = True
    for index, message in enumerate(messages):
        where = f"conversations[{index}]"
        part = _object(message, file, line, where)
        who, text = message.get("from"), message.get("value")
        if who not in ASKING + ANSWERING:
            raise part.wrong(f"{where}.from", f"{who!r} is none of {', '.join(ASKING + ANSWERING)}")
        if not isinstance(text, str):
            raise part.wrong(f"{where}.value", f"{text!r} is not a text")
        if who in ASKING:
            asked += [text] if text else []
        elif asked:
            prompt = "\n".join(asked)
            yield Turn(
                input_tokens=estimated_tokens(prompt),
                output_tokens=estimated_tokens(text),
                text=prompt,
                think_s=0.0 if is_first else think_s,
            )
            asked, is_first = [], False


def _object(value: Any, file: str, line: int, field: str) -> Fields:
    if not isinstance(value, dict):
        raise TraceError(file, line, field, "not a JSON object")
    return Fields(value, file, line)


def _elements(path: Path) -> Iterator[tuple[Any, int]]:
    """Yield each element of a JSON list, and the line where it begins: the standard parser tells no lines."""
    text, decoder = _text(path), json.JSONDecoder()
    at, line, counted = _skip(text, 0), 1, 0
    if text[at : at + 1] != "[":
        raise TraceError(path.name, 1, "", "not a JSON list")
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        return
    while True:
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise TraceError(path.name, error.lineno, "", f"not JSON: {error.msg}") from error
        except RecursionError as error:
            raise TraceError(path.name, line, "", "not JSON: nested too deep") from error
        yield value, line
        at = _skip(text, end)
        if text[at : at + 1] == "]":
            return
        if text[at : at + 1] != ",":
            line += text.count("\n", counted, at)
            raise TraceError(path.name, line, "", "not JSON: a conversation is followed by neither , nor ]")
        at = _skip(text, at + 1)


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(path.name, data.count(b"\n", 0, error.start) + 1, "", f"not UTF-8: {error.reason}") from error


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
