"""`pagewire slo plan` as a process: its table, its JSON, its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from pagewire_process import Ended, pagewire

MODEL = {
    "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 2048, "vocab_size": 1000,
}  # fmt: skip
KINDS = (
    '[[kind]]\nname = "small"\nflops = 1e13\nbandwidth = 1e11\nmemory = 4e9\nprice_per_hour = 0.5\nlink = 1e9\n'
    '[[kind]]\nname = "large"\nflops = 4e13\nbandwidth = 4e11\nmemory = 8e9\nprice_per_hour = 3\nlink = 1e9\n'
)
LOAD = ("--rate", "8", "--requests", "20", "--input", "200-400", "--output", "8-16", "--chunk-sizes", "256")


async def slo_plan(folder: Path, *flags: str, stdout: int = asyncio.subprocess.PIPE) -> Ended:
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "kinds.toml").write_text(KINDS)
    model = ("--model", str(folder), "--devices", str(folder / "kinds.toml"))
    return await pagewire("slo", "plan", *model, *flags, stdout=stdout)


async def test_a_plan_is_told_and_written(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    code, out, err = await slo_plan(
        tmp_path, *LOAD, "--slo", "ttft=500ms,tpot=20ms", "--max-pods", "3", "--json", str(file)
    )
    assert code == 0, err
    assert "1C small (chunk 256, prefix_affinity) keeps ttft=500ms,tpot=20ms for 0.9 of requests for 0.50" in out
    assert "clusters simulated" in err
    told = json.loads(file.read_text())
    assert told["chosen"] == "colocated"
    assert (told["colocated"]["colocated"], told["colocated"]["decode_kind"]) == (1, "small")
    assert told["apart"]["price_per_hour"] == 1.0
    assert {each["what"] for each in told["what_if"]} >= {"links half as fast", "prompts twice as long"}


async def test_every_turn_of_a_session_counts(tmp_path: Path) -> None:
    """Most of them come after the last session has begun, and theirs are the longest prompts."""
    file = tmp_path / "plan.json"
    sessions = ("--rate", "8", "--requests", "10", "--turns", "4", "--think-s", "3", "--input", "100", "--output", "8")
    flags = ("--chunk-sizes", "256", "--slo", "ttft=10s", "--max-pods", "1", "--json", str(file))
    code, _, err = await slo_plan(tmp_path, *sessions, *flags)
    assert code == 0, err
    told = json.loads(file.read_text())
    assert told["colocated"]["attained"]["total"] == 40


async def test_what_was_found_is_written_though_nobody_reads_the_table(tmp_path: Path) -> None:
    file, (unread, out) = tmp_path / "plan.json", os.pipe()
    os.close(unread)
    await slo_plan(tmp_path, *LOAD, "--slo", "ttft=1s", "--max-pods", "1", "--json", str(file), stdout=out)
    os.close(out)
    assert json.loads(file.read_text())["chosen"] == "colocated"


async def test_where_no_cluster_will_do_the_exit_code_says_so(tmp_path: Path) -> None:
    code, out, _ = await slo_plan(tmp_path, *LOAD, "--slo", "tpot=100us", "--max-pods", "2")
    assert code == 1
    assert out.splitlines()[-1].startswith("No cluster of 2 pods or fewer keeps tpot=0.1ms")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--slo", "ttft=soon"), "soon"),
        (("--slo", "ttft=1s", "--attainment", "1.5"), "1.5"),
        (("--slo", "ttft=1s", "--prefill-modes", "local"), "'local' is no prefill mode"),
        (("--slo", "ttft=1s", "--chunk-sizes", "many"), "many"),
        (("--slo", "ttft=1s", "--max-num-seqs", "0"), "a step of 0 sequences"),
        (("--slo", "ttft=1s", "--concurrency", "2", "--duration-s", "5"), "closed loop"),
    ],
)
async def test_what_is_no_question_is_refused_by_name(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    code, out, err = await slo_plan(tmp_path, *LOAD, *flags)
    assert (code, out) == (2, "")
    assert said in err
