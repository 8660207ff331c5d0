"""The general path: any decoder-only language model of transformers, its attention over our paged pool.

transformers computes the packed batch as one row with explicit positions and no cache of its own: all but attention,
and on a CPU its products. Knows no architecture by name. Invariant: a model that is accepted keeps no state of a
sequence but keys and values in the pool, and its layers see exactly what their masks show; every other model is refused
by name.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.nn import functional

from pagewire.core.kv_layout import BlockOrder, KVLayout, stored_head_dim
from pagewire.engine.batch import Batch
from pagewire.engine.model import packed_modules
from pagewire.engine.model.attention_interface import NAME, AttentionCall, attending
from pagewire.engine.model.attention_survey import LayerAttention, check_layers, survey
from pagewire.engine.model.hf_config import HFConfig, check_depth
from pagewire.engine.model.rope_config import reach
from pagewire.engine.model.row_check import check_rows
from pagewire.engine.model_folder import ModelFolder
from pagewire.kernels.backend import Backend
from pagewire.kernels.decoder_stack import OnLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersArchitecture:
    """A model as its own module describes it; satisfies `Architecture`."""

    config: Any  # transformers' own
    layers: tuple[LayerAttention, ...]
    max_positions: int
    reason: str  # why it is not native

    @classmethod
    def of(cls, folder: ModelFolder, reason: str) -> TransformersArchitecture:
        """Read a folder's config, and survey the module that it describes; raises ValueError naming what refuses it."""
        _check_kind(folder.hf_config)
        check_depth(folder.hf_config)
        name = folder.hf_config["architectures"][0]
        try:
            config = transformers.AutoConfig.from_pretrained(
                folder.path, local_files_only=True, trust_remote_code=False, attn_implementation=NAME
            )
        except Exception as error:  # whatever a validator of transformers may raise
            raise ValueError(f"{name}: transformers does not take its config.json: {error}") from error

        def build() -> Any:
            # In bfloat16 since some products exist for it alone there; the survey looks at shapes.
            module = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation=NAME
            ).eval()
            if type(module).__name__ != name:
                raise ValueError(f"model_type {config.model_type!r} is {type(module).__name__}")
            if getattr(module, "_is_stateful", False):
                raise ValueError("it keeps states beside keys and values (state-space, linear attention, convolution)")
            _hold_frequencies(module)
            return module

        try:
            max_positions = _max_positions(config)
            kind = getattr(transformers, name, None)
            has_interface = getattr(kind, "_supports_attention_backend", False)
            layers = survey(build, max_positions or 1, has_interface=has_interface)
            check_layers(layers, getattr(config, "num_hidden_layers", 0))
            if not max_positions:
                raise ValueError(f"{config.model_type} does not say how many positions it serves")
            _check_window(config, layers, max_positions)
        except ValueError as error:
            raise ValueError(f"{name} is not supported: {error}") from error
        return cls(config=config, layers=layers, max_positions=max_positions, reason=reason)

    @property
    def path(self) -> str:
        """Which code computes it, for people."""
        return f"general path over transformers {transformers.__version__} ({self.reason})"

    @property
    def vocab_size(self) -> int:
        """Rows of its logits."""
        return int(self.config.vocab_size)

    @property
    def window(self) -> int:
        """The widest of its layers' windows, 0 where one has none."""
        windows = [layer.window for layer in self.layers]
        return max(windows) if all(windows) else 0

    def kv_layout(self, block_size: int, dtype: str, order: BlockOrder) -> KVLayout:
        """Return the layout of its KV."""
        return KVLayout(
            num_layers=len(self.layers),
            num_kv_heads=self.layers[0].num_kv_heads,
            head_dim=stored_head_dim(self.layers[0].head_dim),
            block_size=block_size,
            dtype=dtype,
            order=order,
        )

    def load(
        self, folder: ModelFolder, dtype: torch.dtype, device: torch.device, backend: Backend, weight_dtype: str
    ) -> TransformersModel:
        """Read the weights, as they are stored; raises ValueError naming what is missing, surplus or misshapen."""
        if weight_dtype == "fp8":
            raise ValueError(f"weight_dtype {weight_dtype}: weights are read as they are stored in the {self.path}")
        folder.weight_files()  # safetensors, or an error that says so
        transformers.utils.logging.disable_progress_bar()
        module, found = transformers.AutoModelForCausalLM.from_pretrained(
            folder.path,
            config=self.config,
            dtype=dtype,
            attn_implementation=NAME,
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they are named below, with the rest
            output_loading_info=True,
        )
        wrong = {kind: sorted(map(str, found[f"{kind}_keys"])) for kind in ("missing", "unexpected", "mismatched")}
        if any(wrong.values()):
            listed = "; ".join(f"{kind} {', '.join(names) or 'none'}" for kind, names in wrong.items())
            raise ValueError(f"the weights do not fit the model: {listed}")
        module = module.to(device).eval()
        if device.type == "cpu":  # on a GPU torch's own products are good ones
            packed_modules.pack(module, backend, in_codes=weight_dtype == "int8")
        model = TransformersModel(module, self.layers, backend)
        try:
            check_rows(model.logits_of, self.vocab_size, self.max_positions, device)
        except ValueError as error:
            raise ValueError(f"{type(module).__name__} is not supported: {error}") from error
        return model


class TransformersModel:
    """A transformers module that attends over the pool; satisfies `Model`."""

    def __init__(self, module: Any, layers: tuple[LayerAttention, ...], backend: Backend) -> None:
        self._module = module
        self._windows = tuple(layer.window for layer in layers)
        self._head_dim = stored_head_dim(layers[0].head_dim)
        self._backend = backend
        self._chooses_rows = "logits_to_keep" in inspect.signature(module.forward).parameters

    @property
    def arithmetic(self) -> str:
        """What is left to the modules is torch's, which may sum by the shape of the whole."""
        return ""

    def forward(self, batch: Batch, pool: torch.Tensor, wrote: OnLayer | None = None) -> torch.Tensor:
        """Write the KV of the batch's tokens to the pool; return fp32 logits `[n, V]` of its `logit_rows`."""
        backend, layers = self._backend, itertools.count()
        dtype: torch.dtype = self._module.dtype
        plans = {window: backend.plan_attention(batch.ragged, window, dtype) for window in sorted(set(self._windows))}

        def attend(call: AttentionCall) -> torch.Tensor:
            layer = next(layers)
            q, k, v = (_widened(x, self._head_dim).to(dtype) for x in (call.q, call.k, call.v))
            backend.write_kv(k, v, pool, layer, batch.slots)
            if wrote is not None:
                wrote(layer)
            plan = plans[self._windows[layer]]
            out = backend.paged_attention(q, pool, layer, plan, call.scale, call.softcap, call.sinks)
            return out[..., : call.v.shape[2]].contiguous().to(call.q.dtype)  # some modules view it as one row

        with attending(attend):
            return self.logits_of(batch.token_ids, batch.positions, batch.logit_rows).float()

    def logits_of(
        self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the logits of `rows` (None: all) of packed tokens `[T]`, by whatever attention is set: `[n, V]`."""
        wanted = {"logits_to_keep": rows} if self._chooses_rows and rows is not None else {}
        logits: torch.Tensor = self._module(
            input_ids=token_ids[None],
            position_ids=positions[None],
            # Says that nothing is padding, and keeps transformers from guessing sequences from positions.
            attention_mask=torch.ones_like(token_ids)[None],
            use_cache=False,
            **wanted,
        ).logits[0]
        return logits if wanted or rows is None else logits[rows]


def _widened(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    # Keys and values of unequal width share the wider one, in whole vectors: zeros add nothing to a product.
    return functional.pad(x, (0, head_dim - x.shape[2])) if x.shape[2] < head_dim else x


def _hold_frequencies(module: Any) -> None:
    """Have a module that is surveyed not look whether positions are beyond the original ones: it has no values."""

    def held(kind: str) -> str:
        return "default" if "dynamic" in kind or kind == "longrope" else kind

    for part in module.modules():
        kind = getattr(part, "rope_type", "")
        if isinstance(kind, str) and held(kind) != kind:
            part.rope_type = held(kind)
        elif isinstance(kind, dict):  # by kind of layer
            part.rope_type = {layer: held(each) for layer, each in kind.items()}


def _check_kind(hf: HFConfig) -> None:
    names = hf.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("architectures is not a list of names")
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    if hf.get("is_encoder_decoder"):
        raise ValueError(f"{' '.join(names)} is an encoder-decoder; only decoders are supported")
    if len(names) != 1 or names[0] not in known:
        raise ValueError(
            f"architecture {' '.join(names) or '(none named)'} is not supported: it is not a causal language model of "
            f"transformers {transformers.__version__} (code that comes with a model is never run)"
        )
    if any(key in hf for key in ("vision_config", "audio_config")):
        raise ValueError(f"{names[0]} reads more than text; its text model alone is supported")


def _check_window(config: Any, layers: Sequence[LayerAttention], max_positions: int) -> None:
    """Raise ValueError where a window is in use that no layer's mask shows: transformers' cache alone keeps to it then.

    A config that names the kinds of its layers uses it in those that are called sliding.
    """
    window = getattr(config, "sliding_window", None)
    if not isinstance(window, int) or not 0 < window < max_positions or any(layer.window for layer in layers):
        return
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    if getattr(config, "use_sliding_window", True) and any("sliding" in kind for kind in kinds):
        raise ValueError(
            f"its config.json has a sliding window of {window} tokens, below its {max_positions} positions, and the "
            "mask of no layer shows one"
        )


def _max_positions(config: Any) -> int:
    own = getattr(config, "max_position_embeddings", None) or 0  # 0: it does not say
    if getattr(config, "rope_parameters", None):
        config.standardize_rope_params()  # as modules do first: original positions beside the parameters go among them
    parameters = getattr(config, "rope_parameters", None) or {}
    scalings = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    for scaling in scalings:
        # Beyond the original positions longrope turns every token by how long the longest of the batch is, as dynamic
        # scaling does beyond the model's own, which are its original ones: served as far as they are plain.
        if scaling["rope_type"] == "longrope":
            own = min(own, scaling["original_max_position_embeddings"])
        if scaling["rope_type"] == "yarn" and len(scalings) == 1:
            own = reach({"max_position_embeddings": own, "rope_parameters": scaling})
    return int(own)
