"""What a model folder may and may not hold, and what names it to others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import engine, greedy, run_all, spec
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pagewire.core import memory_limit
from pagewire.core.clock import MonotonicClock
from pagewire.core.kv_layout import KVLayout
from pagewire.core.messages import Role
from pagewire.engine.assembly import assemble, warm_up
from pagewire.engine.config import EngineConfig
from pagewire.engine.kv_cache import KVCache
from pagewire.engine.model.families import native_architecture
from pagewire.engine.model.hf_config import NotNative
from pagewire.engine.model_folder import ModelFolder
from pagewire.engine.ranks.rank_failed import RankFailed
from pagewire.kernels.torch_backend import TorchBackend

TinyModel = Callable[[str], Path]


@pytest.fixture
def copy(tiny: TinyModel, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(tiny("llama"), folder)
    return folder


def rewrite_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_missing_weight_is_named(copy: Path) -> None:
    rewrite_weights(copy, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"missing model\.layers\.1\.mlp\.up_proj\.weight; surplus none"):
        engine(copy)


def test_a_surplus_weight_is_named(copy: Path) -> None:
    rewrite_weights(copy, lambda tensors: tensors.update({"model.extra": torch.zeros(1)}))
    with pytest.raises(ValueError, match=r"missing none; surplus model\.extra"):
        engine(copy)


def test_a_misshapen_weight_is_named(copy: Path) -> None:
    rewrite_weights(copy, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \(3,\), the config asks for \(64,\)"):
        engine(copy)


def test_derived_buffers_and_a_tied_head_are_passed_over(copy: Path) -> None:
    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    rewrite_weights(copy, add)
    engine(copy)


@pytest.mark.parametrize("stored", ["another head", "the head alone"])
def test_a_tied_head_is_what_it_is_in_transformers(copy: Path, stored: str) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        embedding = tensors["model.embed_tokens.weight"]
        if stored == "another head":
            tensors["lm_head.weight"] = 0.2 * torch.randn(embedding.shape, generator=torch.Generator().manual_seed(3))
        else:
            tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    prompt = list(b"the cat sat on the mat")
    before = run_all(engine(copy).loop, [spec("a", prompt, greedy(12))]).tokens["a"]
    rewrite_weights(copy, change)
    model = AutoModelForCausalLM.from_pretrained(copy, dtype=torch.float32).eval()
    ids = torch.tensor([prompt])
    wanted = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    found = run_all(engine(copy).loop, [spec("a", prompt, greedy(12))]).tokens["a"]
    assert found == wanted[0, len(prompt) :].tolist()
    assert (found == before) is (stored == "the head alone")


def test_shards_equal_one_file(tiny: TinyModel, copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {name: f"model-{1 + i % 2}-of-2.safetensors" for i, name in enumerate(names)}
    for shard in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == shard}, copy / shard)
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    asked = [spec("a", range(30), greedy(8))]
    assert run_all(engine(copy).loop, asked).tokens == run_all(engine(tiny("llama")).loop, asked).tokens


def test_one_file_goes_before_an_index_that_was_left_beside_it_as_in_transformers(tiny: TinyModel, copy: Path) -> None:
    older = load_file(copy / "model.safetensors")
    save_file({name: tensor.flip(0) for name, tensor in older.items()}, copy / "model-1-of-1.safetensors")
    weight_map = dict.fromkeys(older, "model-1-of-1.safetensors")
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    theirs = AutoModelForCausalLM.from_pretrained(copy, dtype=torch.float32).state_dict()
    assert torch.equal(theirs["model.norm.weight"], older["model.norm.weight"])
    asked = [spec("a", range(30), greedy(8))]
    assert run_all(engine(copy).loop, asked).tokens == run_all(engine(tiny("llama")).loop, asked).tokens


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "by kind of layer"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"sliding_window": 24}, "sliding_window 24 is not supported"),
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM"),
        ({"architectures": []}, "none named"),
        ({"architectures": ["Qwen3ForCausalLM"], "head_dim": 20}, "20 is no multiple of 16"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["linear_attention"] * 3}, "linear_attention"),
    ],
)
def test_what_the_native_decoder_does_not_compute_is_named(copy: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(NotNative, match=named):
        native_architecture({**ModelFolder.open(copy).hf_config, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["RemoteForCausalLM"]}, "RemoteForCausalLM is not supported.* never run"),
        ({"architectures": []}, "none named"),
        (
            {"architectures": ["GemmaForCausalLM"]},
            "GemmaForCausalLM is not supported: model_type 'llama' is LlamaForCausalLM",
        ),
        ({"architectures": ["OlmoForCausalLM"], "model_type": "olmo", "hidden_size": "x"}, "does not take its config"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"head_dim": 17}, "head_dim 17 is odd"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"num_key_value_heads": 8}, "num_attention_heads 4 is no multiple of num_key_value_heads 8"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor is not a number: None"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic"}}, "factor is not a number: None"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1e4}}, "rope_theta must be above 1"),
        ({"rope_parameters": {"rope_type": "linear", "factor": -2.0}}, "its factor above 0"),
        (
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 0.0,
                    "high_freq_factor": 4.0,
                }
            },
            "low_freq_factor must be above 0",
        ),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 0.5}}, "beta_slow must be above 0"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps must not be negative"),
        ({"sliding_window": 24}, "a sliding window of 24 tokens, below its 512 positions, and the mask of no layer"),
        (
            {"num_key_value_heads": 3, "hidden_act": "gelu"},
            "LlamaForCausalLM is not supported: its 4 query heads do not share its 3 KV heads evenly",
        ),
    ],
)
def test_what_no_path_computes_is_refused_by_name(copy: Path, changes: dict[str, Any], named: str) -> None:
    rewrite_config(copy, **changes)
    with pytest.raises(ValueError, match=named):
        engine(copy)


def test_the_path_is_named(tiny: TinyModel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="pagewire.engine.assembly"):
        engine(tiny("llama"))
        engine(tiny("llama_gelu"))
    assert "in float32, through the native decoder" in caplog.text
    assert "through the general path over transformers" in caplog.text
    assert "hidden_act 'gelu'" in caplog.text


def test_float16_needs_a_cuda_device() -> None:
    with pytest.raises(ValueError, match="float16 needs a CUDA device, not cpu"):
        EngineConfig(model="m", role=Role.COLOCATED, dtype="float16")


def test_float16_is_for_cuda_devices() -> None:
    for device in ("cuda", "cuda:0", "cuda:11"):
        assert EngineConfig(model="m", role=Role.COLOCATED, device=device, dtype="float16", kv_dtype="float16")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:100", "cuda0", "cpu:0", "mps", "CUDA", ""])
def test_a_device_of_another_kind_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="is not cpu, cuda or cuda:N"):
        EngineConfig(model="m", role=Role.COLOCATED, device=device)


def test_a_device_that_is_not_here_is_refused_before_the_model_is_looked_at() -> None:
    absent = "cuda:99"
    with pytest.raises(ValueError, match=f"device {absent}: (PyTorch .* finds no|there are [0-9]+) CUDA device"):
        assemble(EngineConfig(model="nowhere", role=Role.COLOCATED, device=absent), MonotonicClock())


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. See documentation for PyTorch"),
            "CUDA out of memory. Tried to allocate 20.00 GiB",
        ),
        (RankFailed("rank 1: OutOfMemoryError: CUDA out of memory"), "rank 1: OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_a_device_with_too_little_memory_is_named(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch, error: Exception, named: str
) -> None:
    """What PyTorch raises for it, and another rank says; that it raises it can be seen on a device alone."""

    def too_little(*_: object) -> KVCache:
        raise error

    monkeypatch.setattr(KVCache, "open", too_little)
    with pytest.raises(ValueError, match=f"^device cpu: {named}$"):
        engine(tiny("llama"))


def test_another_backend_computes_where_it_is_given(tiny: TinyModel) -> None:
    class Counting(TorchBackend):
        norms = 0

        def rms_norm(self, *given: object) -> tuple[torch.Tensor, torch.Tensor]:
            self.norms += 1
            return super().rms_norm(*given)  # type: ignore[arg-type]

    backend = Counting()
    config = EngineConfig(model=str(tiny("llama")), role=Role.COLOCATED, dtype="float32", kv_memory_bytes=1 << 22)
    assemble(config, MonotonicClock(), backend=backend).runner.rehearse()
    assert backend.norms == 7  # two in each of three layers, and the last


def test_the_older_form_of_rope_settings_is_read(copy: Path) -> None:
    hf = dict(ModelFolder.open(copy).hf_config)
    hf.pop("rope_parameters", None)
    old = native_architecture({**hf, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}).config.rope
    assert (old.theta, old.scaling, old.factor) == (5e5, "linear", 4.0)
    plain = native_architecture({**hf, "rope_theta": 5e5, "rope_scaling": None}).config.rope
    assert (plain.theta, plain.scaling) == (5e5, "default")


def test_digests_follow_content_not_place(tiny: TinyModel, copy: Path) -> None:
    original = ModelFolder.open(tiny("llama"))
    same = ModelFolder.open(copy)
    assert same.model_digest() == original.model_digest()
    assert same.tokenizer_digest() == original.tokenizer_digest() != ""
    assert same.eos_token_ids == (258, 256)
    rewrite_config(copy, rms_norm_eps=1e-3)
    assert ModelFolder.open(copy).model_digest() != original.model_digest()
    shutil.copy(tiny("llama") / "config.json", copy / "config.json")
    rewrite_weights(copy, lambda tensors: tensors["model.norm.weight"].add_(1.0))
    assert ModelFolder.open(copy).model_digest() != original.model_digest()
    assert ModelFolder.open(tiny("qwen3")).model_digest() != original.model_digest()


def test_pods_whose_answers_end_otherwise_do_not_pair(copy: Path) -> None:
    original = ModelFolder.open(copy)
    path = copy / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [256, 258], "temperature": 0.5}))
    assert ModelFolder.open(copy).model_digest() == original.model_digest()
    path.write_text(json.dumps({"eos_token_id": 5}))
    assert ModelFolder.open(copy).eos_token_ids == (5,)
    assert ModelFolder.open(copy).model_digest() != original.model_digest()


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        ModelFolder.open(tmp_path)


def test_a_pool_says_what_it_holds_and_refuses_to_be_too_small(tiny: TinyModel) -> None:
    layout = KVLayout(num_layers=2, num_kv_heads=2, head_dim=8, block_size=16, dtype="bfloat16")
    cache = KVCache.open(layout, 10 * layout.block_bytes + 5)
    assert (cache.num_blocks, cache.sizing.num_tokens) == (10, 160)
    assert tuple(cache.pool.shape) == (10, 2, 2, 2, 16, 8)
    assert "10 blocks" in cache.describe()
    assert "160 tokens" in cache.describe()
    with pytest.raises(ValueError, match="less than one block"):
        KVCache.open(layout, layout.block_bytes - 1)
    with pytest.raises(ValueError, match="holds 400 tokens"):
        engine(tiny("llama"), max_model_len=512, kv_memory_bytes=400 * 768)
    with pytest.raises(ValueError, match="512 positions"):
        engine(tiny("llama"), max_model_len=513)


def test_kv_that_is_more_than_a_process_may_have_is_refused_before_it_is_taken(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, where it would be killed for it: here the limit is a number."""
    monkeypatch.setattr(memory_limit, "usable_bytes", lambda: 3 << 20)
    asked = f"^kv_memory_bytes {2 << 20} and host_kv_memory_bytes {2 << 20}: there is no room .* have {3 << 20}$"
    with pytest.raises(ValueError, match=asked):
        engine(tiny("llama"), max_model_len=512, kv_memory_bytes=2 << 20, host_kv_memory_bytes=2 << 20)
    engine(tiny("llama"), max_model_len=512, kv_memory_bytes=2 << 20, host_kv_memory_bytes=1 << 20).close()


@pytest.mark.parametrize("is_memory", [True, False])
def test_a_file_counts_as_memory_where_it_lies_in_it(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_memory: bool
) -> None:
    monkeypatch.setattr(memory_limit, "usable_bytes", lambda: 3 << 20)
    monkeypatch.setattr(memory_limit, "is_memory", lambda folder: is_memory and folder == tmp_path)
    settings = {"kv_memory_bytes": 2 << 20, "host_kv_memory_bytes": 2 << 20, "host_kv_dir": str(tmp_path)}
    refused = pytest.raises(ValueError, match="there is no room") if is_memory else contextlib.nullcontext()
    with refused:
        engine(tiny("llama"), max_model_len=512, **settings).close()  # type: ignore[arg-type]
    assert bool([*tmp_path.glob("*.kv")]) is not is_memory


@pytest.mark.parametrize("name", ["kv_memory_bytes", "host_kv_memory_bytes"])
@pytest.mark.parametrize("num_bytes", [1 << 50, 10**15, 1 << 62, 10**30])
@pytest.mark.parametrize("in_a_file", [False, True])
def test_memory_that_there_is_not_is_refused_by_the_name_of_what_asked_for_it(
    tiny: TinyModel, name: str, num_bytes: int, in_a_file: bool
) -> None:
    settings: dict[str, Any] = {name: num_bytes}
    pool_fd = os.memfd_create("pool") if in_a_file else -1
    try:
        with pytest.raises(ValueError, match=f"^{name} {num_bytes}: there is no room"):
            engine(tiny("llama"), pool_fd=pool_fd, **settings)
    finally:
        if in_a_file:
            os.close(pool_fd)


def test_two_tokens_are_the_least_that_a_sequence_may_have(copy: Path) -> None:
    two = engine(copy, max_model_len=2)
    warm_up(two)
    assert run_all(two.loop, [spec("a", [5], greedy(9))]).tokens["a"] != []
    rewrite_config(copy, max_position_embeddings=1)
    with pytest.raises(ValueError, match="the model has 1 positions; a prompt and what follows it are 2 at least"):
        engine(copy, max_model_len=0)
