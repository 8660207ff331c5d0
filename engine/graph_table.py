"""The block table that captured steps read, which stays on the device, and the memory that fills it and their inputs.

Row r holds the blocks of whoever sits there, and only what changed is sent: a block in as many steps as it has slots.
Knows no graph. Invariant: nobody sits in the last row.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch

from pagewire.engine.block import table_of
from pagewire.engine.packed_batch import host_memory, lines
from pagewire.engine.step import Grant


class GraphTable:
    """The table of `num_rows` rows of `width` blocks, and one more; inputs are of up to `most_inputs` numbers."""

    def __init__(self, num_rows: int, width: int, most_inputs: int, device: torch.device) -> None:
        self.blocks = torch.zeros(num_rows + 1, width, dtype=torch.int64, device=device)
        self._width = width
        self._most_edits = lines(num_rows + width)  # a row anew, and a block for each of the others
        self.memory = torch.zeros(most_inputs + 2 * self._most_edits, dtype=torch.int64, device=device)
        self._known: list[array[int]] = [table_of()] * num_rows

    def send(self, grants: Sequence[Grant], size: int, write: Callable[[torch.Tensor], None]) -> None:
        """Fill the first `size` numbers of the memory, which `write` writes on the host, and the rows of these grants.

        Waits for nothing.
        """
        edits, most, device = self._edits(grants), self._most_edits, self.memory.device
        while len(edits) > most:  # many new sequences at once
            part, edits = edits[:most], edits[most:]
            self._upload(host_memory(2 * most, device), part, 0)
        host = host_memory(size + 2 * len(edits), device)
        write(host[:size])
        self._upload(host, edits, size)

    def forget(self) -> None:
        """Have every row sent anew: something failed, and what the device holds is not known."""
        self._known = [table_of()] * len(self._known)

    def _edits(self, grants: Sequence[Grant]) -> list[tuple[int, int]]:
        """Return (place, block) of what the rows of these grants do not hold yet; from now on they are to."""
        found: list[tuple[int, int]] = []
        for row, grant in enumerate(grants):
            known, wanted, first = self._known[row], grant.block_ids, row * self._width
            if wanted is known or wanted == known:  # the same one, step after step, until a block is added
                continue
            kept = len(known)
            if wanted[:kept] == known:  # as a rule a block is added
                found += ((first + kept + place, block) for place, block in enumerate(wanted[kept:]))
            else:
                pairs = enumerate(zip_longest(wanted, known[: len(wanted)]))
                found += ((first + place, block) for place, (block, before) in pairs if block != before)
            self._known[row] = wanted
        return found

    def _upload(self, host: torch.Tensor, edits: Sequence[tuple[int, int]], size: int) -> None:
        """Copy `[size + 2 E]` numbers of the host over, whose last are what is filled in here: the edits."""
        count = len(edits)
        if count:
            host[size:].view(2, count).copy_(torch.tensor(edits, dtype=torch.int64).T)
        self.memory[: len(host)].copy_(host, non_blocking=True)
        if count:
            places, blocks = self.memory[size : size + 2 * count].view(2, count)
            self.blocks.view(-1).scatter_(0, places, blocks)
