"""The router, the SDK and what they stand on start without torch: in a slim image, in a second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from source_tree import source_files

HEAVY = ("torch", "triton", "numpy", "transformers", "safetensors")

IMPORT_ALL = """
import json, sys
for name in {heavy!r}:
    sys.modules[name] = None
before = set(sys.modules)
import importlib
for name in {modules!r}:
    importlib.import_module(name)
print(json.dumps(sorted({{name.split(".")[0] for name in set(sys.modules) - before}})))
"""


def modules_of(*folders: str) -> list[str]:
    """Return every importable module of `folders`, generated ones included."""
    protos = Path(source_files("protos")[0].path).parent
    names = [file.name for file in source_files(*folders)]
    if "protos" in folders:
        names += [f"protos/{path.name}" for path in protos.glob("*_pb2*.py")]
    return sorted("pagewire." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names)


def imported_by(modules: list[str], cwd: Path) -> set[str]:
    code = IMPORT_ALL.format(heavy=HEAVY, modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_the_router_and_all_below_it_import_without_torch(tmp_path: Path) -> None:
    modules = modules_of("core", "protos", "serving", "client", "text", "router")
    assert "pagewire" in imported_by(modules, tmp_path)


def test_kvtransfer_imports_without_torch_outside_its_device_transports(tmp_path: Path) -> None:
    device = ("cuda_ipc", "collective", "communicator", "communicator_pair", "device_pool", "process_group", "staging")
    modules = [name for name in modules_of("kvtransfer") if name.rsplit(".", 1)[-1] not in device]
    assert "pagewire" in imported_by(modules, tmp_path)


def test_the_sdk_imports_nothing_but_grpc_and_protobuf(tmp_path: Path) -> None:
    # What grpcio pulls in by itself (it looks for its own plugins) is not the SDK's doing.
    dependencies = imported_by(["grpc", "grpc.aio", "grpc_status.rpc_status", "google.rpc.status_pb2"], tmp_path)
    sdk = imported_by(modules_of("core", "protos", "client"), tmp_path)
    assert sdk - dependencies - sys.stdlib_module_names == {"pagewire"}
