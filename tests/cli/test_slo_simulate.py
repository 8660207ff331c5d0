"""`pagewire slo calibrate` from a data sheet, and `pagewire slo simulate`, as processes: what they write is of use."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from pagewire_process import pagewire

from pagewire.slo.costs.cost_model import CostModel
from pagewire.slo.figures.record_files import read_records

MODEL = {
    "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 2048, "vocab_size": 1000,
}  # fmt: skip
SHEET = ("--flops", "1e13", "--bandwidth", "1e11", "--link", "1e9")
LOAD = ("--rate", "8", "--requests", "30", "--input", "200-400", "--output", "8-16", "--seed", "3", "--slo", "ttft=1s")


async def slo(*flags: str, code: int = 0, stdout: int = asyncio.subprocess.PIPE) -> tuple[str, str]:
    ended = await pagewire("slo", *flags, stdout=stdout)
    assert ended.code == code, ended.err
    return ended.out, ended.err


@pytest.fixture
async def costs(tmp_path: Path) -> Path:
    folder, path = tmp_path / "small", tmp_path / "costs.json"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL))
    await slo("calibrate", "--model", str(folder), *SHEET, "--output", str(path))
    return path


def test_a_data_sheet_is_a_cost_model(costs: Path) -> None:
    found = CostModel.from_json(costs.read_text())
    assert (found.about["source"], found.about["model"], found.token_bytes) == ("roofline", "small", 2 * 8 * 2 * 64 * 2)
    assert found.link.bytes_per_s == 1e9
    # Of one token the weights are read, at 60 % of the peak.
    weights = 2 * (8 * (2 * 512 * 64 * 10 + 3 * 512 * 2048) + 2 * 1000 * 512)
    assert found.decode.decode_seconds(1, 0) == pytest.approx(weights / 6e10 + found.decode.overhead_s)


async def test_what_is_written_says_with_what_and_simulates_the_same_again(costs: Path, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    flags = ("--prefill", "2", "--chunk-size", "128", *LOAD)
    shown, _ = await slo("simulate", "--costs", str(costs), *flags, "--json", str(told))
    found = json.loads(told.read_text())
    assert (found["requests"], found["seed"], found["workload"]["input"]) == (30, 3, "200-400")
    assert found["composition"]["chunk_size"] == 128
    assert found["labels"] == {"prefill": 2, "decode": 1, "chunk_size": 128}
    assert found["machine"]["cores"] > 0
    assert found["versions"]["pagewire"]
    assert found["command"].startswith("pagewire slo simulate --costs ")
    (tmp_path / "again.json").write_text(json.dumps(found["costs"]))
    again, _ = await slo("simulate", "--costs", str(tmp_path / "again.json"), *flags)
    assert again == shown


async def test_what_was_simulated_is_written_though_nobody_reads_the_table(costs: Path, tmp_path: Path) -> None:
    file, (unread, out) = tmp_path / "told.json", os.pipe()
    os.close(unread)
    await slo("simulate", "--costs", str(costs), *LOAD, "--json", str(file), stdout=out, code=1)
    os.close(out)
    assert json.loads(file.read_text())["requests"] == 30


async def test_a_file_that_cannot_be_written_is_found_before_anything_is_simulated(costs: Path, tmp_path: Path) -> None:
    for flag in ("--json", "--records"):
        out, _ = await slo("simulate", "--costs", str(costs), *LOAD, flag, str(tmp_path / "none" / "s.json"), code=1)
        assert out == ""
    out, _ = await slo("calibrate", "--output", str(tmp_path / "none" / "c.json"), "--url", "127.0.0.1:9", code=1)
    assert out == ""


@pytest.mark.parametrize("full", ["full.jsonl", "full.parquet"])
async def test_what_was_simulated_is_told_though_its_records_cannot_be_kept(
    costs: Path, tmp_path: Path, full: str
) -> None:
    (tmp_path / full).symlink_to("/dev/full")
    flags = ("--records", str(tmp_path / full), "--json", str(tmp_path / "told.json"))
    out, err = await slo("simulate", "--costs", str(costs), *LOAD, *flags, code=1)
    assert "30 of 30" in out
    assert "No space left on device" in err
    assert json.loads((tmp_path / "told.json").read_text())["requests"] == 30


async def test_simulated_clusters_are_reported_by_their_pods_and_as_simulated(costs: Path, tmp_path: Path) -> None:
    files = []
    for pods in (("--prefill", "2"), ("--colocated", "2")):
        files.append(tmp_path / f"{pods[0].strip('-')}.json")
        beside = ("--json", str(files[-1]), "--records", str(files[-1].with_suffix(".jsonl")))
        await slo("simulate", "--costs", str(costs), *pods, *LOAD, *beside)
    page = tmp_path / "page.html"
    await slo("report", *map(str, files), "-o", str(page))
    text = page.read_text()
    for expected in ("2P:1D", "2 colocated", "simulated: no cluster was asked"):
        assert expected in text
    # Where the time went is told of a prompt that is built elsewhere, and of one that is built where it decodes.
    apart, together = (read_records(each.with_suffix(".jsonl")) for each in files)
    assert all(each.ttft_parts_s and each.ttft_parts_s["compute"] > 0 for each in apart)
    assert all(each.ttft_parts_s and each.ttft_parts_s["queue_and_compute"] > 0 for each in together)


async def test_what_a_data_sheet_makes_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    path = tmp_path / "costs.json"
    out, err = await slo("calibrate", "--model", str(tmp_path / "config.json"), *SHEET, "--output", str(path))
    found = CostModel.from_json(path.read_text())
    memory, arithmetic = found.decode.lines
    first, second = out.splitlines()
    for figure in (f"{1e3 * memory.step_s:.3f} ms", f"{1e6 * arithmetic.prefill_token_s:.2f} us a token"):
        assert figure in first
    assert second == "link 0.1 ms + bytes / 1 GB/s; 4096 bytes of KV a token"
    assert err == f"pagewire: cost model in {path}\n"


async def test_why_simulated_requests_failed_is_said(costs: Path, tmp_path: Path) -> None:
    told, flags = tmp_path / "told.json", ("--kv-blocks", "10", *LOAD)  # room for 160 tokens of 200 and more
    out, err = await slo("simulate", "--costs", str(costs), *flags, "--json", str(told))
    found = json.loads(told.read_text())
    assert found["failed"] == sum(found["failures"].values()) == 30
    assert "30 failed" in out
    for cause, count in found["failures"].items():
        (line,) = (each for each in err.splitlines() if f" {cause}: " in each)
        assert line.startswith(f"pagewire: {count} requests failed: {cause}: ")
        assert line.removeprefix("pagewire: ") in found["warnings"]


async def test_one_request_that_is_refused_as_it_comes_is_told_without_rates_and_reported(
    costs: Path, tmp_path: Path
) -> None:
    """It is over at moment 0 of the run, at which it came: JSON has no infinity to say how many a second that is."""
    told, page = tmp_path / "told.json", tmp_path / "page.html"
    flags = ("--concurrency", "1", "--requests", "1", "--input", "1000000", "--output", "1")
    files = ("--json", str(told), "--records", str(tmp_path / "told.jsonl"))
    out, _ = await slo("simulate", "--costs", str(costs), *flags, *files)
    assert "goodput               - requests/s of - that came" in out
    found = json.loads(told.read_text(), parse_constant=pytest.fail)
    assert found["failures"] == {"context_length_exceeded": 1}
    assert (found["offered_per_s"], found["goodput_per_s"], found["output_tokens_per_s"]) == (None, None, None)
    await slo("report", str(told), "--output", str(page))
    assert "0.0 % of 1 requests were answered" in page.read_text()


async def test_what_is_missing_of_a_data_sheet_is_named(tmp_path: Path) -> None:
    _, said = await slo("calibrate", "--flops", "1e12", "--output", str(tmp_path / "costs.json"), code=2)
    assert "--bandwidth" in said
    half = ("--model", "nobodys", "--bandwidth", "1e11", "--link", "1e9")  # which is no wish to measure a cluster
    _, said = await slo("calibrate", *half, "--output", str(tmp_path / "costs.json"), code=2)
    assert "--flops" in said
    _, said = await slo("calibrate", *SHEET, "--rounds", "9", "--output", str(tmp_path / "costs.json"), code=2)
    assert "--rounds" in said
    _, said = await slo("calibrate", "--model", "nobodys", *SHEET, "--output", str(tmp_path / "costs.json"), code=1)
    assert "nobodys" in said


async def test_a_closed_loop_ends_with_its_duration(costs: Path, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    flags = ("--concurrency", "2", "--duration-s", "5", "--input", "20", "--output", "8")
    await slo("simulate", "--costs", str(costs), *flags, "--json", str(told))
    found = json.loads(told.read_text())
    assert found["window"] == {"from_s": 0.0, "until_s": 5.0}
    assert found["requests"] > 100


async def test_users_who_are_refused_at_once_do_not_stop_the_clock(costs: Path, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    flags = ("--concurrency", "2", "--duration-s", "0.5", "--input", "20", "--output", "8", "--max-model-len", "10")
    await slo("simulate", "--costs", str(costs), *flags, "--json", str(told))
    found = json.loads(told.read_text())
    assert found["failures"] == {"context_length_exceeded": found["requests"]}
    assert found["requests"] == 1000


@pytest.fixture
def measured(costs: Path) -> Path:
    """Costs as of a cluster that went to 300 tokens, in which no KV travelled."""
    about = {"source": "measured", "max_model_len": 300}
    path = costs.with_name("measured.json")
    path.write_text(json.dumps({**json.loads(costs.read_text()), "about": about, "residuals": {}}))
    return path


async def test_costs_say_how_long_a_sequence_may_be_and_whether_they_know_what_travel_takes(
    costs: Path, measured: Path, tmp_path: Path
) -> None:
    told, load = tmp_path / "told.json", ("--requests", "4", "--input", "290", "--output", "20")
    for pods, warns in ((("--prefill", "1"), True), (("--colocated", "2"), False)):
        _, err = await slo("simulate", "--costs", str(measured), *pods, *load, "--json", str(told))
        found = json.loads(told.read_text())
        assert found["failures"] == {"context_length_exceeded": 4}
        assert any("no KV travelled" in each for each in found["warnings"]) == ("no KV travelled" in err) == warns
    _, err = await slo("simulate", "--costs", str(costs), *load, "--json", str(told))
    assert json.loads(told.read_text())["failures"] == {}
    assert "no KV travelled" not in err


@pytest.fixture
def fitted(costs: Path) -> Path:
    """Costs that were fitted to prompts of up to 100 tokens."""
    path = costs.with_name("fitted.json")
    path.write_text(json.dumps({**json.loads(costs.read_text()), "about": {"longest_prompt": 100}}))
    return path


async def test_prompts_far_beyond_what_costs_were_fitted_to_are_told_of(fitted: Path, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    for length, warns in ((200, False), (201, True)):
        load = ("--requests", "3", "--input", str(length), "--output", "4")
        _, err = await slo("simulate", "--costs", str(fitted), *load, "--json", str(told))
        assert any("extrapolation" in each for each in json.loads(told.read_text())["warnings"]) == warns
        assert ("up to 100 tokens, and here one has 201" in err) == warns


async def test_runs_that_were_told_no_rate_were_asked_at_one(costs: Path, tmp_path: Path) -> None:
    """What came differs by chance: two of them are more of one rate, and no curve over two."""
    files = [tmp_path / f"{seed}.json" for seed in (1, 2)]
    for file in files:
        flags = (
            "--requests",
            "20",
            "--seed",
            file.stem,
            "--slo",
            "ttft=1s",
            "--records",
            str(file.with_suffix(".jsonl")),
        )
        await slo("simulate", "--costs", str(costs), *flags, "--json", str(file))
    out, _ = await slo("report", *map(str, files), "-o", str(tmp_path / "two.html"))
    assert "carries" not in out
    assert "Attainment against request rate" not in (tmp_path / "two.html").read_text()
