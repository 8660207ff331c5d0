"""A step's tensors on a device: made on the host in one pinned piece of memory, brought over in one copy.

Knows what `Batch` holds; nothing of what computes it. Invariants: nothing waits for the device, and every tensor begins
on a line of 128 bytes, so that no kernel is compiled anew for how one happens to lie.
"""

from __future__ import annotations

import numpy as np
import torch

from pagewire.engine.batch import Batch, adapted_rows, logit_rows, spilled_of
from pagewire.engine.step import Step
from pagewire.kernels.ragged import DeviceLengths, Ragged

LINE = 16  # numbers of 8 bytes


def lines(count: int) -> int:
    """Return `count` numbers, rounded up to whole lines."""
    return -(-count // LINE) * LINE


def host_memory(count: int, device: torch.device) -> torch.Tensor:
    """Return `[count]` int64 of the host that is copied to a device without waiting.

    torch gives pinned memory to nobody else before what reads it on the device is done.
    """
    return torch.empty(count, dtype=torch.int64, pin_memory=device.type == "cuda")


def pack(step: Step, block_size: int, device: torch.device, host: torch.Tensor | None = None) -> Batch:
    """Return the batch of a step, as `Batch.of` does; what is spilled lies in `host` `[slots, L, 2, Hk, B, D]`."""
    grants = step.grants
    query_lens = tuple(len(grant.tokens) for grant in grants)
    kv_lens = tuple(grant.start + length for grant, length in zip(grants, query_lens, strict=True))
    num_rows, num_sequences = sum(query_lens), len(grants)
    width = max(len(grant.block_ids) for grant in grants)
    drawn, scored = logit_rows(grants)
    num_logits = len(drawn) + len(scored)
    counts = (num_rows, num_rows, num_rows, num_logits, num_sequences * width, num_sequences + 1, num_sequences)
    ends = np.cumsum([lines(count) for count in counts]).tolist()
    memory = host_memory(ends[-1], device)
    numbers = memory.numpy()
    token_ids, positions, slots, rows, table, query_starts, lengths = (
        numbers[end - lines(count) :][:count] for count, end in zip(counts, ends, strict=True)
    )
    table = table.reshape(num_sequences, width)
    at = 0
    for sequence, grant in enumerate(grants):
        stop = at + query_lens[sequence]
        ids = np.array(grant.block_ids, dtype=np.int64)
        table[sequence, : len(ids)] = ids
        table[sequence, len(ids) :] = ids[-1]  # any valid id will do, nobody looks there
        places = np.arange(grant.start, kv_lens[sequence])
        token_ids[at:stop], positions[at:stop] = grant.tokens, places
        slots[at:stop] = ids[places // block_size] * block_size + places % block_size
        at = stop
    rows[:] = drawn + scored
    query_starts.view(np.int32)[: num_sequences + 1] = np.cumsum((0, *query_lens))
    lengths.view(np.int32)[:num_sequences] = kv_lens
    there = memory.to(device, non_blocking=True)
    views = [there[end - lines(count) :][:count] for count, end in zip(counts, ends, strict=True)]
    ragged = Ragged(
        query_lens=query_lens,
        kv_lens=kv_lens,
        block_table=views[4].view(num_sequences, width),
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
        draws={name: draw for grant in grants for name, draw in grant.draws().items()},
        scorings={grant.request_id: grant.scoring for grant in grants if grant.scoring is not None},
        adapted=adapted_rows(grants),
    )
