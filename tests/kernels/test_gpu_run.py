"""`bench/gpu.py` goes on where a part fails or outruns its limit, and tells which did: shown on commands of no GPU."""

from __future__ import annotations

import importlib.util
import json
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
        "fails": gpu.Part(("-c", "import sys; print('said'); sys.exit(3)"), 20, False),
        "outruns": gpu.Part(("-c", outrun + "time.sleep(60)"), 1.0, False),
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


def test_a_machine_without_a_device_is_told_apart(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_has_device", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == gpu.NO_DEVICE
