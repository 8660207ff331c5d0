"""Texts that UTF-8 can write, and those that it cannot."""

from __future__ import annotations

import pytest

from pagewire.core.errors import InvalidRequest
from pagewire.core.unicode_text import require_unicode


def test_half_of_a_surrogate_pair_is_refused_by_name() -> None:
    require_unicode("aé\U0001f600", "a stop string", "stop")
    for text in ("a\ud83d", "\ude00"):
        with pytest.raises(InvalidRequest, match=r"^a stop string is not valid Unicode") as caught:
            require_unicode(text, "a stop string", "stop")
        assert caught.value.field == "stop"
