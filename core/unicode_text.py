"""Texts that UTF-8 can write: a Python string may hold half of a surrogate pair, which is no character."""

from __future__ import annotations

from pagewire.core.errors import InvalidRequest


def require_unicode(text: str, what: str, field: str) -> None:
    """Raise InvalidRequest, which says `what` holds half of a surrogate pair, where `text` does."""
    if not is_unicode(text):
        raise InvalidRequest(f"{what} is not valid Unicode: it holds half of a surrogate pair", field=field)


def is_unicode(text: str) -> bool:
    """Return whether `text` can be written anywhere: JSON may hold half of a surrogate pair, which no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
