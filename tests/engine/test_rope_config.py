"""Angles equal those of transformers' own modules for the same config, and absent entries mean what they mean there."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pagewire.engine.model import llama, mistral, qwen2, qwen3
from pagewire.engine.model.rope_config import reach, rope_of
from pagewire.kernels.rope import MOST_POSITIONS, Rotary, cos_sin, inverse_frequencies

HEAD_DIM = 32
CPU = torch.device("cpu")
POSITIONS = torch.tensor([0, 1, 63, 64, 65, 200, 511])

numbers = {
    "factor": st.sampled_from([1.0, 2.0, 4.0, 7.5]),
    "rope_theta": st.sampled_from([100.0, 10000.0, 5e5]),
    "original_max_position_embeddings": st.sampled_from([16, 64, 4096]),
}
optional = {
    "beta_fast": st.sampled_from([32, 16]),
    "beta_slow": st.sampled_from([1, 2]),
    "truncate": st.booleans(),
    "attention_factor": st.sampled_from([0.5, 1.25]),
    "mscale": st.sampled_from([0.7, 1.0]),
    "mscale_all_dim": st.sampled_from([0.5, 1.0]),
}
kinds = st.one_of(
    st.fixed_dictionaries({"rope_type": st.just("default"), "rope_theta": numbers["rope_theta"]}),
    st.fixed_dictionaries(
        {"rope_type": st.just("linear"), "rope_theta": numbers["rope_theta"], "factor": numbers["factor"]}
    ),
    st.fixed_dictionaries({"rope_type": st.just("yarn"), **numbers}, optional=optional),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("llama3"),
            "low_freq_factor": st.sampled_from([1.0, 2.0]),
            "high_freq_factor": st.sampled_from([4.0, 8.0]),
            **numbers,
        }
    ),
)


def config_of(parameters: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=128, num_attention_heads=4, max_position_embeddings=64, rope_parameters=dict(parameters)
    )


def theirs(config: LlamaConfig, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    return cos[0, :, : HEAD_DIM // 2], sin[0, :, : HEAD_DIM // 2]


@settings(max_examples=60, deadline=None)
@given(parameters=kinds)
def test_angles_equal_those_of_transformers(parameters: dict[str, Any]) -> None:
    config = config_of(parameters)
    ours = Rotary(rope_of(config.to_dict()), HEAD_DIM, 512, CPU).cos_sin(POSITIONS)
    torch.testing.assert_close(ours, theirs(config, POSITIONS), rtol=0, atol=5e-5)


@settings(max_examples=30, deadline=None)
@given(parameters=kinds)
def test_an_angle_that_is_looked_up_is_the_one_that_would_be_computed(parameters: dict[str, Any]) -> None:
    """To the last bit, in any order and number: caches hold keys that were rotated by either."""
    own = rope_of(config_of(parameters).to_dict())
    looked_up = Rotary(own, HEAD_DIM, 512, CPU).cos_sin(POSITIONS.flip(0))
    frequencies = inverse_frequencies(own, HEAD_DIM)
    of_more = Rotary(own, HEAD_DIM, MOST_POSITIONS + 1, CPU).cos_sin(POSITIONS.flip(0))
    assert all(torch.equal(one, other) for one, other in zip(looked_up, of_more, strict=True))
    for place, position in enumerate(POSITIONS.flip(0).tolist()):
        computed = cos_sin(frequencies, torch.tensor([position]))
        for found, expected in zip(looked_up, computed, strict=True):
            assert torch.equal(found[place], expected[0] * own.attention_factor)


@pytest.mark.parametrize("factor", [2.0, 7.5])
def test_dynamic_angles_are_those_of_a_sequence_that_grows_token_by_token(factor: float) -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": factor}
    config = config_of(parameters)
    grown = [theirs(config, torch.tensor([int(position)])) for position in POSITIONS]
    cos, sin = (torch.cat([pair[i] for pair in grown]) for i in (0, 1))
    ours = Rotary(rope_of(config.to_dict()), HEAD_DIM, 512, CPU).cos_sin(POSITIONS)
    torch.testing.assert_close(ours, (cos, sin), rtol=0, atol=5e-5)
    plain = Rotary(rope_of(config_of({"rope_type": "default"}).to_dict()), HEAD_DIM, 512, CPU).cos_sin(POSITIONS)
    assert torch.equal(ours[0][:3], plain[0][:3])
    assert not torch.allclose(ours[0][3:], plain[0][3:], atol=1e-3)


@pytest.mark.parametrize(
    ("family", "config_class"),
    [(llama, LlamaConfig), (mistral, MistralConfig), (qwen2, Qwen2Config), (qwen3, Qwen3Config)],
)
def test_an_absent_entry_means_what_it_means_to_transformers(
    family: ModuleType, config_class: type[PretrainedConfig]
) -> None:
    said = {"vocab_size": 99, "hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 32}
    ours = family.decoder_config({**family.DEFAULTS, **said, **heads})
    full = config_class(**said, **heads).to_dict()
    theirs = family.decoder_config({**family.DEFAULTS, **full})
    assert ours == theirs
    defaults = config_class().to_dict()
    derived = {"layer_types", "sliding_window"} if "use_sliding_window" in defaults else set()
    assert {key: family.DEFAULTS[key] for key in family.DEFAULTS if key not in derived} == {
        key: defaults[key] for key in family.DEFAULTS if key not in derived
    }


def test_how_far_a_scaling_reaches() -> None:
    base = {"max_position_embeddings": 64}
    assert reach(base) == 64
    assert reach({**base, "rope_scaling": {"type": "linear", "factor": 4.0}}) == 64
    assert reach({**base, "rope_scaling": {"type": "dynamic", "factor": 4.0}}) == 256
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert reach({**base, "rope_scaling": yarn}) == 128
    assert reach({"max_position_embeddings": 128, "rope_scaling": yarn}) == 128
