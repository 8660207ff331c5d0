"""What is written of what was asked, without what only its asker may know. Pure."""

from __future__ import annotations

import re

_USER = re.compile(r"(://)[^/?#\s\"']*@")


def bare(text: str) -> str:
    """Return a text without the names and passwords that URLs in it hold."""
    return _USER.sub(r"\1...@", text)
