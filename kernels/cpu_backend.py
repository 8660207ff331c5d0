"""The CPU backend: the ops that a step spends its time in, natively, and plain torch for the rest.

Satisfies `Backend`, which says what each op means; `native/` says how they are computed, and here are the pointers.
What it cannot do (odd sizes, other dtypes) is done in torch. Invariant: a row's result does not depend on the rest of
its batch, only on how many rows its own sequence has in it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pagewire.core import native_library
from pagewire.core.heap import keep_heap
from pagewire.kernels import kv_elements, logit_edits, native_ops, sampling
from pagewire.kernels.arena import Arena, buffer
from pagewire.kernels.backend import Linear
from pagewire.kernels.coded_weight import CodedWeight
from pagewire.kernels.cpu_stack import CpuStack
from pagewire.kernels.decoder_stack import DecoderStack, LayerWeights, Reduce, StackShape
from pagewire.kernels.head_norms import HeadNorms
from pagewire.kernels.logit_edits import Counted, LogitEdits, Repetition
from pagewire.kernels.packing import LANES, STEP, SUFFIX, Packed, is_packable, pack
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.sampling_rows import SamplingRows
from pagewire.kernels.scaled_weight import Weight
from pagewire.kernels.torch_backend import TorchBackend

log = logging.getLogger(__name__)

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedPlan:
    """What attention reads of a batch: sequences as they are, nothing padded and no mask."""

    block_table: torch.Tensor  # [S, M] int64
    sequences: torch.Tensor  # [3, S] int64: the first row of each sequence, its rows, its tokens in the pool
    block_size: int
    window: int


class _Attention(ctypes.Structure):
    """`Attention` of native/paged_kv.h."""

    _fields_ = (
        *((name, _POINTER) for name in ("q", "kv", "out", "table", "starts", "lengths", "kv_lengths")),
        *((name, _INT) for name in ("num_sequences", "table_width", "block_size", "num_q_heads", "num_kv_heads")),
        *((name, _INT) for name in ("head_dim", "window", "block_stride", "value_offset", "head_stride")),
        *((name, _INT) for name in ("slot_stride", "stored")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        ("sinks", _POINTER),
    )


class _Draws(ctypes.Structure):
    """`Draws` of native/draw.h."""

    _fields_ = (
        ("logits", _POINTER),
        *((name, _INT) for name in ("size", "count")),
        *(
            (name, _POINTER)
            for name in ("rows", "temperature", "top_p", "log_min_p", "typical_p", "top_k", "keys", "tokens")
        ),
    )


class _Penalties(ctypes.Structure):
    """`Penalties` of native/penalties.h."""

    _fields_ = (
        ("logits", _POINTER),
        *((name, _INT) for name in ("size", "count", "width")),
        *((name, _POINTER) for name in ("rows", "tokens", "repetition", "presence", "frequency")),
    )


class _Append(ctypes.Structure):
    """`Append` of native/rows.h."""

    _fields_ = (
        *((name, _POINTER) for name in ("q", "k", "v", "rotated", "kv", "cos", "sin", "slots")),
        *((name, _INT) for name in ("num_rows", "num_q_heads", "num_kv_heads", "head_dim", "block_size")),
        *((name, _INT) for name in ("q_stride", "k_stride", "v_stride", "block_stride", "value_offset", "head_stride")),
        *((name, _INT) for name in ("slot_stride", "stored")),
    )


class CpuBackend(TorchBackend):
    """Native ops for bf16 and fp32; see `Backend` for the contracts."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.room_per_row.argtypes, library.room_per_row.restype = (_INT,), _INT
        self._library = library
        self._arena = Arena()

    @classmethod
    def load(cls) -> CpuBackend | None:
        """Build and load the native ops; None where that is not possible here."""
        library = native_ops.load()
        if library is None:
            return None
        keep_heap()  # a step asks for what the last one gave back
        library.use_tiles.restype = ctypes.c_bool
        if not library.use_tiles() and "amx_bf16" in native_library.features():
            log.warning(
                "bfloat16 is multiplied without this processor's AMX: the system, or its compiler, has none for us"
            )
        return cls(library)

    def linear(self, weight: Weight, bias: torch.Tensor | None) -> Linear:
        """Pack `weight` and return its product with rows; the weight itself is not kept."""
        if not is_packable(weight):
            return super().linear(weight, bias)
        function = self._function("linear", weight.dtype, 5 * (_POINTER,) + 3 * (_INT,))
        room = self._library.room_per_row(weight.shape[1]) if isinstance(weight, CodedWeight) else 0
        return _PackedLinear(function, pack(weight, self._arena), weight.shape, bias, room)

    def decoder_stack(
        self, layers: Sequence[LayerWeights], shape: StackShape, reduce: Reduce | None = None
    ) -> DecoderStack:
        """Return the layers as one native call each, where sizes are whole vectors and nothing is summed within."""
        if reduce is not None or not CpuStack.fits(layers, shape):
            return super().decoder_stack(layers, shape, reduce)
        return CpuStack(self._library, layers, shape, self._arena, self)

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (normalised, x + residual)."""
        size, inner = x.shape[-1], x.shape[1] if x.dim() == 3 else 1
        # Rows of one, or of heads side by side: what a fused projection is split into.
        is_plain = x.dim() in (2, 3) and x.stride()[1:] == ((size, 1) if x.dim() == 3 else (1,))
        if x.dtype not in STEP or size % LANES or not is_plain:
            return super().rms_norm(x, weight, eps, residual)
        added = None if residual is None else residual.contiguous()
        normed = torch.empty(x.shape, dtype=x.dtype)
        total = torch.empty(x.shape, dtype=x.dtype) if residual is not None else x
        arguments = 5 * (_POINTER,) + 4 * (_INT,) + (ctypes.c_float,)
        self._function("rms_norm", x.dtype, arguments)(
            x.data_ptr(), None if added is None else added.data_ptr(), weight.data_ptr(),
            normed.data_ptr(), total.data_ptr(), x.shape[0], inner, size, x.stride(0), eps,
        )  # fmt: skip
        return normed, total

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up: `[T, 2 I]` -> `[T, I]`."""
        num_rows, both = gate_up.shape
        if gate_up.dtype not in STEP or both % (2 * LANES) or not gate_up.is_contiguous():
            return super().silu_and_mul(gate_up)
        out = gate_up.new_empty(num_rows, both // 2)
        arguments = 2 * (_POINTER,) + 2 * (_INT,)
        self._function("silu_and_mul", gate_up.dtype, arguments)(
            gate_up.data_ptr(), out.data_ptr(), num_rows, both // 2
        )
        return out

    def append_kv(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        pool: torch.Tensor,
        layer: int,
        slots: torch.Tensor,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        """Norm and rotate q and k, write k and v to their slots, return q."""
        if norms is not None:
            (q, _), (k, _) = self.rms_norm(q, norms.q, norms.eps), self.rms_norm(k, norms.k, norms.eps)
        head_dim = q.shape[2]
        is_whole = q.dtype == pool.dtype or head_dim % LANES == 0
        is_known = q.dtype in STEP and pool.dtype in kv_elements.NATIVE and is_whole
        if not is_known or any(x.stride()[1:] != (head_dim, 1) for x in (q, k, v)):
            return super().append_kv(q, k, v, cos, sin, pool, layer, slots)
        rotated = torch.empty(q.shape, dtype=q.dtype)
        kv = pool[:, layer]  # [N, 2, Hk, B, D]
        append = _Append(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), rotated.data_ptr(), kv.data_ptr(), cos.data_ptr(), sin.data_ptr(),
            slots.data_ptr(), q.shape[0], q.shape[1], k.shape[1], head_dim, pool.shape[4], q.stride(0), k.stride(0),
            v.stride(0), *kv_elements.byte_strides(kv), kv_elements.NATIVE[pool.dtype],
        )  # fmt: skip
        self._function("append_kv", q.dtype, (_POINTER,))(ctypes.byref(append))
        return rotated

    def plan_attention(self, ragged: Ragged, window: int, dtype: torch.dtype) -> object:
        """Prepare what all layers with this window share."""
        if dtype not in STEP or ragged.block_size % LANES or ragged.spilled is not None:
            return super().plan_attention(ragged, window, dtype)
        table, sequences = ragged.native_tables()
        return RaggedPlan(block_table=table, sequences=sequences, block_size=ragged.block_size, window=window)

    def paged_attention(
        self,
        q: torch.Tensor,
        pool: torch.Tensor,
        layer: int,
        plan: object,
        scale: float,
        softcap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return attention of q `[T, Hq, D]` over the pool: `[T, Hq, D]`."""
        if not isinstance(plan, RaggedPlan):
            return super().paged_attention(q, pool, layer, plan, scale, softcap, sinks)
        assert q.shape[2] % LANES == 0, "pools keep heads in whole vectors"
        q, sinks = q.contiguous(), None if sinks is None else sinks.float().contiguous()
        out = torch.empty_like(q)
        kv = pool[:, layer]  # [N, 2, Hk, B, D]
        attention = _Attention(
            q.data_ptr(), kv.data_ptr(), out.data_ptr(), plan.block_table.data_ptr(),
            *(row.data_ptr() for row in plan.sequences), *plan.block_table.shape, plan.block_size,
            q.shape[1], kv.shape[2], q.shape[2], plan.window, *kv_elements.byte_strides(kv),
            kv_elements.NATIVE[pool.dtype], scale, softcap, None if sinks is None else sinks.data_ptr(),
        )  # fmt: skip
        self._function("attention", q.dtype, (_POINTER,))(ctypes.byref(attention))
        return out

    def edit_logits(self, logits: torch.Tensor, edits: LogitEdits) -> torch.Tensor:
        """Return edited logits `[n, V]`."""
        return logit_edits.edit(logits, edits, self._penalise)

    def _penalise(self, logits: torch.Tensor, asked: Repetition | Counted) -> None:
        tokens = asked.tokens.contiguous()
        amounts = (
            (asked.penalty, None, None) if isinstance(asked, Repetition) else (None, asked.presence, asked.frequency)
        )
        penalties = _Penalties(
            logits.data_ptr(), logits.shape[1], *tokens.shape, asked.rows.data_ptr(), tokens.data_ptr(),
            *(None if each is None else each.data_ptr() for each in amounts),
        )  # fmt: skip
        self._function("penalise", logits.dtype, (_POINTER,))(ctypes.byref(penalties))

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> list[int]:
        """Return a token per row of logits `[n, V]`."""
        return sampling.sample(logits, rows, self._largest, self._draw)

    def _largest(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        num_rows, size = logits.shape
        if logits.dtype not in STEP or not logits.is_contiguous():
            return sampling.largest(logits)
        values, places = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
        arguments = (_POINTER, _INT, _INT, _POINTER, _POINTER)
        self._function("largest", logits.dtype, arguments)(
            logits.data_ptr(), num_rows, size, values.data_ptr(), places.data_ptr()
        )
        return values, places

    def _draw(self, logits: torch.Tensor, places: Sequence[int], rows: SamplingRows) -> list[int]:
        if logits.dtype not in STEP or not logits.is_contiguous():
            return sampling.draw_by_tiles(logits, places, rows)
        size = logits.shape[1]
        ints = torch.tensor([places, rows.top_k], dtype=torch.int64)  # [2, r]
        columns = (rows.temperature, rows.top_p, rows.min_p, rows.typical_p)
        floats = torch.tensor(columns, dtype=torch.float64)  # [4, r]
        floats[2].log_()  # -inf where it is off
        keys, tokens = sampling.keys_of(rows, logits.device), torch.empty(len(places), dtype=torch.int64)
        draws = _Draws(
            logits.data_ptr(), size, len(places), ints[0].data_ptr(), *(column.data_ptr() for column in floats),
            ints[1].data_ptr(), keys.data_ptr(), tokens.data_ptr(),
        )  # fmt: skip
        self._function("draw", logits.dtype, (_POINTER,))(ctypes.byref(draws))
        drawn: list[int] = tokens.tolist()
        return drawn

    def _function(self, name: str, dtype: torch.dtype, arguments: tuple[type, ...]) -> Callable[..., None]:
        function = getattr(self._library, f"{name}_{SUFFIX[dtype]}")
        if function.argtypes is None:
            function.argtypes, function.restype = arguments, None
        found: Callable[..., None] = function
        return found


class _PackedLinear:
    """A weight `[N, K]` as packed stripes, and its bias in fp32; `room` is the bytes of scratch for each row."""

    def __init__(
        self, function: Callable[..., None], packed: Packed, shape: torch.Size, bias: torch.Tensor | None, room: int
    ) -> None:
        self._function = function
        self._packed, self._matrix = packed, packed.matrix()
        self._num_outputs, self._num_inputs = shape
        self._bias = None if bias is None else bias.float()
        self._room_per_row = room

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x `[T, K]` times the weight, plus the bias: `[T, N]`."""
        x = x.contiguous()
        out = x.new_empty(x.shape[0], self._num_outputs)
        bias = None if self._bias is None else self._bias.data_ptr()
        sizes = (x.shape[0], self._num_inputs, self._num_outputs)
        room = buffer(x.shape[0] * self._room_per_row)
        self._function(x.data_ptr(), ctypes.byref(self._matrix), bias, room.data_ptr(), out.data_ptr(), *sizes)
        return out
