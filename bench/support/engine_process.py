"""An engine of `engine_worker` as a child: started, asked, stopped while others are measured, ended.

Knows the environment that vLLM is best in on a CPU: its allocator and Intel's OpenMP preloaded where they are found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
from processes import children_of, signal_tree

FOLDER = Path(__file__).parent
PRELOADED = ("lib/libiomp5.so", "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


def peer_named(text: str) -> tuple[str, str]:
    """Read NAME or NAME=PYTHON: the engine, and the Python that has it."""
    name, _, python = text.partition("=")
    if name not in ("transformers", "vllm") or (name == "vllm" and not python):
        raise argparse.ArgumentTypeError("transformers, or vllm=PYTHON")
    return name, python or sys.executable


class EngineProcess:
    """A context manager; between turns the process and all that it started stand still."""

    def __init__(
        self,
        name: str,
        python: str,
        model: str,
        threads: int,
        adapters: Sequence[Path] = (),
        speculative_tokens: int = 0,
    ) -> None:
        self.name = name
        self.speculative_tokens = speculative_tokens
        settings = {"adapters": [str(each) for each in adapters], "speculative_tokens": speculative_tokens}
        self.versions: dict[str, str] = {}
        environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
        environ.pop("PYTHONSAFEPATH", None)  # a worker imports what lies beside it
        if name != "vllm":
            environ["OMP_NUM_THREADS"] = str(threads)
        else:  # it asks for the variable to be unset, and binds threads of its own
            home = Path(python).parent.parent
            found = [home / PRELOADED[0], Path(PRELOADED[1])]
            environ |= {
                "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "LD_PRELOAD": ":".join(str(path) for path in found if path.exists()),
                "VLLM_CPU_KVCACHE_SPACE": "2",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_USE_AOT_COMPILE": "0",
            }
        self._process = subprocess.Popen(
            [python, str(FOLDER / f"{name}_engine.py"), model, str(threads), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ,
        )  # fmt: skip

    def __enter__(self) -> Self:
        """Wait until it is loaded. Raises RuntimeError when it ends instead."""
        self.versions = self._read()["versions"]
        signal_tree(self._process.pid, signal.SIGSTOP)
        return self

    def __exit__(self, *_error: object) -> None:
        """End it and what it started."""
        signal_tree(self._process.pid, signal.SIGCONT)
        tree = [psutil.Process(self._process.pid), *children_of(self._process.pid)]
        assert self._process.stdin is not None
        self._process.stdin.close()
        _, left = psutil.wait_procs(tree, timeout=20)
        for process in left:
            process.kill()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let it run."""
        signal_tree(self._process.pid, signal.SIGCONT)
        yield
        signal_tree(self._process.pid, signal.SIGSTOP)

    def generate(self, prompts: list[list[int]], max_tokens: int, num_adapters: int = 0) -> float:
        """Return the seconds that `max_tokens` tokens for each prompt took. Raises RuntimeError where they are not.

        Prompts go by turns with the first `num_adapters` of those that were loaded.
        """
        seconds, tokens = self._ask(prompts=prompts, max_tokens=max_tokens, num_adapters=num_adapters)
        if tokens != len(prompts) * max_tokens:
            raise RuntimeError(f"{self.name} generated {tokens} tokens of {len(prompts) * max_tokens}")
        return seconds

    def answer(self, prompts: list[list[int]], max_tokens: int) -> tuple[float, int]:
        """Return the seconds that answers took which end where the model ends them, and their tokens."""
        return self._ask(prompts=prompts, max_tokens=max_tokens, ends=True)

    def _ask(self, **batch: Any) -> tuple[float, int]:
        assert self._process.stdin is not None
        print(json.dumps(batch), file=self._process.stdin, flush=True)
        answer = self._read()
        return float(answer["seconds"]), int(answer["tokens"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended")
        read: dict[str, Any] = json.loads(line)
        return read
