"""The committed generated code is what the .proto files generate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from source_tree import ROOT


def generated(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if "_pb2" in path.name and path.is_file()}


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    command = ["make", "--silent", "generate", f"PROTO_OUT={tmp_path}", f"PROTO_PYTHON={sys.executable}"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    fresh = generated(tmp_path / "pagewire" / "protos")
    assert fresh == generated(ROOT / "protos")
    assert {name for name in fresh if name.endswith("_grpc.py")} == {"inference_pb2_grpc.py", "link_pb2_grpc.py"}
