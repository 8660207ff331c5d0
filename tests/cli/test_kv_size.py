"""`pagewire kv-size` on real folders: its figures, its refusals, and that an engine gets the same pool."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_model
from engine_runs import engine
from transformers import FalconConfig

from pagewire.core.kv_sizing import layout_of

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096,
}  # fmt: skip

# The command must not need what only an engine has.
RUN = "import sys; sys.modules['torch'] = None; from pagewire.cli.main import main; main()"


def kv_size(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", RUN, "kv-size", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    return tmp_path


def test_the_table_and_the_json_say_what_fits(llama: Path) -> None:
    asked = ("--model", str(llama), "--concurrency", "64", "--context", "8192", "--memory", "80GiB")
    done = kv_size(*asked)
    assert done.returncode == 0, done.stderr
    assert "128 KiB: 2 x 32 layers x 8 KV heads x 128 x bfloat16" in done.stdout
    assert "80 GiB: 40960 blocks, 655360 tokens" in done.stdout
    assert "fit, 15.9 GiB (8128 blocks) free" in done.stdout
    told = json.loads(kv_size(*asked, "--json").stdout)
    assert (told["token_bytes"], told["sequences"], told["headroom_blocks"]) == (131_072, 79, 40_960 - 64 * 513)


def test_quantised_kv_counts_its_scales(llama: Path) -> None:
    asked = ("--model", str(llama), "--memory", "80GiB", "--kv-dtype", "fp8")
    assert "65 KiB: 2 x 32 layers x 8 KV heads x 128 x fp8, scales included" in kv_size(*asked).stdout
    told = json.loads(kv_size(*asked, "--json").stdout)
    assert (told["dtype"], told["scale_bytes"], told["token_bytes"]) == ("fp8", 2, 131_072 // 2 * 130 // 128)


def test_what_does_not_fit_is_exit_code_1(llama: Path) -> None:
    done = kv_size("--model", str(llama), "--concurrency", "80", "--context", "8192", "--memory", "80GiB")
    assert done.returncode == 1
    assert "do not fit, 160 MiB (80 blocks) missing" in done.stdout
    shared = kv_size(
        "--model", str(llama), "--concurrency", "80", "--context", "8192", "--memory", "80GiB", "--tensor-parallel", "2"
    )
    assert shared.returncode == 0
    assert "4 KV heads" in shared.stdout


def test_auto_is_what_an_engine_here_takes(tmp_path: Path) -> None:
    folder = tiny_model.build(tmp_path)
    here = engine(folder, dtype="auto", kv_memory_bytes=1 << 20).ready
    asked = ["kv-size", "--model", str(folder), "--memory", "1MiB", "--kv-dtype", "auto", "--context", "99", "--json"]
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["dtype"], told["blocks"]) == (here.layout.dtype, here.num_blocks)


def with_engine(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "kv-size", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_context_beyond_the_model_is_said(tmp_path: Path) -> None:
    folder = tiny_model.build(tmp_path)
    positions = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    for run in (kv_size, with_engine):
        asked = ("--model", str(folder), "--memory", "64MiB", "--context")
        beyond = run(*asked, str(positions + 1))
        assert (beyond.returncode, beyond.stderr) == (0, "")
        assert f"{positions} positions: {positions + 1} tokens are more than an engine serves" in beyond.stdout
        assert "more than an engine serves" not in run(*asked, str(positions)).stdout
        told = json.loads(run(*asked, "99", "--json").stdout)
        assert (told["max_positions"], told["refusal"]) == (positions, None)


def test_a_stretched_model_has_the_positions_that_an_engine_says(tmp_path: Path) -> None:
    folder = tiny_model.build(tmp_path, "yarn_rope")
    expected = engine(folder, max_model_len=0, kv_memory_bytes=64 << 20).ready.fingerprint.max_model_len
    asked = ("--model", str(folder), "--memory", "1MiB", "--context", "99", "--json")
    assert json.loads(with_engine(*asked).stdout)["max_positions"] == expected
    assert json.loads(kv_size(*asked).stdout)["max_positions"] is None  # without an engine nobody knows


def test_a_model_that_an_engine_refuses_is_sized_and_said_to_be_refused(tmp_path: Path) -> None:
    config = FalconConfig(vocab_size=259, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, alibi=False)
    config.architectures = ["FalconForCausalLM"]
    config.save_pretrained(tmp_path)
    asked = ("--model", str(tmp_path), "--memory", "64MiB", "--context", "99")
    done = with_engine(*asked)
    assert done.returncode == 0
    assert "an engine refuses it: FalconForCausalLM is not supported: its attention is code of its own" in done.stdout
    assert "code of its own" in json.loads(with_engine(*asked, "--json").stdout)["refusal"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kv-dtype", "auto"), "kv_dtype auto is the engine's choice, and there is no engine here"),
        (("--block-size", "17"), "block_size 17 is not one of"),
        (("--dtype", "int4"), "dtype 'int4' is not one of"),
        (("--memory", "much"), "'much' is not a size"),
        (("--tensor-parallel", "3"), "8 KV heads cannot be shared by 3"),
    ],
)
def test_wrong_wishes_are_one_line(llama: Path, arguments: tuple[str, ...], message: str) -> None:
    done = kv_size("--model", str(llama), *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", sorted(tiny_model.ARCHITECTURES))
def test_an_engine_takes_the_same_blocks(tmp_path: Path, name: str) -> None:
    folder = tiny_model.build(tmp_path, name)
    config = json.loads((folder / "config.json").read_text())
    built = engine(folder, kv_memory_bytes=1 << 20, max_model_len=128)
    assert built.ready.layout == layout_of(config, block_size=16, dtype="float32")
    told = json.loads(kv_size("--model", str(folder), "--memory", "1MiB", "--dtype", "float32", "--json").stdout)
    assert told["blocks"] == built.ready.num_blocks
