"""Which family an architecture belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagewire.engine.model import llama, qwen2, qwen3
from pagewire.engine.model.decoder_config import DecoderConfig, HFConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a family's config is read, and which of its tensors (regular expressions) may be there and are ignored."""

    architectures: tuple[str, ...]
    decoder_config: Callable[[HFConfig], DecoderConfig]
    derived: tuple[str, ...]


FAMILIES = tuple(
    Family(architectures=m.ARCHITECTURES, decoder_config=m.decoder_config, derived=m.DERIVED)
    for m in (llama, qwen2, qwen3)
)


def family_of(hf: HFConfig) -> Family:
    """Return the family of a config; raises ValueError naming the architecture and the known ones."""
    names = list(hf.get("architectures") or [])
    for family in FAMILIES:
        if len(names) == 1 and names[0] in family.architectures:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise ValueError(f"architecture {' '.join(names) or '(none named)'} is not supported; the known ones are {known}")
