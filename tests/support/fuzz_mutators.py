"""What makes other bytes of some, by the form that they have: texts, JSON, lines of JSON, fields of a struct, protobuf.

A fuzzer flips bytes by itself; these change what stands there: a value for an absurd one, a key for another, a list for
one of hundreds. The same `Random` makes the same. Knows forms, no parser.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fuzz_messages import mutated, random_message, spoiled
from fuzz_parser import Mutate
from google.protobuf.message import DecodeError, Message

DEEP, LONG, ENDLESS = "@deep@", "@long@", "@endless@"  # what json.dumps cannot say: written afterwards
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 2**31, 2**32, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308, 1e-308,
    float("inf"), float("-inf"), float("nan"), "", " ", "0", "-1", "nan", "\x00", "\ud800", "ä€😀", "x" * 3000,
    "../../etc/passwd", [], {}, [[]], [{}], [None], [""], [0] * 300, {"": 0}, DEEP, LONG, ENDLESS,
)  # fmt: skip
NASTY_TEXTS = (
    "", "0", "-1", "9" * 30, "9" * 400, "9" * 5000, "1e999", "-0", "nan", "inf", "true", "null", '"', "'", '"""', "\\",
    "\\ud800", "\x00", "\n", "\r\n", ",", "=", "#", "[" * 1500, "{" * 1500, "(" * 1500, "a." * 1500, "a={" * 1500,
    "{}", "[]", "0001-01-01", "9999-12-31T23:59:59Z", "é", "😀", "x" * 3000,
)  # fmt: skip
NASTY_BYTES = (b"\xff", b"\xed\xa0\x80", b"\xfe\xff\x00{", b"\xef\xbb\xbf")
_TOKEN = re.compile(r"\w+|[^\w\s]|\s+")


def text(data: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Change a token or a line of a text, TOML, CSV or a grammar say."""
    if random.random() < 0.05:
        place = random.randrange(len(data) + 1)
        return data[:place] + random.choice(NASTY_BYTES) + data[place:]
    said = data.decode(errors="replace")
    for _ in range(random.randrange(1, 4)):
        said = _line_changed(said, random) if random.random() < 0.2 else _token_changed(said, random, words)
    return said.encode(errors="surrogatepass")


def as_json(data: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Change values, keys and places of a JSON text; what is none is a text."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return text(data, random, words)
    if random.random() < 0.1:
        return text(data, random, words)
    for _ in range(random.randrange(1, 4)):
        value = _changed(value, random, words)
    try:
        said = json.dumps(value, ensure_ascii=random.random() < 0.5)
    except (ValueError, RecursionError):  # a number of too many digits, say
        return text(data, random, words)
    nest = random.choice(("[", '{"a":'))
    said = said.replace(f'"{DEEP}"', nest * 1500 + "0" + ("]" if nest == "[" else "}") * 1500)
    said = said.replace(f'"{LONG}"', "9" * 5000).replace(f'"{ENDLESS}"', "1e999")
    return said.encode(errors="surrogatepass")


def json_lines(data: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Change one line of JSON, or the order of lines."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    if random.random() < 0.15:
        lines.insert(at, random.choice(lines))
    lines[at] = as_json(lines[at], random, words)
    return b"\n".join(lines)


def fields(data: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Write an extreme number over some bytes, or cut or lengthen them."""
    made = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        width, form = random.choice(((1, "B"), (2, "<H"), (4, "<I"), (8, "<Q"), (8, "<d")))
        if len(made) < width:
            made += bytes(width)
        at = random.randrange(len(made) - width + 1)
        number: float = random.choice((0.0, -1.0, 1e300, float("nan"), float("inf")))
        if form != "<d":
            number = random.choice((0, 1, 2, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), random.randrange(2**8)))
        struct.pack_into(form, made, at, number)
    if random.random() < 0.2:
        del made[random.randrange(len(made)) :]
    if random.random() < 0.1:
        made += random.randbytes(random.choice((1, 8, 64)))
    return bytes(made)


def messages(kind: type[Message]) -> Mutate:
    """Return what changes the fields of protobufs of `kind`."""

    def change(data: bytes, random: Random, words: Sequence[str]) -> bytes:
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError:
            message = random_message(kind.DESCRIPTOR, random)  # type: ignore[assignment, arg-type]
        for _ in range(random.randrange(1, 4)):
            message = mutated(message, random)  # type: ignore[assignment]
        return spoiled(message.SerializeToString(), random)

    return change


def behind_length(change: Mutate) -> Mutate:
    """Return what changes the body of a frame that is behind its length, of four bytes, and keeps that right."""

    def whole(data: bytes, random: Random, words: Sequence[str]) -> bytes:
        if random.random() < 0.1:
            return fields(data, random, words)
        body = change(data[4:], random, words)
        return struct.pack("<I", len(body)) + body

    return whole


def first_of(*changes: Mutate) -> Mutate:
    """Return what takes one of `changes` each time."""

    def change(data: bytes, random: Random, words: Sequence[str]) -> bytes:
        return random.choice(changes)(data, random, words)

    return change


def _changed(value: Any, random: Random, words: Sequence[str]) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.9:
        return _dict_changed(value, random, words)
    if isinstance(value, list) and value and random.random() < 0.9:
        made, at = list(value), random.randrange(len(value))
        match random.randrange(6):
            case 0:
                del made[at]
            case 1:
                made[at:at] = [made[at]] * random.choice((1, 2, 200))
            case _:
                made[at] = _changed(made[at], random, words)
        return made
    return random.choice(words) if words and random.random() < 0.2 else random.choice(NASTY)


def _dict_changed(value: dict[str, Any], random: Random, words: Sequence[str]) -> dict[str, Any]:
    made, key = dict(value), random.choice(list(value))
    match random.randrange(8):
        case 0:
            del made[key]
        case 1:
            made[random.choice(words) if words else "x"] = random.choice((made[key], random.choice(NASTY)))
        case 2:
            made[random.choice(("", "\x00", "\ud800", "__class__", key + "x"))] = made[key]
        case _:
            made[key] = _changed(made[key], random, words)
    return made


def _line_changed(said: str, random: Random) -> str:
    lines = said.split("\n")
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    change: Callable[[], object] = random.choice(
        (lambda: lines.pop(at), lambda: lines.insert(other, lines[at]), lambda: lines.extend([lines[at]] * 50))
    )
    change()
    return "\n".join(lines)


def _token_changed(said: str, random: Random, words: Sequence[str]) -> str:
    tokens = _TOKEN.findall(said) or [""]
    at = random.randrange(len(tokens))
    new = random.choice(words) if words and random.random() < 0.4 else random.choice(NASTY_TEXTS)
    match random.randrange(6):
        case 0:
            tokens.insert(at, new)
        case 1:
            del tokens[at]
        case 2:
            other = random.randrange(len(tokens))
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case 3:
            tokens[at] *= random.choice((2, 100))
        case _:
            tokens[at] = new
    return "".join(tokens)
