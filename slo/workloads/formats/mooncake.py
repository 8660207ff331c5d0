"""Mooncake's JSONL: one request a line, its prompt as ids of 512-token blocks; equal ids are a shared prefix.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}

`timestamp` is in milliseconds. As AIPerf has it, a line with `session_id` and `delay` (milliseconds after the last
answer) is a later turn of its session and adds to its conversation, and `text_input` may stand for `hash_ids`. An
answer of no tokens is asked for one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pagewire.core.documents import parse_object
from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.formats.fields import Fields, TraceError
from pagewire.slo.workloads.formats.recording import recorded
from pagewire.slo.workloads.workload import PIECE_TOKENS, Workload, num_pieces


def read_mooncake(path: Path, *, seed: int = 0) -> Workload:
    """Return a recording; raises TraceError, which names line and field, and OSError."""
    arrivals: list[Arrival] = []
    place: dict[str, int] = {}  # of a session in `arrivals`
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            fields = _fields(line, path.name, number)
            session = fields.text("session_id") if "session_id" in fields else ""
            if "delay" in fields:
                if session not in place:
                    raise fields.wrong("session_id", f"no line before begins the session {session!r}")
                begun, turn = arrivals[place[session]], _turn(fields)
                if bool(turn.text) != bool(begun.turns[0].text):
                    raise fields.wrong("text_input", f"{session!r} has lines with it and lines without")
                arrivals[place[session]] = dataclasses.replace(begun, turns=(*begun.turns, turn))
                continue
            if session:
                place[session] = len(arrivals)
            arrivals.append(Arrival(at_s=fields.real("timestamp") / 1e3, turns=(_turn(fields),), session=session))
    return recorded(path, arrivals, seed)


def _fields(line: bytes, file: str, number: int) -> Fields:
    try:
        return Fields(parse_object(line, "it"), file, number)
    except ValueError as error:
        raise TraceError(file, number, "", str(error)) from error


def _turn(fields: Fields) -> Turn:
    think_s = fields.real("delay") / 1e3 if "delay" in fields else 0.0
    input_tokens = fields.whole("input_length", 1)
    output_tokens = max(1, fields.whole("output_length", 0))
    if "text_input" in fields:
        text = fields.text("text_input")
        return Turn(input_tokens=input_tokens, output_tokens=output_tokens, text=text, think_s=think_s)
    pieces = fields.ids("hash_ids")
    wanted = num_pieces(input_tokens, PIECE_TOKENS)
    if len(pieces) != wanted:
        raise fields.wrong("hash_ids", f"{len(pieces)} ids, where {input_tokens} tokens have {wanted} blocks")
    return Turn(input_tokens=input_tokens, output_tokens=output_tokens, pieces=pieces, think_s=think_s)


def write_mooncake(workload: Workload, path: Path) -> None:
    """Write a workload as Mooncake's JSONL; its ids are counted anew, and a block that is not full has its own.

    Raises ValueError where 512 tokens are no whole number of its pieces, OSError where it cannot be written.
    """
    if PIECE_TOKENS % workload.piece_tokens and any(each.turns[0].pieces for each in workload):
        raise ValueError(
            f"{workload.name} has pieces of {workload.piece_tokens} tokens, which do not fill blocks of 512"
        )
    with path.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in _rows(workload, _BlockIds(workload.piece_tokens)))


class _BlockIds:
    """Numbers blocks of 512 tokens by what is in them."""

    def __init__(self, piece_tokens: int) -> None:
        self._piece_tokens = piece_tokens
        self._known: dict[tuple[int, ...], int] = {}

    def of(self, turn: Turn) -> list[int]:
        per_block = PIECE_TOKENS // self._piece_tokens
        ids = []
        for begin in range(0, len(turn.pieces), per_block):
            num_tokens = min(PIECE_TOKENS, turn.input_tokens - begin * self._piece_tokens)
            what = (num_tokens, *turn.pieces[begin : begin + per_block])
            ids.append(self._known.setdefault(what, len(self._known)))
        return ids


def _rows(workload: Iterable[Arrival], block_ids: _BlockIds) -> Iterator[dict[str, Any]]:
    for number, arrival in enumerate(workload):
        session = arrival.session or (f"session-{number}" if len(arrival.turns) > 1 else "")
        for index, turn in enumerate(arrival.turns):
            when = {"delay": round(1e3 * turn.think_s)} if index else {"timestamp": round(1e3 * arrival.at_s)}
            what = {"text_input": turn.text} if turn.text else {"hash_ids": block_ids.of(turn)}
            lengths = {"input_length": turn.input_tokens, "output_length": turn.output_tokens}
            yield {**when, **lengths, **what, **({"session_id": session} if session else {})}
