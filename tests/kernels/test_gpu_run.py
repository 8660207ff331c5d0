"""`bench/gpu.py` goes on where a part fails or outruns its limit, and tells which did: shown on commands of no GPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from source_tree import ROOT


@pytest.fixture
def gpu() -> Any:
    spec = importlib.util.spec_from_file_location("bench_gpu", ROOT / "bench" / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_gpu"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_every_part_is_told(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = "import sys, pathlib; pathlib.Path(sys.argv[-1]).write_text('{}')"
    outrun = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    parts = {
        "fails": gpu.Part(("-c", "import sys; print('said'); sys.exit(3)"), 20),
        "outruns": gpu.Part(("-c", outrun + "time.sleep(60)"), 1.0),
        "measures": gpu.Part(("-c", write), 20),
    }
    monkeypatch.setattr(gpu, "TINY", parts)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--tiny", "--out", str(tmp_path / "out")])
    started_s = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 3
    assert time.monotonic() - started_s < 30
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {name: each["exit-code"] for name, each in summary.items()} == {"fails": 3, "outruns": 124, "measures": 0}
    assert (tmp_path / "out" / "measures.json").read_text() == "{}"
    assert "said" in (tmp_path / "out" / "log.txt").read_text()

    monkeypatch.setattr(
        sys, "argv", ["gpu.py", "--tiny", "--out", str(tmp_path), "--parts", "measures", "--most-s", "1"]
    )
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 1
    assert json.loads((tmp_path / "summary.json").read_text()) == {"measures": {"not-run": "no time was left"}}

    monkeypatch.setattr(sys, "argv", ["gpu.py", "--tiny", "--out", str(tmp_path), "--parts", "other"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "no part is called other" in capsys.readouterr().err


def test_tests_run_side_by_side_on_one_thread_each(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is installed; what measures is given all cores."""
    at_hand = {"xdist", "pytest_timeout"}
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: name if name in at_hand else None)
    monkeypatch.setattr(gpu.os, "cpu_count", lambda: 16)
    part = gpu.Part(("-c", "{ini}", "{kernels}"), 100, 60)
    command = part.command(Path("own.ini"), Path("part.json"))
    assert command[:5] == [sys.executable, "-m", "pytest", "-p", "no:benchmark"]
    assert command[command.index("-n") + 1] == "8"
    assert command[command.index("--timeout") + 1] == "60"
    assert command[command.index("-c") + 1] == "own.ini"
    assert {Path(each).name for each in command[-3:]} == {
        "test_attention_on_a_gpu.py", "test_graphs_on_a_gpu.py", "test_ops_on_a_gpu.py",
    }  # fmt: skip
    assert part.environ({"A": "b"}) == {"A": "b", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    at_hand.clear()
    assert not {"-n", "--timeout"} & {*part.command(Path("own.ini"), Path("part.json"))}
    measuring = gpu.Part(("bench/kernels.py",), 100)
    assert measuring.command(Path("own.ini"), Path("part.json"))[1:] == ["bench/kernels.py", "--json", "part.json"]
    assert measuring.environ({"A": "b"}) == {"A": "b"}


def test_a_tool_watches_tests_one_after_another(gpu: Any, tmp_path: Path) -> None:
    part = gpu.Part(("-c", "{ini}"), 100, 60, (sys.executable, "-c", "import sys; sys.exit(sys.argv[3] != 'pytest')"))
    command = part.command(Path("own.ini"), Path("part.json"))
    assert command[3:8] == [sys.executable, "-m", "pytest", "-p", "no:benchmark"]
    assert "-n" not in command
    assert part.environ({})["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
    with (tmp_path / "log.txt").open("a") as log:
        assert gpu.run("watched", part, 20, tmp_path, log, dict(os.environ))["exit-code"] == 0
        absent = dataclasses.replace(part, tool=("no-such-tool",))
        assert gpu.run("watched", absent, 20, tmp_path, log, {}) == {"not-run": "there is no no-such-tool here"}


@pytest.mark.parametrize("name", ["tests", "memcheck", "engine-tests", "transfer-tests"])
def test_every_part_of_tests_finds_some(gpu: Any, name: str, tmp_path: Path) -> None:
    ini = tmp_path / "pytest.ini"
    ini.write_text(gpu.PYTEST_INI.format(support=ROOT / "tests" / "support"))
    part = dataclasses.replace(gpu.PARTS[name], tool=())
    environ = part.environ({**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONSAFEPATH": "1"})
    command = [*part.command(ini, tmp_path), "--collect-only", "-q", "-p", "no:cacheprovider"]
    found = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_part_that_measures_is_there(gpu: Any) -> None:
    scripts = {part.arguments[0] for part in gpu.PARTS.values() if not part.test_s}
    named = ("tiles", "kernels", "engine", "served", "disagg", "transfer")
    assert {f"bench/{name}.py" for name in named} == scripts
    assert all((ROOT / script).is_file() for script in scripts)


def test_a_machine_without_a_device_is_told_apart(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_has_device", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == gpu.NO_DEVICE
