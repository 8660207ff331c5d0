"""A container engine as the tests of the images use it: Docker where it runs, else Podman with podman-compose.

Podman is told where to keep everything, so that nothing of the machine's own configuration or images is touched. Knows
nothing of what is in the images. Invariant: `find` returns an engine that answers, or None with the reason said.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CERTIFICATES = Path("/etc/ssl/certs")
PODMAN_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
STORAGE_CONF = '[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
# Statically linked wherever glibc is, so it runs alone in an image.
LONER = Path("/sbin/ldconfig")
PROBE = 'FROM scratch\nCOPY ldconfig /\nRUN ["/ldconfig", "--version"]\nENTRYPOINT ["/ldconfig", "--version"]\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A program that builds and runs containers, and the one that reads compose files."""

    name: str
    program: str
    compose: Sequence[str]
    environ: Mapping[str, str]
    build_flags: Sequence[str]

    def run(self, *arguments: str, timeout_s: float = 120.0, check: bool = True) -> str:
        """Run the engine and return what it said; AssertionError with everything it said where it failed."""
        return said([self.program, *arguments], self.environ, timeout_s, check)

    def has_image(self, name: str) -> bool:
        """Return if an image is here."""
        return self.run("images", "-q", name, check=False).strip() != ""

    def pull(self, name: str) -> bool:
        """Fetch an image; False where its registry cannot be reached."""
        done = subprocess.run(
            [self.program, "pull", name], env=self.environ, capture_output=True, timeout=600, check=False
        )
        return done.returncode == 0

    def build(self, context: Path, file: Path, tag: str, *, target: str = "", **arguments: str) -> None:
        """Build an image, with `arguments` for its ARGs."""
        given = [flag for name, value in arguments.items() for flag in ("--build-arg", f"{name}={value}")]
        stage = ["--target", target] if target else []
        command = ("build", *self.build_flags, "-f", str(file), "-t", tag, *stage, *given, str(context))
        self.run(*command, timeout_s=3600.0)

    def is_healthy(self, container: str) -> bool:
        """Return what the container's health check says now; Podman without systemd runs none unless asked."""
        if self.name == "docker":
            status = self.run("inspect", "--format", "{{.State.Health.Status}}", container, check=False)
            return status.strip() == "healthy"
        command = [self.program, "healthcheck", "run", container]
        try:
            done = subprocess.run(command, env=self.environ, capture_output=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


@dataclass(frozen=True, slots=True)
class Project:
    """One stack of an engine, under a name of its own."""

    engine: Engine
    name: str
    files: Sequence[Path]
    variables: dict[str, str]

    def scale(self, **replicas: int) -> None:
        """Have so many containers of these services, as README says: by flags, and by variables with podman-compose."""
        flags = []
        if self.engine.name == "docker":
            flags = [f"--scale={name}={number}" for name, number in replicas.items()]
        else:
            self.variables.update({f"{name.upper()}_PODS": str(number) for name, number in replicas.items()})
        self.compose("up", "--detach", "--no-build", "--no-recreate", *flags, *replicas)

    def compose(self, *arguments: str, timeout_s: float = 900.0) -> str:
        """Run compose on the stack's files."""
        files = [flag for file in self.files for flag in ("-f", str(file))]
        command = [*self.engine.compose, "-p", self.name, *files, *arguments]
        return said(command, {**self.engine.environ, **self.variables}, timeout_s, True)

    def containers(self, service: str = "", *, ended: bool = False) -> list[str]:
        """Return the names of a service's running containers, those that ended too where asked for, in order."""
        labels = [f"label=com.docker.compose.project={self.name}"]
        if service:
            labels.append(f"label=com.docker.compose.service={service}")
        filters = [flag for label in labels for flag in ("--filter", label)]
        every = ["--all"] if ended else []
        return sorted(self.engine.run("ps", *every, *filters, "--format", "{{.Names}}").split())

    def wait_healthy(self, *services: str, timeout_s: float = 600.0) -> None:
        """Return when every container of these is healthy."""
        for container in [each for service in services for each in self.containers(service)]:
            until(lambda each=container: self.engine.is_healthy(each), f"{container} is not healthy", timeout_s)

    def inspect(self, container: str) -> dict[str, object]:
        """Return what the engine knows of a container."""
        known: list[dict[str, object]] = json.loads(self.engine.run("inspect", container))
        return known[0]


def told(message: str) -> None:
    """Say what takes so long, and how long it took."""
    print(f"[{time.strftime('%H:%M:%S')}] {message}", file=sys.__stderr__, flush=True)


def said(command: Sequence[str], environ: Mapping[str, str], timeout_s: float, check: bool) -> str:
    """Return the standard output of a command; AssertionError with all that it said where it failed."""
    done = subprocess.run(
        list(command), env=environ, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
    )
    assert done.returncode == 0 or not check, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def until(is_so: object, otherwise: str, timeout_s: float) -> None:
    """Return when `is_so()` is true, looking twice a second."""
    assert callable(is_so)
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, otherwise
        time.sleep(0.5)


def find(folder: Path) -> tuple[Engine | None, str]:
    """Return an engine that runs, Podman's files being kept in `folder`; or None and what each lacks."""
    reasons = []
    for engine, lacks in (_docker(), _podman(folder)):
        if engine is not None:
            return engine, ""
        reasons.append(lacks)
    return None, "; ".join(reasons)


def _docker() -> tuple[Engine | None, str]:
    environ = dict(os.environ)
    for command in (["docker", "info"], ["docker", "buildx", "version"], ["docker", "compose", "version"]):
        if lacks := _fails(command, environ):
            return None, lacks
    return Engine(name="docker", program="docker", compose=["docker", "compose"], environ=environ, build_flags=()), ""


def _podman(folder: Path) -> tuple[Engine | None, str]:
    if importlib.util.find_spec("podman_compose") is None:
        return None, "podman-compose is not installed"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "containers.conf").write_text(PODMAN_CONF.format(folder=folder))
    (folder / "storage.conf").write_text(STORAGE_CONF.format(folder=folder))
    environ = {
        **os.environ,
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    flags = ["--pull=never", "--format", "docker"]
    if CERTIFICATES.is_dir():
        flags += ["-v", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
    compose = [sys.executable, "-m", "podman_compose"]
    engine = Engine(name="podman", program="podman", compose=compose, environ=environ, build_flags=flags)
    lacks = _fails(["podman", "info"], environ) or _runs_nothing(engine, folder)
    return (None, lacks) if lacks else (engine, "")


def _runs_nothing(engine: Engine, folder: Path) -> str:
    """Return why no container is built and run on a network of its own, "" where one is.

    Podman answers in sandboxes too that let it run nothing. What is tried needs no base, so nothing has to be fetched.
    """
    if not LONER.exists():
        return f"{LONER} is not here to be tried in one"
    network = image = "pagewire-probe"
    with tempfile.TemporaryDirectory(dir=folder) as context:
        shutil.copy(LONER, Path(context) / "ldconfig")
        (Path(context) / "Dockerfile").write_text(PROBE)
        steps = (
            ["build", *engine.build_flags, "-t", image, context],
            ["network", "create", network],
            ["run", "--rm", "--network", network, image],
        )
        found = next((lacks for step in steps if (lacks := _fails([engine.program, *step], engine.environ))), "")
    engine.run("network", "rm", "--force", network, check=False)
    engine.run("rmi", "--force", image, check=False)
    return found


def _fails(command: Sequence[str], environ: Mapping[str, str]) -> str:
    name = " ".join(command)
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    try:
        done = subprocess.run(list(command), env=environ, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return f"{name} does not answer"
    lines: Iterator[str] = iter(done.stderr.strip().splitlines()[-1:])
    return "" if done.returncode == 0 else f"{name}: {next(lines, 'failed')}"
