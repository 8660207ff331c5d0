"""The tokens that an id of a piece stands for, drawn from it and a seed alone: equal ids share a prefix. Pure."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from pagewire.slo.workloads.arrival import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Token ids that prompts are made of: `low` to `high - 1`, ordinary ones of the model that is asked."""

    low: int = 100
    high: int = 30_000

    def __post_init__(self) -> None:
        """Refuse an empty range with ValueError."""
        if not 0 <= self.low < self.high:
            raise ValueError(f"token ids from {self.low} to below {self.high} are none")


def tokens_of_piece(piece: int, num_tokens: int, *, seed: int, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the first `num_tokens` tokens of a piece: those of a shorter cut begin those of a longer one."""
    digest = hashlib.shake_128(f"{seed}/{piece}".encode()).digest(4 * num_tokens)
    span = vocabulary.high - vocabulary.low
    return tuple(vocabulary.low + drawn % span for drawn in struct.unpack(f"<{num_tokens}I", digest))


def tokens_of(turn: Turn, piece_tokens: int, *, seed: int, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the `input_tokens` tokens that a turn of pieces adds to its conversation."""
    tokens: list[int] = []
    for piece in turn.pieces:
        length = min(piece_tokens, turn.input_tokens - len(tokens))
        tokens += tokens_of_piece(piece, length, seed=seed, vocabulary=vocabulary)
    return tuple(tokens)


def parse_vocabulary(text: str) -> Vocabulary:
    """Return the token ids that "100-29999" names, both ends included; raises ValueError on anything else."""
    low, dash, high = text.partition("-")
    try:
        return Vocabulary(low=int(low), high=int(high if dash else low) + 1)
    except ValueError as error:
        raise ValueError(f'{text!r} is no range of token ids such as "100-29999"') from error
