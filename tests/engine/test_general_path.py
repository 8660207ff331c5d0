"""Architectures without a native decoder: greedy tokens in fp32 equal transformers' own `generate`, however batched.

Tiny random weights: this shows that keys, values, masks and positions reach attention exactly, not that answers make
sense. Refusals are shown on configs alone.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
import transformers
from engine_runs import assert_at_rest, engine, greedy, run_all, spec
from reference import generate
from safetensors.torch import load_file, save_file
from transformers import (
    BloomConfig,
    CodeGenConfig,
    DiffLlamaConfig,
    DogeConfig,
    FalconConfig,
    Gemma4TextConfig,
    GPTJConfig,
    GPTNeoConfig,
    JambaConfig,
    JetMoeConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MiniMaxConfig,
    MoshiConfig,
    MptConfig,
    Olmo3Config,
    OpenAIGPTConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
    T5Config,
    XGLMConfig,
)
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function
from transformers.models.olmo.modeling_olmo import OlmoAttention

from pagewire.core.engine_messages import StepDone
from pagewire.core.messages import Role
from pagewire.engine.model.attention_interface import NAME, MaskRule, attending
from pagewire.engine.model.attention_survey import LayerAttention, check_layers, window_of
from pagewire.engine.model.row_check import check_rows
from pagewire.engine.model.transformers_model import TransformersArchitecture
from pagewire.engine.model_folder import ModelFolder
from pagewire.kernels import attention_plan
from pagewire.kernels.ragged import Ragged

TinyModel = Callable[[str], Path]

NUM_TOKENS = 12


def prompts() -> list[list[int]]:
    chance = random.Random(1)
    shared = [chance.randrange(256) for _ in range(70)]
    plain = [[chance.randrange(256) for _ in range(length)] for length in (1, 15, 16, 33, 90)]
    return [*plain, shared, [*shared, *(chance.randrange(256) for _ in range(11))]]


@pytest.fixture(scope="module")
def expected(tiny: TinyModel) -> Callable[[str], list[list[int]]]:
    return functools.cache(lambda name: generate(tiny(name), prompts(), NUM_TOKENS))


@pytest.mark.parametrize("name", sorted(tiny_model.GENERAL))
@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 16, "chunk_size": 512, "max_num_batched_tokens": 1024},
        {"block_size": 16, "chunk_size": 7, "max_num_batched_tokens": 40, "kv_order": "head_outer"},
        {"block_size": 64, "chunk_size": 33, "max_num_batched_tokens": 64, "max_num_seqs": 3},
    ],
    ids=["whole", "small-chunks", "few-at-once"],
)
def test_mixed_batches_and_prefix_hits_equal_generate(
    tiny: TinyModel, expected: Callable[[str], list[list[int]]], name: str, settings: dict[str, Any]
) -> None:
    built = engine(tiny(name), **{"max_model_len": 128, "kv_memory_bytes": 8 << 20, **settings})
    built.cache.pool.fill_(float("nan"))
    for turn in ("first", "again"):
        asked = [spec(f"{turn} {i}", prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(prompts())]
        heard = run_all(built.loop, asked)
        assert [heard.tokens[f"{turn} {i}"] for i in range(len(asked))] == expected(name)
    cached = [heard.ends[f"again {i}"].cached_tokens for i in range(len(asked))]
    size = settings["block_size"]
    assert cached == [(len(prompt) - 1) // size * size for prompt in prompts()]
    assert_at_rest(built.loop)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "deepseek_v3"])
def test_contexts_are_read_where_they_lie(tiny: TinyModel, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capped scores, sinks and heads that are no whole vectors attend natively on a CPU: torch plans no copy."""
    built = engine(tiny(name), max_model_len=128, kv_memory_bytes=8 << 20)
    planned: list[Ragged] = []
    monkeypatch.setattr(attention_plan, "plan_attention", lambda ragged, *_: planned.append(ragged))
    heard = run_all(built.loop, [spec(str(i), prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(prompts())])
    assert not planned
    assert {len(tokens) for tokens in heard.tokens.values()} == {NUM_TOKENS}


def test_a_model_is_told_of_layers_in_groups(tiny: TinyModel) -> None:
    built = engine(tiny("gemma2"), Role.PREFILL, layer_groups=3, max_model_len=128)
    built.cache.pool.fill_(7.0)  # somebody else's
    copies: list[tuple[int, torch.Tensor]] = []

    def tell(step: StepDone) -> None:
        (chunk,) = step.chunks
        assert chunk.group is not None
        copies.append((chunk.group, built.cache.pool[list(chunk.block_ids), chunk.group].clone()))

    built.loop.on_group = tell
    heard = run_all(built.loop, [spec("a", prompts()[3], greedy(4))])
    assert [group for group, _ in copies] == [0, 1, 2]
    for group, copy in copies:
        assert torch.equal(copy, built.cache.pool[list(heard.chunks[-1].block_ids), group])
        assert (copy[-1, :, :, len(prompts()[3]) % 16 :] == 0).all()
        assert (copy[:-1] != 7).all()


SHAPE: dict[str, Any] = {"vocab_size": 259, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
OLD_SHAPE: dict[str, Any] = {"vocab_size": 259, "n_embd": 64, "n_layer": 3, "n_head": 4}


@pytest.mark.parametrize(
    ("config", "name", "why"),
    [
        (BloomConfig(**SHAPE), "BloomForCausalLM", "ALiBi"),
        (FalconConfig(**SHAPE, alibi=True), "FalconForCausalLM", "ALiBi"),
        (MptConfig(vocab_size=259, d_model=64, n_layers=3, n_heads=4), "MptForCausalLM", "ALiBi"),
        (
            MambaConfig(vocab_size=259, hidden_size=64, num_hidden_layers=3),
            "MambaForCausalLM",
            "states beside keys and values",
        ),
        (JambaConfig(**SHAPE, num_key_value_heads=2), "JambaForCausalLM", "states beside keys and values"),
        (
            Llama4TextConfig(**SHAPE, num_key_value_heads=2, head_dim=16, attention_chunk_size=32),
            "Llama4ForCausalLM",
            "its mask is no rule",
        ),
        (T5Config(vocab_size=259, d_model=64), "T5ForConditionalGeneration", "an encoder-decoder"),
        (FalconConfig(**SHAPE, alibi=False), "FalconForCausalLM", "code of its own"),
        (GPTJConfig(**OLD_SHAPE, rotary_dim=8), "GPTJForCausalLM", "code of its own"),
        (CodeGenConfig(**OLD_SHAPE, rotary_dim=8), "CodeGenForCausalLM", "code of its own"),
        (OpenAIGPTConfig(**OLD_SHAPE), "OpenAIGPTLMHeadModel", "code of its own"),
        (
            GPTNeoConfig(vocab_size=259, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global"], 2]]),
            "GPTNeoForCausalLM",
            "code of its own",
        ),
        (
            XGLMConfig(vocab_size=259, d_model=64, num_layers=2, attention_heads=4, ffn_dim=64),
            "XGLMForCausalLM",
            "code of its own",
        ),
        (DogeConfig(**SHAPE), "DogeForCausalLM", "computes with the values of its attention mask"),
        (DiffLlamaConfig(**SHAPE, intermediate_size=96), "DiffLlamaForCausalLM", "it attends 6 times in 3 layers"),
        (MiniMaxConfig(**SHAPE, head_dim=16, num_key_value_heads=2), "MiniMaxForCausalLM", "linear attention"),
        (Lfm2Config(**SHAPE, num_key_value_heads=2), "Lfm2ForCausalLM", "convolution"),
        (
            JetMoeConfig(vocab_size=259, hidden_size=64, num_hidden_layers=3, kv_channels=16, num_key_value_heads=2),
            "JetMoeForCausalLM",
            "routing by lists",
        ),
        (
            MoshiConfig(**SHAPE, max_position_embeddings=512, sliding_window=20),
            "MoshiForCausalLM",
            "a sliding window of 20 tokens, below its 512 positions, and the mask of no layer shows one",
        ),
        (Gemma4TextConfig(**SHAPE, num_key_value_heads=2, head_dim=16), "Gemma4ForCausalLM", "its layers differ"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalnum() else "",
)
def test_what_cannot_work_is_refused_before_a_weight_is_read(
    tmp_path: Path, config: PretrainedConfig, name: str, why: str
) -> None:
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{name} is .*{why}") as refused:
        engine(tmp_path)
    assert not re.search(r"Error|MaskRule|'pagewire'|meta", str(refused.value)), "in words, not in those of the code"


@pytest.mark.parametrize(
    ("kind", "architecture", "name"),
    [("gemma2", "Gemma2ForCausalLM", "num_hidden_layers"), ("gpt2", "GPT2LMHeadModel", "n_layer")],
)
def test_more_layers_than_any_model_has_are_refused_before_anything_is_kept_for_each(
    tmp_path: Path, kind: str, architecture: str, name: str
) -> None:
    said = {"model_type": kind, "architectures": [architecture], name: 50_000_000}
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ValueError, match=f"{name} is not a whole number from 1 to 10000: 50000000"):
        engine(tmp_path)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (MoshiConfig(**SHAPE, max_position_embeddings=512, sliding_window=512), 0),
        (Qwen3MoeConfig(**SHAPE, max_position_embeddings=512, use_sliding_window=False, sliding_window=20), 0),
        (Qwen3MoeConfig(**SHAPE, max_position_embeddings=512, use_sliding_window=True, sliding_window=20), 20),
        (Olmo3Config(**SHAPE, sliding_window=20, layer_types=["full_attention"] * 3), 0),
        (Olmo3Config(**SHAPE, sliding_window=20, layer_types=["sliding_attention", *["full_attention"] * 2]), 20),
    ],
    ids=["all that there is", "off", "on", "layers that are full", "a layer that slides"],
)
def test_a_window_that_is_not_used_or_that_masks_show_is_none_to_refuse(
    tmp_path: Path, config: PretrainedConfig, window: int
) -> None:
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(tmp_path)
    found = TransformersArchitecture.of(ModelFolder.open(tmp_path), "a test")
    assert max(layer.window for layer in found.layers) == window


def test_layers_of_unequal_shape_are_refused() -> None:
    layer = LayerAttention(num_kv_heads=2, head_dim=16, window=0)
    with pytest.raises(ValueError, match=r"its layers differ .*\[\(2, 16\), \(2, 32\)\]"):
        check_layers((layer, dataclasses.replace(layer, head_dim=32)), 2)
    with pytest.raises(ValueError, match="it attends 1 times in 2 layers"):
        check_layers((layer,), 2)


def rowwise(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return logits `[T, V]` that depend on a row's own token and position."""
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    return torch.sin(tokens[:, None] * 0.1 + torch.arange(64)) @ weight + 9 * torch.cos(
        positions[:, None] * 0.2 + torch.arange(32)
    )


@pytest.mark.parametrize(
    "leaks",
    [
        lambda tokens, positions: rowwise(tokens, positions).cumsum(0),
        lambda tokens, positions: rowwise(tokens, positions) + 0.5 * rowwise(tokens, positions).roll(1, 0),
        lambda tokens, positions: rowwise(tokens, torch.arange(len(tokens))),
        lambda tokens, positions: rowwise(tokens, positions * 512 // (positions.max() + 1)),
    ],
    ids=["state", "convolution", "counted positions", "the batch's longest"],
)
def test_rows_that_meet_elsewhere_than_in_attention_are_refused(
    leaks: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    device = torch.device("cpu")
    check_rows(rowwise, 100, 512, device)
    check_rows(lambda tokens, positions: rowwise(tokens, positions).bfloat16(), 100, 512, device)
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ValueError, match="meet elsewhere than in attention"):
            check_rows(lambda tokens, positions, dtype=dtype: leaks(tokens, positions).to(dtype), 100, 512, device)  # type: ignore[misc]


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj"])
def test_weights_that_are_read_elsewhere_than_in_a_product_are_refused(
    tiny: TinyModel, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is packed leaves NaN behind, which shows at start, though no attention is computed then."""
    define = OlmoAttention.forward

    def reading(self: Any, *given: Any, **named: Any) -> Any:
        linear = getattr(self, part)
        linear.forward = lambda x: torch.nn.functional.linear(x, linear.weight)
        return define(self, *given, **named)

    monkeypatch.setattr(OlmoAttention, "forward", reading)
    with pytest.raises(ValueError, match="its logits are no numbers"):
        engine(tiny("olmo"))


@pytest.mark.parametrize(("name", "positions"), [("phi3_longrope", 128), ("olmo_dynamic", 512)])
def test_what_turns_all_by_the_longest_is_served_as_far_as_it_is_plain(
    tiny: TinyModel, name: str, positions: int
) -> None:
    said = f"max_model_len {positions + 1} is above the model's {positions} positions"
    with pytest.raises(ValueError, match=said):
        engine(tiny(name), max_model_len=positions + 1)


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}, 48),
        ({"rope_type": "yarn", "factor": 8.0}, 8 * 48),
    ],
)
@pytest.mark.parametrize("among", [{}, {"original_max_position_embeddings": 64}])
def test_original_positions_beside_the_parameters_of_rope_are_those_that_count(
    tmp_path: Path, scaling: dict[str, Any], positions: int, among: dict[str, Any]
) -> None:
    LlamaConfig(**SHAPE, hidden_act="gelu", architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    said = {"max_position_embeddings": 256, "original_max_position_embeddings": 48, "rope_parameters": scaling | among}
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    found = TransformersArchitecture.of(ModelFolder.open(tmp_path), "a test")
    assert found.max_positions == positions
    rotary = transformers.AutoModelForCausalLM.from_config(found.config).model.rotary_emb
    assert rotary.config.rope_parameters["original_max_position_embeddings"] == 48


@pytest.mark.parametrize("window", [1, 2, 63, 64, 0])
def test_a_window_is_read_from_a_mask(window: int) -> None:
    rule = sliding_window_causal_mask_function(window) if window else causal_mask_function
    assert window_of(MaskRule(rule), 64) == (window or 64)


@pytest.mark.parametrize(
    "rule",
    [
        lambda batch, head, query, key: key >= 0,
        lambda batch, head, query, key: (key <= query) & (key // 16 == query // 16),
        lambda batch, head, query, key: (key <= query) & (key != 3),
        lambda batch, head, query, key: torch.zeros(5, dtype=torch.bool)[key],
    ],
    ids=["open to the future", "chunked", "with a hole", "over the batch's tokens"],
)
def test_another_mask_is_refused(rule: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="its mask is n"):
        window_of(MaskRule(rule), 64)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"position_bias": torch.zeros(1)}, "asks for position_bias"),
        ({"dropout": 0.1}, "not causal attention without dropout"),
        ({"is_causal": False}, "not causal attention without dropout"),
    ],
)
def test_what_attention_does_not_know_is_refused(asked: dict[str, Any], named: str) -> None:
    q = torch.zeros(1, 2, 3, 8)
    ours = transformers.AttentionInterface()[NAME]
    with attending(lambda call: call.q):
        ours(torch.nn.Identity(), q, q, q, None, output_attentions=False, position_ids=torch.zeros(1, 3))
        with pytest.raises(ValueError, match=named):
            ours(torch.nn.Identity(), q, q, q, None, **asked)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), r"missing model\.norm\.weight; unexpected none"),
        (
            lambda tensors: tensors.update({"model.extra": torch.zeros(1)}),
            r"missing none; unexpected model\.extra; mismatched none",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}),
            r"mismatched .*model\.norm\.weight.*3.*64",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(
    tiny: TinyModel, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], named: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny("olmo2"), folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=named):
        engine(folder)
