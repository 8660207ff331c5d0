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


def check_depth(hf: HFConfig) -> None:
    """Raise ValueError where a config says more layers than any model has, by whichever name its family has."""
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        if hf.get(name) is not None:
            whole(hf, name, most=MAX_LAYERS)


def layers_of(hf: HFConfig) -> int:
    """Return how many layers a config says; raises ValueError where it says no such number."""
    return whole(hf, "num_hidden_layers", most=MAX_LAYERS)
