"""The wheel claims one name, and without extras it is the SDK alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from source_tree import FOLDERS, ROOT

SDK_DEPENDENCIES = ("grpc", "grpc_status", "google", "typing_extensions.py")

IMPORT_SDK = """
import sys
sys.path[:0] = {paths!r}
from pagewire.client import AsyncClient, Client
import pagewire.client
print(pagewire.client.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build writes into its source tree."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("src", *FOLDERS):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "-w",
        str(out),
        ".",
    ]
    subprocess.run(command, check=True, cwd=copy)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_pagewire_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"pagewire"}
    assert {name.split("/")[1] for name in names if name.startswith("pagewire/")} == {*FOLDERS}
    assert {"pagewire/client/py.typed", "pagewire/protos/inference_pb2.pyi", "pagewire/kvtransfer/summed_copy.c"} <= {
        *names
    }
    assert "pagewire/slo/report/page.css" in names
    assert {
        f"pagewire/slo/workloads/recordings/{path.name}"
        for path in (ROOT / "slo" / "workloads" / "recordings").iterdir()
    } <= {*names}
    assert {f"pagewire/router/ui/{path.name}" for path in (ROOT / "router" / "ui").iterdir()} <= {*names}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_sdk_imports_with_grpc_and_protobuf_alone(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*command, "--target", str(tmp_path / "a"), str(wheel)], check=True)
    dependencies = tmp_path / "b"
    dependencies.mkdir()
    for name in SDK_DEPENDENCIES:
        (dependencies / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    code = IMPORT_SDK.format(paths=[str(tmp_path / "a"), str(dependencies)])
    # -S and -I: no site-packages, no environment, no current directory.
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "a" / "pagewire" / "client" / "__init__.py")
