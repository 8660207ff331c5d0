"""What rank 0 tells the others of one pass through the layers, as a value and as bytes.

Fixed schema: a head of four numbers, then arrays of signed 32-bit numbers, whose sizes follow from it. Knows no
tensors.
Invariant: what is read back has as many rows as its lengths say, so that all ranks compute tensors of one shape.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass

from pagewire.engine.block import table_of
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.step import Grant, Step

_HEAD = struct.Struct("<?III")  # on the stage, S, M, T
_ITEM = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPass:
    """S sequences, their T tokens one behind the other, and M blocks in the table of each.

    A table has -1 where blocks left a window and were given back. `adapters` are the numbers of the sequences', 0 for
    none. `on_stage` is a rehearsal: it is computed against memory of the rank's own in place of the pool.
    """

    query_lens: tuple[int, ...]  # S, each >= 1
    kv_lens: tuple[int, ...]  # S
    adapters: tuple[int, ...]  # S
    block_table: tuple[tuple[int, ...], ...]  # [S, M]
    tokens: tuple[int, ...]  # T
    on_stage: bool = False

    def step(self) -> Step:
        """Return the step to compute; nothing is drawn."""
        grants, first = [], 0
        for number, (length, end, adapter, table) in enumerate(
            zip(self.query_lens, self.kv_lens, self.adapters, self.block_table, strict=True)
        ):
            tokens = self.tokens[first : first + length]
            grants.append(
                Grant(
                    request_id=str(number), tokens=tokens, start=end - length, block_ids=table_of(table), draw=None,
                    adapter=adapter,
                )
            )  # fmt: skip
            first += length
        return Step(grants=tuple(grants))

    def to_bytes(self) -> bytes:
        """Return it as bytes."""
        width = len(self.block_table[0]) if self.block_table else 0
        table = (each for row in self.block_table for each in row)
        numbers = [*self.query_lens, *self.kv_lens, *self.adapters, *table, *self.tokens]
        head = _HEAD.pack(self.on_stage, len(self.query_lens), width, len(self.tokens))
        return head + _little(array("i", numbers)).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> ModelPass:
        """Return what `to_bytes` was given; raises RankLost on anything else."""
        if len(data) < _HEAD.size:
            raise RankLost(f"a pass of {len(data)} bytes")
        on_stage, count, width, num_tokens = _HEAD.unpack_from(data)
        if len(data) != _HEAD.size + _ITEM * (3 * count + count * width + num_tokens):
            raise RankLost(f"a pass of {len(data)} bytes for {count} sequences and {num_tokens} tokens")
        numbers = array("i")
        numbers.frombytes(data[_HEAD.size :])
        found = _little(numbers).tolist()
        query_lens, kv_lens, adapters = (tuple(found[each * count : (each + 1) * count]) for each in range(3))
        table = found[3 * count : (3 + width) * count]
        is_whole = sum(query_lens) == num_tokens and all(
            0 < length <= end for length, end in zip(query_lens, kv_lens, strict=True)
        )
        if not count or not width or not is_whole:
            raise RankLost("a pass whose lengths are not those of its tokens")
        return cls(
            query_lens=query_lens,
            kv_lens=kv_lens,
            adapters=adapters,
            block_table=tuple(tuple(table[row * width : (row + 1) * width]) for row in range(count)),
            tokens=tuple(found[(3 + width) * count :]),
            on_stage=on_stage,
        )


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
