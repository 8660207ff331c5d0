"""A Hugging Face `config.json` as it was read, and the refusal of what one of them asks of the native decoder.

Knows no entry's meaning: what an absent one stands for is its family's affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HFConfig = Mapping[str, Any]


class NotNative(ValueError):
    """The native decoder does not compute what the config asks for; the text names it."""
