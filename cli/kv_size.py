"""`pagewire kv-size`: what a memory holds of a model's KV, from its config.json alone; no weights and no torch.

Except for the dtype `auto`, which is the engine's to choose. Where an engine is installed it says too whether it would
take the model, and to how many positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewire.core.document_files import read_object
from pagewire.core.kv_layout import SCALE_BYTES
from pagewire.core.kv_sizing import KVSizing, layout_of, shard
from pagewire.core.positions import own_positions
from pagewire.core.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Whether and how far an engine serves a model: `refusal` is why it does not, or None.

    `max_positions` is the longest sequence, None where that is not known.
    """

    max_positions: int | None
    refusal: str | None = None


def service(folder: Path) -> Service:
    """Return what an engine here says of a model's config; without one it is what the config says for itself."""
    try:
        from pagewire.engine.model.families import architecture_of
        from pagewire.engine.model_folder import ModelFolder
    except ImportError:
        return Service(max_positions=own_positions(read_object(folder / "config.json")))
    try:
        return Service(max_positions=architecture_of(ModelFolder.open(folder)).max_positions)
    except ValueError as error:
        return Service(max_positions=None, refusal=str(error))


def sizing(folder: Path, *, memory_bytes: int, block_size: int, dtype: str, tensor_parallel: int) -> KVSizing:
    """Return what `memory_bytes` of one rank hold; raises ValueError where config and wishes do not fit.

    `dtype` auto is what an engine on this machine takes for it.
    """
    config = read_object(folder / "config.json")
    layout = layout_of(config, block_size=block_size, dtype=_computed_in() if dtype == "auto" else dtype)
    return KVSizing(layout=shard(layout, tensor_parallel), memory_bytes=memory_bytes)


def _computed_in() -> str:
    try:
        from pagewire.engine.assembly import resolve_dtype
    except ImportError as error:
        raise ValueError(
            f"kv_dtype auto is the engine's choice, and there is no engine here ({error}): name a dtype"
        ) from error
    return resolve_dtype("auto")


def figures(sizing: KVSizing, service: Service, *, concurrency: int, context: int) -> dict[str, Any]:
    """Return everything that there is to say, by name; all of it per rank, sizes in bytes."""
    layout, headroom = sizing.layout, sizing.headroom_blocks(context, concurrency)
    return {
        "num_layers": layout.num_layers,
        "num_kv_heads": layout.num_kv_heads,
        "head_dim": layout.head_dim,
        "dtype": layout.dtype,
        "scale_bytes": SCALE_BYTES.get(layout.dtype, 0),
        "block_size": layout.block_size,
        "token_bytes": layout.token_bytes,
        "block_bytes": layout.block_bytes,
        "memory_bytes": sizing.memory_bytes,
        "blocks": sizing.num_blocks,
        "tokens": sizing.num_tokens,
        "context": context,
        "max_positions": service.max_positions,
        "refusal": service.refusal,
        "sequence_blocks": sizing.sequence_blocks(context),
        "sequence_bytes": sizing.sequence_blocks(context) * layout.block_bytes,
        "sequences": sizing.num_sequences(context),
        "concurrency": concurrency,
        "fits": headroom >= 0,
        "headroom_blocks": headroom,
        "headroom_bytes": headroom * layout.block_bytes,
    }


def table(told: dict[str, Any], tensor_parallel: int) -> list[str]:
    """Return the figures as lines for people."""
    headroom = told["headroom_bytes"]
    spare = f"{format_bytes(abs(headroom))} ({abs(told['headroom_blocks'])} blocks) "
    rows = [
        (
            "KV of a token",
            f"{format_bytes(told['token_bytes'])}: 2 x {told['num_layers']} layers x {told['num_kv_heads']} KV heads"
            f" x {told['head_dim']} x {told['dtype']}" + (", scales included" if told["scale_bytes"] else ""),
        ),
        ("a block", f"{told['block_size']} tokens, {format_bytes(told['block_bytes'])}"),
        ("memory", f"{format_bytes(told['memory_bytes'])}: {told['blocks']} blocks, {told['tokens']} tokens"),
        (
            "a sequence",
            f"{told['context']} tokens: {told['sequence_blocks']} blocks, one of them to spare, "
            f"{format_bytes(told['sequence_bytes'])}",
        ),
        ("such sequences", f"{told['sequences']} fit"),
        (f"{told['concurrency']} of them", f"fit, {spare}free" if told["fits"] else f"do not fit, {spare}missing"),
    ]
    if told["refusal"] is not None:
        rows.append(("the model", f"an engine refuses it: {told['refusal']}"))
    elif told["max_positions"] is not None:
        is_over = told["context"] > told["max_positions"]
        beyond = f": {told['context']} tokens are more than an engine serves" if is_over else ""
        rows.append(("the model", f"{told['max_positions']} positions{beyond}"))
    if tensor_parallel > 1:
        rows.append(("ranks", f"{tensor_parallel}; memory, blocks and bytes are those of each"))
    return [f"{name:<16} {value}" for name, value in rows]
