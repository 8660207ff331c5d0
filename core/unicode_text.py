"""Texts that UTF-8 can write: a Python string may hold half of a surrogate pair, which is no character."""

from __future__ import annotations

from pagewire.core.errors import InvalidRequest


def require_unicode(text: str, what: str, field: str) -> None:
    """Raise InvalidRequest, which says `what` holds half of a surrogate pair, where `text` does."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        said = f"{what} is not valid Unicode: it holds half of a surrogate pair"
        raise InvalidRequest(said, field=field) from error
