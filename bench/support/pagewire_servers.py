"""Pagewire clusters of one kind of pod placement, started by `pagewire up`, each pod on a core of its own.

Knows the JSON line of `up` and the reports of answers. A pod is its front and its engine: both are tied to the pod's
core. Router and Valkey belong to no pod and run wherever a core is idle.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from processes import ServerProcess, pin
from token_stream import TokenStream, prompt_body, stream


def up(flags: Sequence[object], log: Path, environ: Mapping[str, str] = {}) -> tuple[ServerProcess, dict[str, Any]]:
    """Start `pagewire up` on free ports; return it and what it says. Raises RuntimeError where it does not start."""
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "up", "--port", "0", "--grpc-port", "0"]
    server = ServerProcess([*command, *map(str, flags)], log, {"HF_HUB_OFFLINE": "1", **environ}, reads_stdout=True)
    return server, server.said()


class PagewireServers:
    """A running cluster behind its router."""

    def __init__(
        self, name: str, flags: Sequence[str], cores: Mapping[str, int], folder: Path, settings: Mapping[str, str] = {}
    ) -> None:
        self.name = name
        logs = folder / name
        logs.mkdir()
        environ = {f"PAGEWIRE_{key}": value for key, value in settings.items()}
        self._server, said = up(["--threads", 1, "--log-dir", logs, *flags], folder / f"{name}.log", environ)
        self._url: str = said["router"]["http"]
        self._cores = [(pod["pid"], core) for role, core in cores.items() for pod in said[role]]
        self.turn_cores(0)

    def turn_cores(self, num_cores: int) -> None:
        """Move every pod `num_cores` of the machine's cores on from its own, around the end."""
        cores = sorted(os.sched_getaffinity(0))
        for pid, core in self._cores:
            pin(pid, [cores[(cores.index(core) + num_cores) % len(cores)]])

    def run(self, prompt: Sequence[int], max_tokens: int) -> TokenStream:
        """Stream one completion; `own` of what comes back is the request's report and timelines."""
        return stream(self._url, prompt_body("", prompt, max_tokens) | {"pagewire": {"timeline": True}})

    @property
    def servers(self) -> tuple[ServerProcess, ...]:
        """None that has to be paused while others are measured: an idle cluster does not poll."""
        return ()

    def stop(self) -> None:
        """End the cluster."""
        self._server.stop()


def colocated(model: str, device: str, core: int, folder: Path) -> PagewireServers:
    """Start one colocated pod."""
    flags = ["--model", model, "--device", device, "--colocated", "1"]
    return PagewireServers("pagewire-colocated", flags, {"colocated": core}, folder)


def disaggregated(
    model: str, device: str, cores: tuple[int, int], folder: Path, transport: str, layer_groups: int
) -> PagewireServers:
    """Start one prefill and one decode pod that always ship; over `transport`, "" for what they agree on.

    A block travels in `layer_groups` parts, 0 for as many as suit the model.
    """
    flags = ["--model", model, "--device", device, "--prefill", "1", "--decode", "1", "--prefill-mode", "remote"]
    name = f"pagewire-{transport or 'negotiated'}" + (f"-{layer_groups}" if layer_groups else "")
    settings = {"LAYER_GROUPS": str(layer_groups)} | ({"TRANSPORTS": transport} if transport else {})
    return PagewireServers(name, flags, {"prefill": cores[0], "decode": cores[1]}, folder, settings)


def two_cores() -> tuple[int, int]:
    """Return the cores of the prefill pod and of the decode pod."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]
