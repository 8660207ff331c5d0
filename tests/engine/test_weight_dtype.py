"""Weights kept as codes are other weights and nothing else: transformers says the same with what they stand for."""

from __future__ import annotations

import json
import random
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import engine, greedy, run_all, spec
from ranked_engines import ranked
from reference import Reference, is_near_tie
from safetensors.torch import load_file, save_file
from tiny_model import NATIVE
from torch import nn
from transformers.pytorch_utils import Conv1D

from pagewire.core.block_hash import root_hash
from pagewire.core.messages import Role
from pagewire.engine import weights
from pagewire.engine.assembly import Engine
from pagewire.engine.config import EngineConfig
from pagewire.engine.model import checkpoint
from pagewire.engine.model.families import native_architecture
from pagewire.engine.model.shard import Shard
from pagewire.engine.model_folder import ModelFolder
from pagewire.kernels.coded_weight import CodedWeight
from pagewire.kernels.cpu_backend import CpuBackend
from pagewire.kernels.scaled_weight import ScaledWeight
from pagewire.kernels.torch_backend import TorchBackend

TinyModel = Callable[[str], Path]

NUM_TOKENS = 12
CPU = torch.device("cpu")


def prompts() -> list[list[int]]:
    chance = random.Random(2)
    return [[chance.randrange(250) for _ in range(length)] for length in (1, 2, 16, 17, 33, 64, 100)]


def answers(built: Engine) -> list[tuple[int, ...]]:
    heard = run_all(built.loop, [spec(str(i), prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(prompts())])
    return [tuple(heard.tokens[str(i)]) for i in range(len(prompts()))]


@pytest.fixture(scope="module")
def rounded(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a model whose products have the weights that codes stand for, stored as ordinary numbers."""

    def folder(name: str) -> Path:
        made = tmp_path_factory.mktemp(name) / "model"
        shutil.copytree(tiny(name), made)
        (path,) = made.glob("*.safetensors")
        tensors = load_file(path)
        for key, tensor in tensors.items():
            if key.endswith("proj.weight"):
                scale = tensor.abs().amax(1, keepdim=True) / 448
                tensors[key] = (tensor / scale).to(torch.float8_e4m3fn).float() * scale
        save_file(tensors, path, {"format": "pt"})
        return made

    return folder


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("native", [True, False])
def test_tokens_are_those_of_transformers_with_the_same_weights(
    tiny: TinyModel, rounded: Callable[[str], Path], name: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(CpuBackend, "load", lambda: None)
    folder = rounded(name)
    found = answers(engine(tiny(name), weight_dtype="fp8"))
    assert found == answers(engine(folder))
    expected = Reference(folder).greedy(prompts(), NUM_TOKENS)
    assert sum(is_near_tie(one, other) for one, other in zip(expected, found, strict=True)) <= 1
    assert found != answers(engine(tiny(name))), "a measure that rounds nothing proves nothing"


class RoundedReference(Reference):
    """transformers whose products round weights and inputs, to the nearest of 127 either way of each 32."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for module in self._model.modules():
            if isinstance(module, nn.Linear | Conv1D):
                weight = module.weight.detach()  # the head's is the embedding, too, which stays
                if isinstance(module, Conv1D):
                    module.weight = nn.Parameter(to_nearest(weight.t(), is_weight=True).t().contiguous())
                else:
                    module.weight = nn.Parameter(to_nearest(weight, is_weight=True))
                module.register_forward_pre_hook(lambda _module, given: (to_nearest(given[0]),))


def to_nearest(x: torch.Tensor, *, is_weight: bool = False) -> torch.Tensor:
    """Return x `[..., K]` with each 32 numbers of a row rounded to multiples of a 127th of their largest.

    Of a weight that 127th is a bfloat16.
    """
    parts = []
    for part in (x[..., first : first + 32] for first in range(0, x.shape[-1], 32)):
        step = (part.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
        if is_weight:
            step = step.bfloat16().float()
        parts.append((part / step).round().clamp(-127, 127) * step)
    return torch.cat(parts, dim=-1)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "olmo2", "gpt2"])
@pytest.mark.parametrize("native", [True, False])
def test_products_of_codes_say_what_transformers_says_of_numbers_rounded_so(
    tiny: TinyModel, name: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(CpuBackend, "load", lambda: None)
    found = answers(engine(tiny(name), weight_dtype="int8"))
    expected = RoundedReference(tiny(name)).greedy(prompts(), NUM_TOKENS)
    # Where sums are taken in another order an input may round to the next code, a 127th of the largest away.
    assert sum(is_near_tie(one, other, 0.1) for one, other in zip(expected, found, strict=True)) <= 1
    assert found != answers(engine(tiny(name))), "a measure that rounds nothing proves nothing"


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_codes_and_scales_do_not_depend_on_how_many_ranks_there_are(tiny: TinyModel, num_ranks: int) -> None:
    folder = ModelFolder.open(tiny("qwen3"))
    architecture, stored = native_architecture(folder.hf_config), load_file(folder.weight_files()[0])
    for rank in range(num_ranks):
        shard, config = Shard(rank=rank, num_ranks=num_ranks), architecture.config.part(num_ranks)
        loaded, places, parts = checkpoint.allocate(config, torch.float32, CPU, shard, quantised=True)
        ignored = [] if shard.is_first else [r"lm_head\.weight"]
        weights.load(folder.weight_files(), places, ignored, parts)
        for name, place in places.items():
            assert isinstance(place, ScaledWeight) == name.endswith("proj.weight")
            if isinstance(place, ScaledWeight):
                whole = ScaledWeight.of(stored[name])
                cut: list[Any] = [slice(None), slice(None)]
                if name in parts:
                    cut[parts[name].axis] = parts[name].places
                assert torch.equal(place.codes.float(), whole.codes[tuple(cut)].float())
                assert torch.equal(place.scales, whole.scales[cut[0]])
        assert isinstance(loaded.layers[0].down, ScaledWeight)
        assert loaded.layers[0].down.codes.element_size() == 1


@pytest.mark.parametrize("name", [*sorted(NATIVE), "gemma2", "gpt_neox", "gpt_oss", "mixtral"])
def test_natively_products_of_codes_say_what_torch_says(
    tiny: TinyModel, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of odd sizes, whose groups have zeros among them, windows, scaled rope, and experts too."""
    found = answers(engine(tiny(name), weight_dtype="int8"))
    monkeypatch.setattr(CpuBackend, "load", lambda: None)
    expected = answers(engine(tiny(name), weight_dtype="int8"))
    # Where sums are taken in another order an input may round to the next code, and a token at a near-tie be another.
    assert sum(one != other for one, other in zip(expected, found, strict=True)) <= 1


def test_a_layer_goes_once_it_is_in_codes(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[weakref.ref[torch.Tensor]] = []
    living: list[int] = []

    def heard(weight: torch.Tensor) -> CodedWeight:
        living.append(sum(each() is not None for each in loaded))
        loaded.append(weakref.ref(weight))
        return coded(weight)

    coded = CodedWeight.of
    monkeypatch.setattr(CodedWeight, "of", heard)
    engine(tiny("llama"), weight_dtype="int8")
    # Four matrices of a layer, three layers, and the head; those of a layer are there until it is whole.
    assert living == [0, 1, 2, 3] * 3 + [0]


@pytest.mark.parametrize(("name", "weight_dtype"), [("qwen3", "fp8"), ("qwen3_whole_groups", "int8")])
def test_ranks_say_what_one_says(tiny: TinyModel, name: str, weight_dtype: str) -> None:
    expected = answers(engine(tiny(name), weight_dtype=weight_dtype))
    with ranked(tiny(name), weight_dtype=weight_dtype) as built:
        assert answers(built) == expected


def test_ranks_that_would_divide_a_group_are_refused(tiny: TinyModel) -> None:
    why = "weight_dtype int8: o and down of each of 2 ranks have 32 and 48 inputs, which are not whole groups of 32"
    with pytest.raises(ValueError, match=why), ranked(tiny("qwen3"), weight_dtype="int8"):
        pass


@pytest.mark.parametrize("weight_dtype", ["fp8", "int8"])
def test_kv_of_other_weights_is_other_kv(tiny: TinyModel, weight_dtype: str) -> None:
    plain, coded = (engine(tiny("llama"), weight_dtype=name).ready.fingerprint for name in ("auto", weight_dtype))
    assert plain.kv_fingerprint == coded.kv_fingerprint
    assert plain.diff(coded) == f"model_digest: {plain.model_digest} / {plain.model_digest}-{weight_dtype}"
    roots = {root_hash(model_digest=p.model_digest, kv_fingerprint=p.kv_fingerprint) for p in (plain, coded)}
    assert len(roots) == 2


@pytest.mark.parametrize("weight_dtype", ["fp8", "int8"])
def test_a_deterministic_engine_may_have_codes(tiny: TinyModel, weight_dtype: str) -> None:
    built = engine(tiny("llama"), weight_dtype=weight_dtype, deterministic=True)
    assert answers(built) == answers(engine(tiny("llama"), weight_dtype=weight_dtype))


def test_a_row_of_nothing_and_the_largest_number_are_kept() -> None:
    weight = torch.tensor([[0.0, 0.0], [3.0, -448.0], [1e-30, 0.0], [65504.0, 1.0]])
    kept = ScaledWeight.of(weight)
    assert kept.decoded()[:, 0].tolist() == pytest.approx([0.0, 3.0, 1e-30, 65504.0], rel=1e-6)
    assert torch.equal(TorchBackend().linear(kept, None)(torch.eye(2)), kept.decoded().T)


def test_what_cannot_be_kept_so_is_refused_by_name(tiny: TinyModel) -> None:
    with pytest.raises(ValueError, match="weight_dtype fp8: weights are read as they are stored in the general path"):
        engine(tiny("gemma2"), weight_dtype="fp8")
    with pytest.raises(ValueError, match="weight_dtype int8: products in 8 bits are a CPU's; on cuda there is fp8"):
        EngineConfig(model="m", role=Role.DECODE, weight_dtype="int8", device="cuda")
    with pytest.raises(ValueError, match="weight_dtype 'int4' is not one of auto, fp8, int8"):
        EngineConfig(model="m", role=Role.DECODE, weight_dtype="int4")
    config = EngineConfig(model="m", role=Role.DECODE, weight_dtype="fp8")
    assert json.loads(config.to_json())["weight_dtype"] == "fp8"
    assert EngineConfig.from_json(config.to_json()) == config
