"""A real cluster of real processes: started by `pagewire up`, driven through its doors, read through its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orphans
import psutil
from lives import is_alive, left_behind
from prometheus_client.parser import text_string_to_metric_families

TETHER = (sys.executable, "-P", "-m", "pagewire.cli.tether")  # it ends with whoever started it
REST_S = 20.0
READY_S = 120.0  # one that does not say by then that it is up is killed
ORPHANS = ("kv_blocks_orphaned", "leases_orphaned")
AT_REST = re.compile(r"KV pool checked at the end: \d+ free, \d+ cached, 0 held, 0 reserved")


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion, with what the pods counted for it."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    usage: dict[str, Any]
    report: dict[str, Any]


class LiveCluster:
    """`pagewire up` with these flags; `said` is its JSON line. Ends with `stop`.

    `logs` is there until `stop` found nothing wrong; whatever was is said with the folder's name.
    """

    def __init__(self, model: Path, *flags: str, **environ: str) -> None:
        self.logs = Path(tempfile.mkdtemp(prefix="pagewire-test-"))
        # One, for its TLS context takes longer than a look; no connection is kept, for pods are killed.
        self._looks = httpx.Client(trust_env=False, timeout=30, limits=httpx.Limits(max_keepalive_connections=0))
        arguments = ["up", "--model", str(model), "--port", "0", "--grpc-port", "0", "--log-dir", str(self.logs)]
        self._stderr = (self.logs / "up.log").open("w+")
        self.process = subprocess.Popen(
            [*TETHER, str(os.getpid()), sys.executable, "-P", "-m", "pagewire.cli.main", *arguments, *flags],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environ},
        )
        assert self.process.stdout is not None
        line = _ready_line(self.process)
        if not line:
            self.process.wait()
            self._close_streams()
            raise AssertionError(f"the cluster did not start; logs in {self.logs}:\n{self.log('up')}")
        self.said: dict[str, Any] = json.loads(line)
        self.http: str = self.said["router"]["http"]
        self.grpc: str = self.said["router"]["grpc"]
        self._joined: list[subprocess.Popen[str]] = []
        self._seen: set[psutil.Process] = set()
        self.running()
        self._processes: dict[tuple[str, int], psutil.Process] = {}  # by name too: a number may be given out again
        for pod in self.pods():
            self._note(pod)
        pods = {role: self.said[role][0] for role in ("prefill", "decode", "colocated") if self.said[role]}
        self._how = {role: _how_started(psutil.Process(pod["pid"])) for role, pod in pods.items()}
        (router,) = (child for child in psutil.Process(self.process.pid).children() if "router" in child.cmdline())
        self._how["router"] = _how_started(router)
        orphans.note(self)

    # ------------------------------------------------------------------------------------------------------- asking

    def complete(self, prompt: list[int] | str, max_tokens: int, **fields: Any) -> Answer:
        """Complete one prompt, greedily unless told otherwise."""
        return asyncio.run(self.complete_all([prompt], max_tokens, concurrency=1, **fields))[0]

    async def complete_all(
        self, prompts: list[Any], max_tokens: int, *, concurrency: int, **fields: Any
    ) -> list[Answer]:
        """Complete all prompts, `concurrency` at a time."""
        gate = asyncio.Semaphore(concurrency)
        async with httpx.AsyncClient(base_url=self.http, timeout=120, trust_env=False) as client:

            async def one(prompt: Any) -> Answer:
                body = {
                    "model": self.model_name,
                    "prompt": prompt,
                    "max_tokens": max_tokens,
                    "temperature": 0,
                    "return_token_ids": True,
                    "pagewire": {"timeline": True},
                    **fields,
                }
                async with gate:
                    response = await client.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text
                said = response.json()
                choice = said["choices"][0]
                return Answer(
                    tokens=tuple(choice["token_ids"]),
                    text=choice["text"],
                    finish_reason=choice["finish_reason"],
                    usage=said["usage"],
                    report=said["pagewire"]["report"],
                )

            return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        models = self._looks.get(f"{self.http}/v1/models").json()
        name: str = models["data"][0]["id"]
        return name

    # ------------------------------------------------------------------------------------------------------ looking

    def pods(self) -> list[dict[str, Any]]:
        """Return all pods that `up` named."""
        return [*self.said["prefill"], *self.said["decode"], *self.said["colocated"]]

    def alive(self) -> list[dict[str, Any]]:
        """Return the pods that were not ended."""
        return [pod for pod in self.pods() if is_alive(self.process_of(pod))]

    def process_of(self, said: dict[str, Any]) -> psutil.Process:
        """Return the process of a pod or a router, by what it said when it was up."""
        return self._processes[said.get("id", ""), said["pid"]]

    def _note(self, said: dict[str, Any]) -> None:
        self._processes[said.get("id", ""), said["pid"]] = psutil.Process(said["pid"])

    def metrics(self, pod: dict[str, Any]) -> dict[str, float]:
        """Return a pod's metrics by name, without the prefix."""
        return self._metrics(pod["metrics"])

    def router_metrics(self) -> dict[str, float]:
        """Return the router's, likewise; of a labelled one the last."""
        return self._metrics(f"{self.http}/metrics")

    def _metrics(self, url: str) -> dict[str, float]:
        text = self._looks.get(url).text
        return {
            sample.name.removeprefix("pagewire_"): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def assert_at_rest(self) -> None:
        """Every block of every living pod is free or cached, and none is held for a peer; waits for stragglers."""
        deadline_s = time.monotonic() + REST_S
        while True:
            states = {pod["id"]: self.metrics(pod) for pod in self.alive()}
            if all(_is_at_rest(state) for state in states.values()):
                return
            assert time.monotonic() < deadline_s, json.dumps(states, indent=1)
            time.sleep(0.05)

    def running(self) -> list[psutil.Process]:
        """Return the processes of the cluster that are there, those that it started by itself among them."""
        for process in (self.process, *self._joined):
            with contextlib.suppress(psutil.NoSuchProcess):
                main = psutil.Process(process.pid)
                self._seen |= {main, *main.children(recursive=True)}
        return [process for process in list(self._seen) if is_alive(process)]

    def orphans(self) -> dict[str, float]:
        """Return what living pods hold for nobody, by pod and gauge; waits, for a lost peer's end within seconds."""
        deadline_s = time.monotonic() + REST_S
        while True:
            held: dict[str, float] = {}
            for pod in self.alive():
                with contextlib.suppress(httpx.TransportError):  # it went away meanwhile, and what it held with it
                    state = self.metrics(pod)
                    held |= {f"{pod['id']} {name}": state[name] for name in ORPHANS if state[name]}
            if not held or time.monotonic() > deadline_s:
                return held
            time.sleep(0.05)

    def usable(self) -> dict[str, int]:
        """Return how many pods of each role the router would place a request on; none of a role is left out."""
        pods: dict[str, int] = self._looks.get(f"{self.http}/health").json()["pods"]
        return {role: number for role, number in pods.items() if number}

    def engine_of(self, pod: dict[str, Any]) -> psutil.Process:
        """Return the engine process of a pod."""
        (engine,) = psutil.Process(pod["pid"]).children(recursive=True)
        return engine

    # ------------------------------------------------------------------------------------------------ coming and going

    def join(
        self, role: str, *flags: str, name: str = "", before: Sequence[str] = (), **environ: str
    ) -> dict[str, Any]:
        """Start another pod, just as one of its role was started that `up` named; return what it says of itself.

        `flags` and `environ` come on top, `before` stands before its command. A `name` that a pod had before is another
        incarnation of it.
        """
        name = name or f"{role}-joined-{len(self._joined)}"
        pod = self._start(role, name, ["--pod-id", name, *flags], before, environ)
        self.said[role].append(pod)
        return pod

    def join_router(self, name: str, *flags: str, before: Sequence[str] = (), **environ: str) -> dict[str, Any]:
        """Start another router likewise, on ports of its own; return what it says of itself, and its `pid`."""
        return self._start("router", name, ["--name", name, *flags], before, environ)

    def _start(
        self, role: str, name: str, flags: list[str], before: Sequence[str], environ: dict[str, str]
    ) -> dict[str, Any]:
        command, ours = self._how[role]
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*TETHER, str(os.getpid()), *before, *command, *flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env={**ours, **environ}, text=True,
                start_new_session=True,
            )  # fmt: skip
        self._joined.append(process)
        line = _ready_line(process)
        assert line, f"{name} did not start:\n{self.log(name)[-2000:]}"
        said: dict[str, Any] = json.loads(line)
        said.setdefault("pid", process.pid)
        self._note(said)
        self.running()
        return said

    def exit_code(self, pod: dict[str, Any]) -> int:
        """Return how a pod ended; waits for it."""
        for process in reversed(self._joined):
            if process.pid == pod["pid"]:
                return process.wait(timeout=60)
        ended = re.compile(rf"{pod['id']} ended with exit code (-?\d+)")
        deadline_s = time.monotonic() + 60
        while (found := ended.search(self.log("up"))) is None:
            assert time.monotonic() < deadline_s, f"{pod['id']} did not end"
            time.sleep(0.05)
        return int(found[1])

    # ------------------------------------------------------------------------------------------------------- ending

    def kill(self, pod: dict[str, Any]) -> None:
        """SIGKILL for a pod's front, which is gone then; its engine follows by itself."""
        process = self.process_of(pod)
        process.kill()
        while is_alive(process):
            time.sleep(0.001)

    def stop(self) -> int:
        """Interrupt `up`; return its exit code once it and everything that it started are gone.

        Every pod that lived until then must have proved its pool: all blocks free or cached. The logs go when
        all that was right and `up` ended with 0.
        """
        try:
            code = self._stop()
        except BaseException as error:
            error.add_note(f"logs are kept in {self.logs}")
            raise
        if code == 0:
            shutil.rmtree(self.logs)
        else:
            print(f"up ended with {code}; logs are kept in {self.logs}")
        return code

    def _stop(self) -> int:
        orphans.forget(self)
        self.running()
        alive_until_now = [pod["id"] for pod in self.alive()]
        try:
            assert self.orphans() == {}
        finally:
            self._leave()
            self.process.send_signal(signal.SIGINT)
            try:
                code = self.process.wait(timeout=60)
            finally:
                self.process.kill()
                self._close_streams()
        left = left_behind(self._seen, within_s=10)
        assert left == [], f"left behind: {left}"
        for name in alive_until_now:
            assert AT_REST.search(self.log(name)), self.log(name)
        return code

    def _leave(self) -> None:
        """End the pods that joined; wake what a test left stopped."""
        for stopped in self.running():
            with contextlib.suppress(psutil.NoSuchProcess):
                stopped.resume()
        for process in self._joined:
            process.terminate()
        for process in self._joined:
            try:
                process.communicate(timeout=60)
            finally:
                process.kill()
                process.communicate(timeout=10)

    def _close_streams(self) -> None:
        self._looks.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.close()

    def log(self, name: str) -> str:
        """Return the log of one process."""
        return (self.logs / f"{name}.log").read_text()


def _ready_line(process: subprocess.Popen[str]) -> str:
    """Return what a process says when it is up, "" where it ended first or was killed after `READY_S`."""
    assert process.stdout is not None
    patience = threading.Timer(READY_S, process.kill)
    patience.start()
    try:
        return process.stdout.readline()
    finally:
        patience.cancel()


def _how_started(pod: psutil.Process) -> tuple[list[str], dict[str, str]]:
    return pod.cmdline(), pod.environ()


def _is_at_rest(state: dict[str, float]) -> bool:
    in_use = sum(state[f"kv_blocks_{name}"] for name in ("held", "reserved", "orphaned", "quarantined"))
    idle = sum(state[f"kv_blocks_{name}"] for name in ("free", "cached", "pinned"))
    return in_use == 0 and idle == state["kv_blocks_total"] and state["leases_held"] == 0
