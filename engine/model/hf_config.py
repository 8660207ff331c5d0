"""A Hugging Face `config.json` as it was read, and the refusal of what one of them asks of the native decoder.

Knows no entry's meaning: what an absent one stands for is its family's affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagewire.core.documents import whole

HFConfig = Mapping[str, Any]
MAX_LAYERS = 10_000  # more than any model has: what is kept for each is bounded before it is made


class NotNative(ValueError):
    """The native decoder does not compute what the config asks for; the text names it."""


def layers_of(hf: HFConfig) -> int:
    """Return how many layers a config says; raises ValueError where it says no such number."""
    return whole(hf, "num_hidden_layers", most=MAX_LAYERS)
