"""A real cluster of real processes: started by `pagewire up`, driven through its doors, read through its metrics."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

START_S = 120.0
REST_S = 20.0
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
        arguments = ["up", "--model", str(model), "--port", "0", "--grpc-port", "0", "--log-dir", str(self.logs)]
        self._stderr = (self.logs / "up.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pagewire.cli.main", *arguments, *flags],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environ},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self._close_streams()
            raise AssertionError(f"the cluster did not start; logs in {self.logs}:\n{self.log('up')}")
        self.said: dict[str, Any] = json.loads(line)
        self.http: str = self.said["router"]["http"]
        self.grpc: str = self.said["router"]["grpc"]
        self.tree = psutil.Process(self.process.pid).children(recursive=True)

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
        models = httpx.get(f"{self.http}/v1/models", trust_env=False).json()
        name: str = models["data"][0]["id"]
        return name

    # ------------------------------------------------------------------------------------------------------ looking

    def pods(self) -> list[dict[str, Any]]:
        """Return all pods that `up` named."""
        return [*self.said["prefill"], *self.said["decode"], *self.said["colocated"]]

    def metrics(self, pod: dict[str, Any]) -> dict[str, float]:
        """Return a pod's metrics by name, without the prefix."""
        text = httpx.get(pod["metrics"], trust_env=False).text
        return {
            sample.name.removeprefix("pagewire_"): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def assert_at_rest(self) -> None:
        """Every block of every living pod is free or cached, none is promised or orphaned; waits for stragglers."""
        deadline_s = time.monotonic() + REST_S
        while True:
            states = {pod["id"]: self.metrics(pod) for pod in self.pods() if psutil.pid_exists(pod["pid"])}
            if all(_is_at_rest(state) for state in states.values()):
                return
            assert time.monotonic() < deadline_s, json.dumps(states, indent=1)
            time.sleep(0.05)

    def engine_of(self, pod: dict[str, Any]) -> psutil.Process:
        """Return the engine process of a pod."""
        (engine,) = psutil.Process(pod["pid"]).children(recursive=True)
        return engine

    # ------------------------------------------------------------------------------------------------------- ending

    def kill(self, pod: dict[str, Any]) -> None:
        """SIGKILL for a pod's front; its engine follows by itself."""
        os.kill(pod["pid"], signal.SIGKILL)

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
        alive_until_now = [pod["id"] for pod in self.pods() if psutil.pid_exists(pod["pid"])]
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self._close_streams()
        _, alive = psutil.wait_procs(self.tree, timeout=10)
        assert alive == [], f"left behind: {alive}"
        for name in alive_until_now:
            assert AT_REST.search(self.log(name)), self.log(name)
        return code

    def _close_streams(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.close()

    def log(self, name: str) -> str:
        """Return the log of one process."""
        return (self.logs / f"{name}.log").read_text()


def _is_at_rest(state: dict[str, float]) -> bool:
    in_use = sum(state[f"kv_blocks_{name}"] for name in ("held", "reserved", "orphaned"))
    return in_use == 0 and state["kv_blocks_free"] + state["kv_blocks_cached"] == state["kv_blocks_total"]
