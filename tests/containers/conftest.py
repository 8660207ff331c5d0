"""The stack of compose/compose.yaml and the Prometheus beside it, built from this tree and running, once for all tests.

Without a container engine the run ends with exit code 77 and says so: nothing was tested, and nothing has passed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from container_engine import CERTIFICATES, Engine, Project, find, told
from free_ports import free_port

from pagewire.cli.certs import HOSTS, make

NO_ENGINE = 77
ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
TAG = "compose-test"
REVISION = secrets.token_hex(20)  # as long as a commit's, and another each time
IMAGES = ("router", "pod-cpu")
BASE = "localhost/pagewire-base:bookworm"
# What stands in for the images of others, each built by a Dockerfile of that name here, where no registry has them.
STAND_INS = {name: f"localhost/pagewire-{name}:bookworm" for name in ("redis", "prometheus")}
SERVICES = ("router", "prefill", "decode", "prometheus")  # and what they depend on
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# What a test needs beyond what users get: answers that do not depend on what else runs, the authorities of the machine;
# and no traces, for there is no collector.
OVERRIDE = """\
services:
  model:
    volumes: ["{certificates}:{certificates}:ro"]
  router:
    environment: {{OTEL_SDK_DISABLED: "true"}}
  prefill:
    environment: {{PAGEWIRE_DETERMINISTIC: "true", OTEL_SDK_DISABLED: "true"}}
  decode:
    environment: {{PAGEWIRE_DETERMINISTIC: "true", OTEL_SDK_DISABLED: "true"}}
"""


RUNS_AS = (10001, 10001)


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Where the engine keeps images: COMPOSE_TEST_FOLDER, which stays for the next run, or one that goes."""
    if kept := os.environ.get("COMPOSE_TEST_FOLDER"):
        yield Path(kept)
        return
    fresh = Path(tempfile.mkdtemp(prefix="pagewire-compose-"))
    yield fresh
    shutil.rmtree(fresh, ignore_errors=True)


@pytest.fixture(scope="session")
def engine(folder: Path) -> Iterator[Engine]:
    """The engine, with nothing of ours left in it afterwards unless images are kept."""
    found, lacks = find(folder)
    if found is None:
        pytest.exit(f"SKIPPED, NOT PASSED: no container engine runs here ({lacks})", returncode=NO_ENGINE)
    told(f"containers by {found.name}")
    yield found
    if not os.environ.get("COMPOSE_TEST_FOLDER"):
        for image in (*(f"pagewire-{name}:{TAG}" for name in IMAGES), *STAND_INS.values(), BASE):
            found.run("rmi", "--force", image, timeout_s=600.0, check=False)
        if found.name == "podman":
            found.run("system", "reset", "--force", timeout_s=600.0, check=False)


@pytest.fixture(scope="session")
def images(engine: Engine, folder: Path) -> dict[str, str]:
    """Build what the stack runs, and return the variables that name it."""
    text = "".join(file.read_text(encoding="utf-8") for file in COMPOSE.glob("compose*.yaml"))
    default = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text))
    stand_ins = {f"{name.upper()}_IMAGE": image for name, image in STAND_INS.items()}
    variables = {name: default[name] for name in ("BASE_IMAGE", *stand_ins)}
    if not all(engine.pull(image) for image in variables.values()):
        told(f"no registry can be reached: the base, {' and '.join(STAND_INS)} are made of Debian's packages")
        _bootstrap(engine, folder)
        here = Path(__file__).parent
        for name, image in STAND_INS.items():
            engine.build(here, here / f"{name}.Dockerfile", image, BASE_IMAGE=BASE)
        variables = {"BASE_IMAGE": BASE, **stand_ins}
    variables |= {"TAG": TAG, "REVISION": REVISION}
    arguments = {"BASE_IMAGE": variables["BASE_IMAGE"], "REVISION": REVISION}
    arguments |= {
        name: os.environ[name] for name in ("DEBIAN_MIRROR", "PIP_INDEX_URL", "TORCH_INDEX") if name in os.environ
    }
    with _torch_wheel():
        for name in IMAGES:
            began_s = time.monotonic()
            engine.build(ROOT, COMPOSE / "Dockerfile", f"pagewire-{name}:{TAG}", target=name, **arguments)
            size = int(engine.run("image", "inspect", "--format", "{{.Size}}", f"pagewire-{name}:{TAG}"))
            told(f"pagewire-{name}: {size / 1e6:.0f} MB, built in {time.monotonic() - began_s:.0f} s")
    return variables


def _bootstrap(engine: Engine, folder: Path) -> None:
    """Import a Debian under the name that is built on, unless it is there."""
    if engine.has_image(BASE):
        return
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        root, archive = Path(scratch) / "root", Path(scratch) / "root.tar"
        include = "--include=ca-certificates"
        command = ["debootstrap", "--variant=minbase", include, "bookworm", str(root)]
        command += [os.environ["DEBIAN"]] if "DEBIAN" in os.environ else []  # a mirror other than its own
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
        assert done.returncode == 0, f"debootstrap: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        leave = ["--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*"]
        subprocess.run(["tar", "-C", str(root), *leave, "-cf", str(archive), "."], check=True, timeout=600)
        engine.run("import", str(archive), BASE, timeout_s=600)


class _torch_wheel:
    """Has the wheel that this machine's pip finds in compose/wheels, where the build takes it, else none."""

    def __enter__(self) -> None:
        self._before = set((COMPOSE / "wheels").glob("*.whl"))
        if any(path.name.startswith("torch-") for path in self._before):
            return
        version = re.search(r"^TORCH_VERSION := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert version is not None
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"torch=={version[1]}",
            "--index-url", os.environ.get("TORCH_INDEX", TORCH_INDEX), "--only-binary", ":all:",
            "--python-version", "3.11", "--platform", f"manylinux_2_28_{platform.machine()}",
            "--dest", str(COMPOSE / "wheels"),
        ]  # fmt: skip
        if subprocess.run(command, capture_output=True, check=False, timeout=1800).returncode:
            told("pip finds no CPU wheel of torch here: the build asks its index")

    def __exit__(self, *_: object) -> None:
        for path in set((COMPOSE / "wheels").glob("*.whl")) - self._before:
            path.unlink()


@pytest.fixture(scope="module")
def stack(engine: Engine, images: dict[str, str], folder: Path) -> Iterator[Project]:
    """The stack, up and healthy; gone with its volumes afterwards."""
    override = folder / "override.yaml"
    override.write_text(OVERRIDE.format(certificates=CERTIFICATES))
    with running(engine, (COMPOSE / "compose.yaml", COMPOSE / "compose.observe.yaml", override), images) as project:
        yield project


@pytest.fixture(scope="module")
def certs(folder: Path) -> Path:
    """Return a folder of certificates as compose.tls.yaml wants them."""
    made = Path(tempfile.mkdtemp(prefix="certs-", dir=folder))
    made.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def write_certificates(certs: Path) -> Callable[[], None]:
    """Return what writes a whole set anew, of an authority that nobody has seen."""

    def write() -> None:
        with tempfile.TemporaryDirectory(dir=certs.parent) as fresh:
            make(Path(fresh), hosts=(*HOSTS, "router", "redis"))
            for file in Path(fresh).iterdir():
                if file.stem in ("router", "pod"):
                    os.chown(file, *RUNS_AS)
                file.replace(certs / file.name)

    return write


@pytest.fixture(scope="module")
def secured(
    engine: Engine, images: dict[str, str], folder: Path, certs: Path, write_certificates: Callable[[], None]
) -> Iterator[Project]:
    """The stack with TLS on every wire."""
    write_certificates()
    override = folder / "override-tls.yaml"
    override.write_text(OVERRIDE.format(certificates=CERTIFICATES) + '  redis:\n    environment: {RENEW_S: "1"}\n')
    files = tuple(COMPOSE / name for name in ("compose.yaml", "compose.observe.yaml", "compose.tls.yaml"))
    variables = {**images, "CERTS": str(certs), "PROMETHEUS_FILE": "prometheus-tls.yml"}
    with running(engine, (*files, override), variables) as project:
        yield project


@contextlib.contextmanager
def running(engine: Engine, files: Sequence[Path], told_variables: dict[str, str]) -> Iterator[Project]:
    """Bring a stack up, and yield it when it is healthy; gone with its volumes afterwards."""
    variables = {
        **told_variables,
        "HTTP_PORT": str(free_port()),
        "GRPC_PORT": str(free_port()),
        "PROMETHEUS_PORT": str(free_port()),
        "THREADS": "1",
        "POLICY": "round_robin",  # every pod gets its share, however few requests there are
        "KV_MEMORY": "256MiB",
    }
    name = f"pagewire-test-{secrets.token_hex(3)}"
    project = Project(engine, name, files, variables)
    began_s = time.monotonic()
    try:
        project.compose("up", "--detach", "--no-build", *SERVICES)
        project.wait_healthy("redis", *SERVICES)
        told(f"up and healthy after {time.monotonic() - began_s:.0f} s")
        yield project
    except BaseException:
        for container in project.containers(ended=True):
            told(f"--- {container}\n{engine.run('logs', '--tail', '40', container, check=False)}")
        raise
    finally:
        project.compose("down", "--volumes")
        assert project.containers(ended=True) == []
