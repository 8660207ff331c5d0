"""A GGUF file becomes an ordinary folder: same values, same tokenizer, and no trace of the quantisation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_model import SPECIAL_TOKENS, VOCAB_SIZE
from tokenizers import Tokenizer

from pagewire.engine.gguf_folder import convert
from pagewire.engine.model_folder import ModelFolder

TinyModel = Callable[[str], Path]

HEADS, KV_HEADS = 4, 2
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{NAMES[part.removesuffix('.weight')]}.weight"


def stored(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as llama.cpp stores it: the rows of q and k pair neighbours, not halves."""
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2] if "." in name else "")
    if heads is None:
        return tensor
    return tensor.view(heads, 2, -1, tensor.shape[-1]).transpose(1, 2).reshape(tensor.shape)


def write_gguf(
    model: Path,
    path: Path,
    more: Callable[[gguf.GGUFWriter], object] | None = None,
    names: dict[str, str] | None = None,
) -> dict[str, torch.Tensor]:
    """Write the tiny Llama as a GGUF file whose matrices are Q4_1; return what they dequantise to.

    `more` writes what else is in it, `names` are other ones of some tensors.
    """
    tensors = load_file(model / "model.safetensors")
    vocab = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(3)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_tokenizer_model("gpt2")
    tokens = [*sorted(vocab, key=vocab.__getitem__), *SPECIAL_TOKENS]
    tokens[200] = "ab"  # the reader wants a merge, and a merge wants its token
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] * 3)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    if more is not None:
        more(writer)
    kept = {}
    for name, tensor in tensors.items():
        values = stored(name.removesuffix(".weight") + ".weight", tensor).contiguous().numpy()
        if values.ndim == 2:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(
                (names or {}).get(name, gguf_name(name)), packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1
            )
            values = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(gguf_name(name), values)
        kept[name] = torch.from_numpy(np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


@pytest.fixture
def source(tiny: TinyModel) -> Path:
    return tiny("llama")


def test_values_survive_exactly_and_the_folder_is_ordinary(source: Path, tmp_path: Path) -> None:
    kept = write_gguf(source, tmp_path / "tiny.gguf")
    said: list[float] = []
    convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda what, done: said.append(done))
    assert said == sorted(said)
    assert said[-1] == 1.0
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert set(written) == set(kept)
    for name, values in kept.items():
        assert torch.equal(stored(name, written[name]), values), name
        assert written[name].dtype == torch.float32
    folder = ModelFolder.open(tmp_path / "out")
    assert "quantization_config" not in folder.hf_config
    assert folder.hf_config["architectures"] == ["LlamaForCausalLM"]
    assert folder.eos_token_ids == (258,)
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages[0]['content'] }}"
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode("xyz<|im_end|>").ids[-1] == 258
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("llama.block_count", 10**9, r"it says llama.block_count 1000000000, and has \d+ tensors of \d+ weights"),
        ("llama.feed_forward_length", 10**9, "it says llama.feed_forward_length 1000000000"),
        ("llama.feed_forward_length", 1000, r"tiny.gguf cannot be read: it speaks of \d+ weights and has \d+"),
        ("llama.context_length", 1 << 25, "it says llama.context_length 33554432"),
        ("llama.attention.head_count", 0, "cannot be read: ZeroDivisionError"),
    ],
)
def test_no_size_is_believed_that_the_tensors_do_not_bear_out(
    source: Path, tmp_path: Path, name: str, number: int, said: str
) -> None:
    write_gguf(source, tmp_path / "tiny.gguf")
    reader = gguf.GGUFReader(tmp_path / "tiny.gguf", "r+")
    reader.fields[name].parts[-1][0] = number
    reader.data.flush()
    with pytest.raises(ValueError, match=said):
        convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda what, done: None)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32)),
            r"speaks of \d+ weights and has",
        ),
        (
            lambda writer: writer.add_tensor("blk.0.attn_q.bias", np.ones(64, np.float32)),
            r"speaks of \d+ weights and has",
        ),
        (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN), r"its rope is scaled \(yarn by 1.0\)"),
        (lambda writer: writer.add_rope_scaling_factor(4.0), r"its rope is scaled \(linear by 4.0\)"),
        (lambda writer: writer.add_float32("llama.rope.scale_linear", 2.0), r"its rope is scaled \(linear by 2.0\)"),
    ],
    ids=["frequencies", "biases", "yarn", "linear", "older linear"],
)
def test_what_the_reader_would_pass_over_is_refused(
    source: Path, tmp_path: Path, more: Callable[[gguf.GGUFWriter], object], said: str
) -> None:
    write_gguf(source, tmp_path / "tiny.gguf", more)
    with pytest.raises(ValueError, match=said):
        convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda what, done: None)
    assert not (tmp_path / "out").exists()


def test_a_rope_that_is_said_to_be_plain_is_no_scaled_one(source: Path, tmp_path: Path) -> None:
    def plain(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(4.0)

    write_gguf(source, tmp_path / "tiny.gguf", plain)
    convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda what, done: None)
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_tensor_that_goes_by_another_name_is_missing(source: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    write_gguf(source, tmp_path / "tiny.gguf", names={name: "blk.1.ffn_sideways.weight"})
    with pytest.raises(ValueError, match=f"it has no tensor for {name}"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda what, done: None)


def test_a_broken_file_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"not a GGUF file at all")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("{}")
    with pytest.raises((OSError, ValueError)):
        convert(tmp_path / "broken.gguf", tmp_path / "out", lambda what, done: None)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["out"]
    assert (tmp_path / "out" / "config.json").read_text() == "{}"
