"""Proof on the loaded weights that a module computes each row of a packed batch by itself, attention aside.

Invariant: what passes may be batched, chunked and cached as the pool does; a state that runs from token to token
(convolution, state-space, linear attention) or a position that is counted instead of read does not pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagewire.engine.model.attention_interface import AttentionCall, attending

NUM_ROWS = 8
# Relative to a row's logits: rounding differs with a row's place in a product, a state or a position changes much more.
TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.1, torch.float16: 0.1}


def check_rows(
    logits_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    vocab_size: int,
    max_positions: int,
    device: torch.device,
) -> None:
    """Raise ValueError unless rows keep their logits when they change places and a neighbour is another.

    `logits_of` takes token ids and positions, `[T]` each, and returns `[T, V]`.
    """
    chance = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (NUM_ROWS,), generator=chance).to(device)
    positions = torch.randint(max_positions, (NUM_ROWS,), generator=chance).to(device)
    order = torch.arange(NUM_ROWS, device=device).roll(3)
    others, elsewhere = tokens[order], positions[order]
    others[0], elsewhere[0] = (others[0] + 1) % vocab_size, max_positions - 1
    with torch.inference_mode(), attending(_own_value):
        before, after = logits_of(tokens, positions)[order][1:], logits_of(others, elsewhere)[1:]
    if bool(before.isnan().any() | after.isnan().any()):
        raise ValueError("its logits are no numbers: it may read values of weights elsewhere than in a product")
    # Centred: softmax does not see what all logits of a row have in common.
    spread, change = (x.float() - x.float().mean(-1, keepdim=True) for x in (before, after - before))
    if not bool((change.norm(dim=-1) <= TOLERANCE[before.dtype] * spread.norm(dim=-1)).all()):
        raise ValueError(
            "its tokens meet elsewhere than in attention, through states beside keys and values (convolution, "
            "state-space, linear attention), or their positions are counted instead of read"
        )


def _own_value(call: AttentionCall) -> torch.Tensor:
    value = call.v.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)  # [T, Hq, Dv]
    return value + 0 * (call.q.sum() + call.k.sum())  # what is no number in them shows
