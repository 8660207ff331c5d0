"""The layers of a decoder in native code: one call for all, and nothing allocated between their parts.

The same sums in the same order, rounded in the same places, as `ComposedStack` over the native ops: equal bit for bit
but for rows with an adapter, whose part is added before a product is rounded.
Where somebody hears of each layer there is a call for each. A batch whose attention is streamed is computed in three
parts for each layer, of which attention is the backend's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from pagewire.core import native_library
from pagewire.kernels import kv_elements
from pagewire.kernels.arena import Arena, buffer
from pagewire.kernels.coded_weight import CodedWeight
from pagewire.kernels.decoder_stack import LayerWeights, OnLayer, StackBatch, StackShape
from pagewire.kernels.low_rank import LayerAdapter, LowRank
from pagewire.kernels.packing import LANES, SUFFIX, Matrix, by_turns, is_packable, pack
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.scaled_weight import Weight

if TYPE_CHECKING:
    from pagewire.kernels.backend import Backend

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_VECTORS = ("input_norm", "q_norm", "k_norm", "post_norm")
_MATRICES = ("qkv", "o", "gate_up", "down")


class _LowRank(ctypes.Structure):
    """`LowRank` of native/low_rank.h."""

    _fields_ = (("down", _POINTER), ("up", _POINTER), ("rank", _INT))


class _Adapter(ctypes.Structure):
    """`Adapter` of native/low_rank.h."""

    _fields_ = tuple((name, _LowRank) for name in _MATRICES)


class _Layer(ctypes.Structure):
    """`Layer` of native/layer.h."""

    _fields_ = (
        *((name, _POINTER) for name in _VECTORS),
        *((name, Matrix) for name in _MATRICES),
        *((f"{name}_bias", _POINTER) for name in _MATRICES),
        *((name, _INT) for name in ("hidden_size", "inner_size", "num_q_heads", "num_kv_heads", "head_dim", "window")),
        ("adapters", _POINTER),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
    )


class _Pass(ctypes.Structure):
    """`Pass` of native/layer.h."""

    _fields_ = (
        *((name, _POINTER) for name in ("hidden", "residual", "normed", "qkv", "rotated", "attended", "inner")),
        *((name, _POINTER) for name in ("cos", "sin", "slots", "table", "starts", "lengths", "kv_lengths")),
        *((name, _INT) for name in ("num_rows", "num_sequences", "table_width", "block_size")),
        *((name, _INT) for name in ("block_stride", "value_offset", "head_stride", "slot_stride", "stored")),
        *((name, _POINTER) for name in ("adapters", "low")),
        ("low_width", _INT),
        ("room", _POINTER),
    )


def _has_codes(layers: Sequence[LayerWeights]) -> bool:
    return any(isinstance(getattr(layer, name), CodedWeight) for layer in layers for name in _MATRICES)


class CpuStack:
    """Layers natively; `fits` says of which it is capable."""

    def __init__(
        self,
        library: ctypes.CDLL,
        layers: Sequence[LayerWeights],
        shape: StackShape,
        arena: Arena,
        backend: Backend,
    ) -> None:
        self._dtype = layers[0].qkv.dtype
        by_tiles = ctypes.c_bool.in_dll(library, "tiles_are_on").value and self._dtype == torch.bfloat16
        self._arithmetic = "-".join(
            (native_library.build_of(library), SUFFIX[self._dtype], *(("tiles",) if by_tiles else ()))
        )
        self._backend = backend
        self._run, self._before, self._after = (
            getattr(library, f"{part}_{SUFFIX[self._dtype]}") for part in ("layers", "layer_before", "layer_after")
        )
        self._run.argtypes, self._run.restype = (_POINTER, _INT, _POINTER, _POINTER, _INT, ctypes.c_bool), None
        self._before.argtypes, self._before.restype = (_POINTER, _POINTER, _POINTER, ctypes.c_bool), None
        self._after.argtypes, self._after.restype = (_POINTER, _POINTER), None
        self._shape = shape
        self._inner_size = layers[0].down.shape[1]
        self._kept: list[object] = []  # what the pointers below lead to
        widest = max(layers[0].qkv.shape[1], layers[0].o.shape[1], self._inner_size)
        # Bytes of scratch; nothing where nothing is in codes.
        self._room_per_row = library.room_per_row(widest) if _has_codes(layers) else 0
        self._low_width = 0  # the widest rank
        self._layers = (_Layer * len(layers))(
            *(self._layer(weights, window, arena) for weights, window in zip(layers, shape.windows, strict=True))
        )

    @property
    def arithmetic(self) -> str:
        """The build, of one source for one processor, the dtype, whether by tiles: others contract or sum otherwise."""
        return self._arithmetic

    @staticmethod
    def fits(layers: Sequence[LayerWeights], shape: StackShape) -> bool:
        """Return whether all sizes are whole vectors."""
        sizes = (layers[0].qkv.shape[1], layers[0].down.shape[1], shape.head_dim)
        return all(size % LANES == 0 for size in sizes) and is_packable(layers[0].qkv)

    def _layer(self, weights: LayerWeights, window: int, arena: Arena) -> _Layer:
        keep = self._keep

        def wide(bias: torch.Tensor | None) -> torch.Tensor | None:
            return None if bias is None else bias.float()

        def packed(weight: Weight, *, in_turns: bool = False) -> Matrix:
            made = pack(weight, arena, in_turns=in_turns)
            self._kept.append(made)
            return made.matrix()

        gate_up_bias = None if weights.gate_up_bias is None else by_turns(weights.gate_up_bias)
        biases = (weights.qkv_bias, weights.o_bias, gate_up_bias, weights.down_bias)
        return _Layer(
            keep(weights.input_norm), keep(weights.q_norm), keep(weights.k_norm), keep(weights.post_norm),
            packed(weights.qkv), packed(weights.o), packed(weights.gate_up, in_turns=True), packed(weights.down),
            *(keep(wide(bias)) for bias in biases), weights.qkv.shape[1], self._inner_size,
            self._shape.num_q_heads, self._shape.num_kv_heads, self._shape.head_dim, window,
            self._adapters(weights.adapters, arena), self._shape.norm_eps, self._shape.scale,
        )  # fmt: skip

    def _keep(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _adapters(self, adapters: Sequence[LayerAdapter], arena: Arena) -> int | None:
        """Return where the layer's parts of all adapters lie."""

        def packed(name: str, part: LowRank | None) -> _LowRank:
            if part is None:
                return _LowRank()
            rank = -(-part.down.shape[0] // LANES) * LANES
            down = part.down.new_zeros(rank, part.down.shape[1])
            up = part.up.new_zeros(part.up.shape[0], rank)
            down[: part.down.shape[0]] = part.down
            up[:, : part.up.shape[1]] = by_turns(part.up) if name == "gate_up" else part.up
            self._low_width = max(self._low_width, rank)
            return _LowRank(self._keep(pack(down, arena).stripes), self._keep(pack(up, arena).stripes), rank)

        if not adapters:
            return None
        own = (_Adapter * len(adapters))(
            *(_Adapter(*(packed(name, getattr(each, name)) for name in _MATRICES)) for each in adapters)
        )
        self._kept.append(own)
        return ctypes.addressof(own)

    def __call__(
        self, hidden: torch.Tensor, batch: StackBatch, pool: torch.Tensor, on_layer: OnLayer | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DecoderStack`."""
        shape, ragged = self._shape, batch.ragged
        hidden = hidden.contiguous()
        num_rows, hidden_size = hidden.shape
        q_size, kv_size = shape.num_q_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        sizes = (hidden_size, hidden_size, q_size + 2 * kv_size, q_size, q_size, self._inner_size)
        residual, *scratch = (hidden.new_empty(num_rows, size) for size in sizes)
        table, sequences = ragged.native_tables()
        numbers = low = None
        if batch.adapted:
            numbers = torch.zeros(num_rows, dtype=torch.int64)
            for run in batch.adapted:
                numbers[run.first : run.end] = run.number
            low = hidden.new_empty(num_rows, self._low_width)
        room = buffer(num_rows * self._room_per_row)
        kv = pool[:, 0]  # [N, 2, Hk, B, D]
        rows = _Pass(
            hidden.data_ptr(), residual.data_ptr(), *(tensor.data_ptr() for tensor in scratch), batch.cos.data_ptr(),
            batch.sin.data_ptr(), batch.slots.data_ptr(), table.data_ptr(), *(row.data_ptr() for row in sequences),
            num_rows, *table.shape, ragged.block_size, *kv_elements.byte_strides(kv),
            kv_elements.NATIVE[pool.dtype], *(None if each is None else each.data_ptr() for each in (numbers, low)),
            self._low_width, room.data_ptr(),
        )  # fmt: skip
        layer_bytes, start = pool.stride(1) * pool.element_size(), pool.data_ptr()
        if ragged.spilled is None and on_layer is None:
            self._run(self._layers, len(self._layers), ctypes.byref(rows), start, layer_bytes, True)
            return hidden, residual
        for number, layer in enumerate(self._layers):
            kv_start, is_first = start + number * layer_bytes, number == 0
            if ragged.spilled is None:
                self._run(ctypes.byref(layer), 1, ctypes.byref(rows), kv_start, layer_bytes, is_first)
            else:
                self._before(ctypes.byref(layer), ctypes.byref(rows), kv_start, is_first)
                *_, rotated, attended, _inner = scratch
                self._attend(rotated, attended, pool, number, ragged)
                self._after(ctypes.byref(layer), ctypes.byref(rows))
            if on_layer is not None:
                on_layer(number)
        return hidden, residual

    def _attend(
        self, rotated: torch.Tensor, attended: torch.Tensor, pool: torch.Tensor, number: int, ragged: Ragged
    ) -> None:
        """Attend `rotated` `[T, Hq D]` over the pool and what was spilled, into `attended`, which is like it."""
        shape, backend = self._shape, self._backend
        q = rotated.view(-1, shape.num_q_heads, shape.head_dim)
        plan = backend.plan_attention(ragged, shape.windows[number], q.dtype)
        attended.copy_(backend.paged_attention(q, pool, number, plan, shape.scale).flatten(1))
