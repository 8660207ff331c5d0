"""vLLM servers of another Python environment: one colocated, or a prefill and decode pair over NIXL.

Knows vLLM's command line and its two-step protocol of disaggregation: the client asks the prefill server for one
token, and takes the parameters in its answer to the decode server. A real deployment has a proxy in between; there is
none here, in the peer's favour. vLLM binds its worker, with all its threads, to the server's core. There NIXL's
progress thread, which never sleeps, takes half of the computing thread's time; with `frees_helpers` all threads but the
computing one may run on any core, in the peer's favour again.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import peer_python
from processes import ServerProcess, unpin_helpers
from token_stream import TokenStream, ask, prompt_body, stream

NAME = "peer"
START_S = 600.0  # three that compile at once on two cores; later starts find it cached
KV_TRANSFER = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}
ASK_FOR_TRANSFER: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class VllmServer:
    """One server on one core; `ready` waits for it."""

    def __init__(
        self, python: str, model: str, *, name: str, port: int, core: int, side_port: int, flags: Sequence[str],
        environ: Mapping[str, str], folder: Path, frees_helpers: bool,
    ) -> None:  # fmt: skip
        self._frees_helpers = frees_helpers
        self.url = f"http://127.0.0.1:{port}"
        command = [
            *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", NAME),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "4096"),
            *("--no-enable-prefix-caching", *flags),
        ]
        own = {
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": str(core),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
            "VLLM_NO_USAGE_STATS": "1",
            # 0.32 compiles anew at every start because it cannot load what it saved ahead of time ("'function' object
            # has no attribute 'finalize_loading'"); without that step Inductor's own cache is used.
            "VLLM_USE_AOT_COMPILE": "0",
        }
        self._server = ServerProcess(command, folder / f"{name}.log", {**own, **environ}, reads_stdout=False)

    def ready(self) -> None:
        """Wait until it answers. Raises RuntimeError where it does not come up."""
        deadline_s = time.monotonic() + START_S
        while not self._is_healthy():
            if self._server.process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"vLLM did not start:\n{self._server.tail}")
            time.sleep(0.25)
        if self._frees_helpers:
            unpin_helpers(self._server.process.pid)

    def pause(self) -> None:
        """Let nothing of it run."""
        self._server.pause()

    def resume(self) -> None:
        """Let it run again."""
        self._server.resume()

    def stop(self) -> None:
        """End it."""
        self._server.stop()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == http.client.OK)
        except (urllib.error.URLError, OSError):
            return False


class VllmColocated:
    """One server that does both."""

    name = "vllm-colocated"

    def __init__(self, server: VllmServer) -> None:
        self.servers = (server,)

    def run(self, prompt: Sequence[int], max_tokens: int) -> TokenStream:
        """Stream one completion."""
        return stream(self.servers[0].url, prompt_body(NAME, prompt, max_tokens))

    def stop(self) -> None:
        """End the server."""
        _stop(self.servers)


class VllmPair:
    """A prefill server and a decode server."""

    name = "vllm-nixl"

    def __init__(self, prefill: VllmServer, decode: VllmServer) -> None:
        self.servers = (prefill, decode)

    def run(self, prompt: Sequence[int], max_tokens: int) -> TokenStream:
        """Stream one completion from the decode server; its time runs from the question to the prefill server."""
        prefill, decode = self.servers
        sent_s = time.perf_counter()
        said = ask(prefill.url, prompt_body(NAME, prompt, 1) | {"kv_transfer_params": ASK_FOR_TRANSFER})
        moved = said["kv_transfer_params"]
        if not moved:
            raise RuntimeError("vLLM's prefill server gave nothing to fetch: the decode server would compute it all")
        body = prompt_body(NAME, prompt, max_tokens) | {"kv_transfer_params": moved}
        return stream(decode.url, body, sent_s=sent_s)

    def stop(self) -> None:
        """End both servers."""
        _stop(self.servers)


def colocated(
    python: str, model: str, core: int, folder: Path, *, port: int, is_eager: bool, frees_helpers: bool
) -> VllmColocated:
    """Start one server; the ports from `port` on must be free."""
    plan = (("colocated", core, ""),)
    return VllmColocated(*_start(python, model, plan, folder, port, is_eager=is_eager, frees_helpers=frees_helpers))


def pair(
    python: str,
    model: str,
    cores: tuple[int, int],
    folder: Path,
    *,
    port: int,
    is_eager: bool,
    frees_helpers: bool,
) -> VllmPair:
    """Start a prefill server on the first core and a decode server on the second; see `colocated`."""
    plan = (("prefill", cores[0], "kv_producer"), ("decode", cores[1], "kv_consumer"))
    return VllmPair(*_start(python, model, plan, folder, port, is_eager=is_eager, frees_helpers=frees_helpers))


def _start(
    python: str,
    model: str,
    plan: Sequence[tuple[str, int, str]],
    folder: Path,
    port: int,
    *,
    is_eager: bool,
    frees_helpers: bool,
) -> list[VllmServer]:
    """Start servers at once: name, core and role of each."""
    common = ["--enforce-eager"] if is_eager else []
    environ = _preload(python)
    servers: list[VllmServer] = []
    try:
        for place, (name, core, role) in enumerate(plan):
            flags = ["--kv-transfer-config", json.dumps(KV_TRANSFER | {"kv_role": role})] if role else []
            server = VllmServer(
                python, model, name=f"vllm-{name}", port=port + place, core=core, side_port=port + 100 + place,
                flags=common + flags, environ=environ, folder=folder, frees_helpers=frees_helpers,
            )  # fmt: skip
            servers.append(server)
        for server in servers:
            server.ready()
    except BaseException:
        _stop(servers)
        raise
    return servers


def _stop(servers: Sequence[VllmServer]) -> None:
    for server in servers:
        server.stop()


def _preload(python: str) -> dict[str, str]:
    """Return LD_PRELOAD with what vLLM's documentation advises, as far as it is there: OpenMP of Intel, and tcmalloc.

    `PEER_PRELOAD` of the environment stands instead where it is set: it is for the servers alone.
    """
    if "PEER_PRELOAD" in os.environ:
        return {"LD_PRELOAD": os.environ["PEER_PRELOAD"]}
    openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
    found = [str(openmp)] if openmp.exists() else []
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    found += [line.split()[-1] for line in cache.splitlines() if "libtcmalloc_minimal.so.4 " in line][:1]
    return {"LD_PRELOAD": ":".join(found)} if found else {}


def versions(python: str) -> dict[str, str]:
    """Return the versions of the peer's packages."""
    return {f"peer-{name}": each for name, each in peer_python.versions(python, "vllm", "torch", "nixl").items()}
