"""All that a GPU is needed for, in one go: the tests marked so, and what every benchmark measures on one.

Parts run one after another, each under its own time limit and in a process group that ends with it; a part that fails
or outruns its limit is told, and the next one begins. In `--out`: `<part>.json` of each that measures, `log.txt` with
what they print, `summary.json` with exit codes and seconds. The exit code is that of the first part that failed. What
is to run is chosen by `--parts`, where a machine is lent for minutes: `--most-s` bounds the whole.

Needs torch, triton, transformers, pytest, hypothesis and psutil; the engine's parts grpcio and llguidance besides,
`transfer` grpcio and xxhash, and `engine-tests` and `transfer-tests` all these, protobuf and pytest-asyncio: grpcio and
protobuf as new as constraints.txt has them, for what is generated asks for it. Tests run side by side where
pytest-xdist is installed, and one that hangs tells its stack where pytest-timeout is. `--tiny` runs the kernels' and
the engine's on a CPU under Triton's interpreter, to see that they work.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
TIMED_OUT = 124
NO_DEVICE = 77
# The project's own settings ask for plugins that a GPU machine need not have.
PYTEST_INI = """[pytest]
pythonpath = {support}
addopts = --import-mode=importlib -rfE -p no:cacheprovider
markers =
    gpu: needs a CUDA device
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A command of Python's, to which `--json PATH` is added; of tests, arguments of pytest."""

    arguments: tuple[str, ...]
    limit_s: float
    test_s: float = 0.0  # the longest of one test; 0: these are no tests
    tool: tuple[str, ...] = ()  # that watches the process: of tests alone, which are then one after another

    def command(self, ini: Path, path: Path) -> list[str]:
        """Return the command: of tests with the settings in `ini`, if it asks for them, or with figures to `path`."""
        if not self.test_s:
            return [sys.executable, *self.arguments, "--json", str(path)]
        options = test_options(self.test_s) if not self.tool else ("-p", "no:benchmark")
        command = [*self.tool, sys.executable, "-m", "pytest", *options]
        for argument in self.arguments:
            if argument == "{kernels}":
                command += map(str, sorted((ROOT / "tests" / "kernels").glob("test_*_on_a_gpu.py")))
            else:
                command.append(argument.replace("{ini}", str(ini)).replace("{root}", str(ROOT)))
        return command

    def environ(self, environ: dict[str, str]) -> dict[str, str]:
        """Return its environment: what tests compare with is computed on a CPU, by many of them side by side."""
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1") if self.test_s else {}
        # Each tensor an allocation of its own: what lies beyond one is nobody's, and so found.
        return environ | one_thread | ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if self.tool else {})


def test_options(test_s: float) -> list[str]:
    """Return what pytest is asked for by what is installed: workers on half the cores, a limit of `test_s` each."""
    # Beside workers pytest-benchmark warns, which our settings make an error.
    options = ["-p", "no:benchmark", "--durations", "10"]
    num_workers = min(8, (os.cpu_count() or 1) // 2)
    if num_workers > 1 and importlib.util.find_spec("xdist"):
        options += ["-n", str(num_workers)]
    if importlib.util.find_spec("pytest_timeout"):
        options += ["--timeout", f"{test_s:g}"]
    return options


def _engine(shapes: str, parts: str) -> tuple[str, ...]:
    return ("bench/engine.py", "--device", "cuda", "--shapes", shapes, "--parts", parts)


PARTS = {
    "tests": Part(("--noconftest", "-c", "{ini}", "--rootdir", "{root}", "{kernels}"), 400, 60),
    "memcheck": Part(  # no graphs: they cannot be captured without a cache of memory
        ("--noconftest", "-c", "{ini}", "--rootdir", "{root}", "-k", "not graph and not early", "{kernels}"),
        580,
        60,
        ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9"),
    ),
    "engine-tests": Part(("tests/engine/test_on_a_gpu.py",), 400, 120),
    "transfer-tests": Part(("-m", "gpu", "tests/kvtransfer", "tests/serving/test_gpu_usage.py"), 200, 60),
    "tiles": Part(("bench/tiles.py",), 580),
    "kernels": Part(("bench/kernels.py",), 300),
    "engine-steps": Part(_engine("Qwen3-0.6B,Qwen2.5-1.5B", "steps,chunks,idle"), 240),
    "engine-8b": Part(_engine("Llama-3-8B", "steps"), 300),
    "engine-requests": Part(_engine("Qwen3-0.6B", "requests,peers"), 580),
    "served": Part(("bench/served.py",), 200),
    "disagg": Part(
        (
            *("bench/disagg.py", "--device", "cuda", "--random", "Qwen3-0.6B"),
            *("--repeats", "5", "--warmups", "1", "--output", "16"),
        ),
        200,
    ),
    "transfer": Part(("bench/transfer.py", "--transports", "cuda_ipc"), 200),
}
TINY = {
    "kernels": Part(("bench/kernels.py", "--device", "cpu"), 120),
    "engine": Part(("bench/engine.py", "--tiny", "--parts", "steps,requests"), 200),
}


def run(name: str, part: Part, limit_s: float, out: Path, log: IO[str], environ: dict[str, str]) -> dict[str, object]:
    """Run one part; return its exit code (124: it outran its limit) and its seconds, or why it was not run."""
    if part.tool and shutil.which(part.tool[0]) is None:
        return {"not-run": f"there is no {part.tool[0]} here"}
    with tempfile.TemporaryDirectory(prefix="pagewire-gpu-") as folder:
        ini = Path(folder) / "pytest.ini"
        ini.write_text(PYTEST_INI.format(support=ROOT / "tests" / "support"))
        print(f"== {name}, at most {limit_s:.0f} s", file=log, flush=True)
        started_s = time.monotonic()
        process = subprocess.Popen(
            part.command(ini, out / f"{name}.json"), stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
            env=part.environ(environ), start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = TIMED_OUT
        finally:
            _end(process)
    return {"exit-code": code, "seconds": round(time.monotonic() - started_s, 1)}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole group of a process, whatever is left of it."""
    with contextlib.suppress(ProcessLookupError):  # all of it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _has_device() -> bool:
    asked = [sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    return subprocess.run(asked, check=False).returncode == 0  # elsewhere: this process holds no device


def main() -> None:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is measured")
    parser.add_argument("--parts", default="", help=f"by commas, of {', '.join(PARTS)}; all")
    parser.add_argument("--most-s", type=float, default=float("inf"), help="of all parts together")
    parser.add_argument("--tiny", action="store_true", help=f"{', '.join(TINY)} on a CPU, to see that they work")
    options = parser.parse_args()
    known = TINY if options.tiny else PARTS
    names = [name for name in options.parts.split(",") if name] or list(known)
    if unknown := sorted({*names} - {*known}):
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(known)}")
    if not options.tiny and not _has_device():
        print("NOT RUN: there is no CUDA device", file=sys.stderr)
        sys.exit(NO_DEVICE)
    options.out.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
    environ["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"] if os.environ.get("PYTHONPATH") else ""
    environ |= {"PYTHONUNBUFFERED": "1"} | ({"TRITON_INTERPRET": "1"} if options.tiny else {})
    deadline_s = time.monotonic() + options.most_s
    summary: dict[str, dict[str, object]] = {}
    with (options.out / "log.txt").open("a") as log:
        for name in names:
            left_s = deadline_s - time.monotonic()
            if left_s < 5:
                summary[name] = {"not-run": "no time was left"}
            else:
                summary[name] = run(name, known[name], min(known[name].limit_s, left_s), options.out, log, environ)
            print(f"{name:16} {summary[name]}", flush=True)
            (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    sys.exit(next((code for each in summary.values() if isinstance(code := each.get("exit-code", 1), int) and code), 0))


if __name__ == "__main__":
    main()
