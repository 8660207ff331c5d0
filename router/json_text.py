"""Objects that callers wrote as JSON: whole bodies, and texts within them.

Pure. Invariants: every text in what is returned is one that UTF-8 can write. JSON can spell half of a surrogate pair,
which neither a tokenizer nor a message to a pod could take. And nothing is read that holds so many values that reading
it would keep the thread, which everybody's tokens go through, for seconds.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from pagewire.core.errors import InvalidRequest

MAX_VALUES = 1 << 20
MAX_PARTS = 1 << 17  # texts, names, lists and objects: each takes as long as several numbers
MAX_FIELDS = 1024  # of a body

_STRING = re.compile(r'"[^"]*"')  # where no quote is within one
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _NoNumber(Exception):
    """What JSON has no word for, NaN or an infinity, or a number that is too large to be another."""


def _no_number(name: str) -> NoReturn:
    raise _NoNumber(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NoNumber(f"{text[:20]}")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)


def read_body(data: bytes | bytearray) -> dict[str, Any]:
    """Return the object that a body is; raises InvalidRequest, which names `body`, or the field whose text is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: {error.reason} at byte {error.start}", field="body") from error
    body = _object("the body", text, field="body")
    if len(body) > MAX_FIELDS:
        raise InvalidRequest(f"the body has {len(body)} fields, at most {MAX_FIELDS} are taken", field="body")
    if _SURROGATE.search(text):
        for name, value in body.items():
            field = name if _is_encodable(name) else "body"
            if field == "body" or not _is_encodable(value):
                raise _not_unicode(field, field=field)
    return body


def read_object(where: str, text: str, *, field: str) -> dict[str, Any]:
    """Return the object that a text of JSON is; raises InvalidRequest for `field`."""
    value = _object(where, text, field=field)
    if _SURROGATE.search(text) and not _is_encodable(value):
        raise _not_unicode(where, field=field)
    return value


def object_or_empty(text: str) -> dict[str, Any]:
    """Return the object that a text of JSON is, one without members where it is none.

    For what a model wrote: it may be cut off, or wrong.
    """
    try:
        return read_object("it", text, field="")
    except InvalidRequest:
        return {}


def _object(where: str, text: str, *, field: str) -> dict[str, Any]:
    _check_size(where, text, field=field)
    try:
        value = _DECODER.decode(text)
    except _NoNumber as error:
        raise InvalidRequest(f"{where} is not JSON: {error} is no number", field=field) from error
    except RecursionError as error:
        raise InvalidRequest(f"{where} is nested too deeply", field=field) from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"{where} is not JSON: {error}", field=field) from error
    except ValueError as error:  # by a number of thousands of digits
        raise InvalidRequest(f"{where} is not JSON: a number in it is too long", field=field) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is not a JSON object", field=field)
    return value


def _check_size(where: str, text: str, *, field: str) -> None:
    """Refuse what holds too many values, by its marks: those are counted in a hundredth of the time of reading."""
    if len(text) <= MAX_PARTS:
        return
    text = text.replace("\\\\", "").replace('\\"', "")
    num_parts = text.count('"') // 2
    if num_parts <= MAX_PARTS:  # marks within texts are none
        text = _STRING.sub("", text)
        num_parts += text.count("{") + text.count("[")
    for what, count, most in (
        ("texts, names, lists and objects", num_parts, MAX_PARTS),
        ("values", text.count(",") + 1, MAX_VALUES),
    ):
        if count > most:
            raise InvalidRequest(f"{where} holds {count} {what}, at most {most} are taken", field=field)


def _is_encodable(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _not_unicode(where: str, *, field: str) -> InvalidRequest:
    return InvalidRequest(f"{where} is not valid Unicode: it holds half of a surrogate pair", field=field)
