"""A step's tensors on a device: made on the host in one pinned piece of memory, brought over in one copy.

Knows what `Batch` holds; nothing of what computes it. Invariants: nothing waits for the device, and every tensor begins
on a line of 128 bytes, so that no kernel is compiled anew for how one happens to lie.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from pagewire.engine.batch import Batch, adapted_rows, draws_of, scorings_of, spilled_of
from pagewire.engine.batch_numbers import BatchNumbers
from pagewire.engine.step import Step
from pagewire.kernels.ragged import DeviceLengths, Ragged

LINE = 16  # numbers of 8 bytes

BatchOf = Callable[[Step, int, torch.device, torch.Tensor | None], Batch]
"""Makes the batch of a step as `pack` does."""


def lines(count: int) -> int:
    """Return `count` numbers, rounded up to whole lines."""
    return -(-count // LINE) * LINE


def host_memory(count: int, device: torch.device) -> torch.Tensor:
    """Return `[count]` int64 of the host that is copied to a device without waiting.

    torch gives pinned memory to nobody else before what reads it on the device is done.
    """
    return torch.empty(count, dtype=torch.int64, pin_memory=device.type == "cuda")


def batch_maker(device: torch.device) -> BatchOf:
    """Return what makes batches for a device: one copy to a GPU, tensor by tensor on a CPU, where none is a copy."""
    return Batch.of if device.type == "cpu" else pack


def pack(step: Step, block_size: int, device: torch.device, host: torch.Tensor | None = None) -> Batch:
    """Return the batch of a step, as `Batch.of` does; what is spilled lies in `host` `[slots, L, 2, Hk, B, D]`."""
    grants = step.grants
    made = BatchNumbers.of(grants, block_size)
    num_sequences = len(grants)
    parts = (made.token_ids, made.positions, made.slots, made.logit_rows, made.block_table.reshape(-1))
    counts = (*map(len, parts), num_sequences + 1, num_sequences)
    ends = np.cumsum([lines(count) for count in counts]).tolist()
    memory = host_memory(ends[-1], device)
    numbers = memory.numpy()
    *rooms, query_starts, lengths = (
        numbers[end - lines(count) :][:count] for count, end in zip(counts, ends, strict=True)
    )
    for room, part in zip(rooms, parts, strict=True):
        room[:] = part
    query_starts.view(np.int32)[: num_sequences + 1] = np.cumsum((0, *made.query_lens))
    lengths.view(np.int32)[:num_sequences] = made.kv_lens
    there = memory.to(device, non_blocking=True)
    views = [there[end - lines(count) :][:count] for count, end in zip(counts, ends, strict=True)]
    ragged = Ragged(
        query_lens=made.query_lens,
        kv_lens=made.kv_lens,
        block_table=views[4].view(made.block_table.shape),
        block_size=block_size,
        on_device=DeviceLengths(
            query_starts=views[5].view(torch.int32)[: num_sequences + 1],
            kv_lens=views[6].view(torch.int32)[:num_sequences],
        ),
        spilled=spilled_of(grants, host),
    )
    return Batch(
        token_ids=views[0],
        positions=views[1],
        slots=views[2],
        ragged=ragged,
        logit_rows=views[3],
        draws=draws_of(grants),
        scorings=scorings_of(grants),
        adapted=adapted_rows(grants),
        numbers=made,
    )
