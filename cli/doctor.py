"""What this machine has and lacks for Pagewire: a list of checks, each with its finding. Changes nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from pagewire.cli import models, valkey
from pagewire.cli.progress import say
from pagewire.core import cores, memory_limit
from pagewire.core.errors import PagewireError
from pagewire.core.units import format_bytes
from pagewire.kernels import native_ops
from pagewire.kvtransfer import summed_copy

TORCH_VERSION = "2.13.0"
MIN_MEMORY_BYTES = 4 << 30
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


class Verdict(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    verdict: Verdict
    detail: str


def examine() -> list[Finding]:
    """Run every check."""
    checks: tuple[tuple[str, Callable[[], tuple[Verdict, str]]], ...] = (
        ("Python", _python),
        ("PyTorch", _torch),
        ("engine packages", lambda: _packages("engine", "transformers", "safetensors", "numpy")),
        ("router packages", lambda: _packages("router", "starlette", "uvicorn", "tokenizers", "jinja2", "redis")),
        ("CPU", _cpu),
        ("native code", _native),
        ("memory", _memory),
        ("Valkey", _valkey),
        ("model", _model),
    )
    return [Finding(name, *check()) for name, check in checks]


def report(findings: list[Finding], *, as_json: bool) -> int:
    """Print the findings and return the exit code: 1 when one of them failed."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            print(f"{finding.verdict.value:<4}  {finding.check:<{width}}  {finding.detail}")
    failed = [finding.check for finding in findings if finding.verdict is Verdict.FAIL]
    if failed:
        say(f"pagewire: not ready: {', '.join(failed)}")
    return 1 if failed else 0


def _python() -> tuple[Verdict, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    return (Verdict.OK if sys.version_info >= (3, 11) else Verdict.FAIL), f"{version} at {sys.executable}"


def _torch() -> tuple[Verdict, str]:
    if importlib.util.find_spec("torch") is None:
        return Verdict.FAIL, f"missing; install torch=={TORCH_VERSION}, then pagewire[engine]"
    version = importlib.metadata.version("torch")
    if version.split("+")[0] != TORCH_VERSION:
        return Verdict.WARN, f"{version}; tested with {TORCH_VERSION}"
    return Verdict.OK, version


def _packages(extra: str, *names: str) -> tuple[Verdict, str]:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        return Verdict.FAIL, f"missing {', '.join(missing)}; install pagewire[{extra}]"
    return Verdict.OK, ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def _cpu() -> tuple[Verdict, str]:
    usable = cores.usable()
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return Verdict.WARN, f"{usable} cores; features unknown"
    found = [name for name in CPU_FEATURES if name in flags]
    detail = f"{usable} cores; {', '.join(found) or 'no vector extension'}"
    if "avx512_bf16" not in flags and not native_ops.load():
        return Verdict.OK, f"{detail}; torch emulates bfloat16, so engines compute in float32"
    return Verdict.OK, detail


def _native() -> tuple[Verdict, str]:
    lacking = [
        what
        for what, is_there in (
            ("the engine computes in plain torch, two to three times slower (c++ builds it)", native_ops.load()),
            ("blocks are copied and summed in two passes (cc builds the one)", summed_copy.prepare()),
        )
        if not is_there
    ]
    if lacking:
        return Verdict.WARN, f"not built here: {'; '.join(lacking)}"
    return Verdict.OK, "the engine's ops, and blocks copied and summed in one pass"


def _memory() -> tuple[Verdict, str]:
    total = memory_limit.usable_bytes()
    if total < MIN_MEMORY_BYTES:
        return Verdict.WARN, f"{format_bytes(total)}; the default cluster takes about {format_bytes(MIN_MEMORY_BYTES)}"
    return Verdict.OK, format_bytes(total)


def _valkey() -> tuple[Verdict, str]:
    try:
        return Verdict.OK, str(valkey.binary())
    except PagewireError as error:
        return Verdict.WARN, str(error)


def _model() -> tuple[Verdict, str]:
    try:
        folder = models.resolve(models.DEFAULT_MODEL)
    except PagewireError as error:
        return Verdict.WARN, str(error)
    wrong = models.damage(folder)
    if wrong:
        return Verdict.FAIL, f"{folder}: {'; '.join(wrong)}; run: pagewire model get {models.DEFAULT_MODEL}"
    if models.is_outdated(folder):
        return Verdict.WARN, f"{folder} is made otherwise by now; run: pagewire model get {models.DEFAULT_MODEL}"
    return Verdict.OK, f"{folder}, every file as in its manifest"
