"""The stack as users get it, on the real model: answers, more pods, pods that die. The tests run in this order."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from container_engine import Engine, Project, told, until
from source_tree import ROOT

KNOWN = "What is the capital of France?"
PROMPTS = [
    KNOWN,
    "Why is the sky blue? Answer in three sentences.",
    "Tell a short story of a cat and a lighthouse.",
    "List the planets of the solar system, each with one remark.",
]
ASK = Path(__file__).parent / "ask.py"
LONG_RUNNING = ("redis", "router", "prefill", "decode", "prometheus")


class Asking:
    """A third container that asks the router; iterates over its answers as they come."""

    def __init__(self, stack: Project, rounds: int, at_once: int) -> None:
        command = [
            stack.engine.program, "run", "--rm", "--network", f"{stack.name}_outside", "--volume", f"{ASK}:/ask.py:ro",
            "--entrypoint", "python3", f"pagewire-router:{stack.variables['TAG']}",
            "/ask.py", "router", json.dumps(PROMPTS), str(rounds), str(at_once),
        ]  # fmt: skip
        self.expected = rounds * len(PROMPTS) * 2
        self._process = subprocess.Popen(
            command, env=stack.engine.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Yield each answer; AssertionError where one could not be had."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)
        _, errors = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, errors


@pytest.fixture(scope="module")
def answers(stack: Project) -> dict[str, str]:
    """Each prompt's answer from one prefill and one decode pod, the same by both doors."""
    said = list(Asking(stack, rounds=1, at_once=1))
    assert {(each["door"], each["prompt"]) for each in said} == {
        (door, prompt) for door in ("http", "sdk") for prompt in PROMPTS
    }
    found = {each["prompt"]: each["text"] for each in said}
    assert [each for each in said if each["text"] != found[each["prompt"]]] == []
    # Computed on the prefill pod; between containers too the blocks go through shared memory.
    assert {each["transport"] for each in said if each["door"] == "sdk"} == {"shm"}
    return found


def pods(stack: Project) -> dict[str, int]:
    """Return how many pods of each role the router is linked with, asked by the port that is published."""
    url = f"http://127.0.0.1:{stack.variables['HTTP_PORT']}/health"
    linked: dict[str, int] = httpx.get(url, timeout=10, trust_env=False).json()["pods"]
    return linked


def test_the_clone_s_own_file_is_the_same_stack(engine: Engine, images: dict[str, str]) -> None:
    """What `docker compose up` finds, as it is understood; it includes the other file."""
    if engine.name != "docker":
        pytest.skip("podman-compose takes an included file's paths for ones of its includer")

    own, included = (
        json.loads(Project(engine, "clone", (path,), images).compose("config", "--format", "json"))
        for path in (ROOT / "compose.yaml", ROOT / "compose" / "compose.yaml")
    )
    assert own.keys() == {"name", "services", "networks", "volumes"}
    assert {part: included[part] for part in own} == own


def test_the_router_s_image_says_what_it_runs(engine: Engine, images: dict[str, str]) -> None:
    began_s = time.monotonic()
    said = engine.run("run", "--rm", "--network", "none", f"pagewire-router:{images['TAG']}", "--help")
    told(f"pagewire --help in a container of its own took {time.monotonic() - began_s:.2f} s")
    assert all(each in said for each in ("router", "prefill", "decode"))


@pytest.mark.parametrize("image", ["router", "pod-cpu"])
def test_images_say_what_they_were_built_from(engine: Engine, images: dict[str, str], image: str) -> None:
    labels = engine.run("image", "inspect", "--format", "{{json .Config.Labels}}", f"pagewire-{image}:{images['TAG']}")
    assert json.loads(labels)["org.opencontainers.image.revision"] == images["REVISION"]


@pytest.mark.parametrize(("image", "has_torch"), [("router", False), ("pod-cpu", True)])
def test_pods_alone_bring_torch(engine: Engine, images: dict[str, str], image: str, has_torch: bool) -> None:
    look = "import importlib.util; print(importlib.util.find_spec('torch') is not None)"
    python = ("--entrypoint", "python3", f"pagewire-{image}:{images['TAG']}", "-c", look)
    assert engine.run("run", "--rm", "--network", "none", *python).strip() == str(has_torch)


def test_a_third_container_is_answered_by_http_and_by_the_sdk(answers: dict[str, str]) -> None:
    assert answers[KNOWN] == "The capital of France is Paris."
    assert len(set(answers.values())) == len(PROMPTS)
    assert all(answers.values())


def test_no_container_is_root_or_can_write_to_its_image(stack: Project, answers: dict[str, str]) -> None:
    for service in LONG_RUNNING:
        for container in stack.containers(service):
            user = stack.engine.run("exec", container, "id", "-u").strip()
            assert user == ("65534" if service == "prometheus" else "10001")
            refused = stack.engine.run("exec", container, "sh", "-c", "touch /usr/x 2>&1 || echo refused", check=False)
            assert "Read-only file system" in refused, (container, refused)


def test_no_environment_and_no_command_line_shows_a_secret(stack: Project, answers: dict[str, str]) -> None:
    (router,) = stack.containers("router")
    written = stack.engine.run("exec", router, "cat", "/run/pagewire/cluster.toml")
    secrets = [line.partition("= ")[2].strip('"') for line in written.splitlines() if "secret" in line]
    secrets += [
        line.partition("pagewire:")[2].partition("@")[0] for line in written.splitlines() if "redis_url" in line
    ]
    assert [len(each) >= 40 for each in secrets] == [True, True]
    for container in stack.containers(ended=True):
        shown = json.dumps(stack.inspect(container))
        assert not any(each in shown for each in secrets), container


def test_pods_have_no_way_out(stack: Project, answers: dict[str, str]) -> None:
    """The router has one: it is published."""
    try_out = "import socket; socket.create_connection((socket.gethostbyname('router'), 8000), 3); print('router')"
    (decode,) = stack.containers("decode")
    assert stack.engine.run("exec", decode, "python3", "-c", try_out).strip() == "router"
    routes = "print(sum(line.split()[1] == '00000000' for line in open('/proc/net/route').readlines()[1:]))"
    assert stack.engine.run("exec", decode, "python3", "-c", routes).strip() == "0"


def test_more_pods_join_and_answer_alike(stack: Project, answers: dict[str, str]) -> None:
    stack.scale(prefill=2, decode=3)
    assert (len(stack.containers("prefill")), len(stack.containers("decode"))) == (2, 3)
    until(lambda: (pods(stack)["prefill"], pods(stack)["decode"]) == (2, 3), "the new pods are not linked", 600.0)
    stack.wait_healthy("prefill", "decode")
    said = list(Asking(stack, rounds=3, at_once=4))
    assert [each for each in said if each["text"] != answers[each["prompt"]]] == []
    assert len({each["decode_pod"] for each in said if each["door"] == "sdk"}) == 3


def test_prometheus_sees_each_of_several_pods_of_one_service(stack: Project, answers: dict[str, str]) -> None:
    """It finds them by their service's name alone; it has read the rules, and computes them."""
    url = f"http://127.0.0.1:{stack.variables['PROMETHEUS_PORT']}/api/v1"

    def seen(query: str, label: str) -> dict[str, float]:
        answer = httpx.get(f"{url}/query", params={"query": query}, timeout=10, trust_env=False).json()
        return {each["metric"][label]: float(each["value"][1]) for each in answer["data"]["result"]}

    wanted = {"pagewire-router": 1.0, "pagewire-pods": 5.0}
    up = 'sum by (job) (up{job=~"pagewire-.*"})'
    until(lambda: seen(up, "job") == wanted, f"Prometheus does not see {wanted}", 120.0)
    by_role, pods_by_role = "count by (role) (pod:kv_blocks_available:ratio)", {"prefill": 2.0, "decode": 3.0}
    until(lambda: seen(by_role, "role") == pods_by_role, f"no rule is computed over {pods_by_role}", 120.0)


def test_pods_that_are_killed_cost_no_answer(stack: Project, answers: dict[str, str]) -> None:
    asking = Asking(stack, rounds=6, at_once=4)
    said = []
    for each in asking:
        said.append(each)
        if len(said) == 4:
            stack.engine.run("kill", "--signal", "KILL", stack.containers("decode")[0])
        if len(said) == 12:
            stack.engine.run("kill", "--signal", "KILL", stack.containers("prefill")[0])
    assert len(said) == asking.expected
    assert [each for each in said if each["text"] != answers[each["prompt"]]] == []


def test_a_router_that_starts_anew_finds_its_pods(stack: Project, answers: dict[str, str]) -> None:
    """How long that takes is said, not judged: it is the machine's affair."""
    (router,) = stack.containers("router")
    stack.engine.run("stop", router)
    began_s = time.monotonic()
    stack.engine.run("start", router)
    url = f"http://127.0.0.1:{stack.variables['HTTP_PORT']}/live"

    def is_live() -> bool:
        try:
            return httpx.get(url, timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    while not is_live():
        assert time.monotonic() < began_s + 120, "the router is not live"
        time.sleep(0.02)
    told(f"the router is live {time.monotonic() - began_s:.2f} s after its container's start began")
    stack.wait_healthy("router")
    said = list(Asking(stack, rounds=1, at_once=1))
    assert [each for each in said if each["text"] != answers[each["prompt"]]] == []
