"""The compose files and the Dockerfile as they are read: valid, hardened, pinned, explained. No engine is needed."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagewire.core.config import settings
from pagewire.kvtransfer.offers import NAMES, parse_names
from pagewire.router.config import RouterConfig
from pagewire.serving.pod_config import PodConfig

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
FILES = sorted(COMPOSE.glob("compose*.yaml"))
OF_THE_CLONE = ROOT / "compose.yaml"  # what `docker compose up` finds
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)(?::-([^}]*))?\}")
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
ONE_SHOT = {"secrets", "model"}


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def services() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{path.name}:{name}", service)
        for path in FILES
        for name, service in yaml.safe_load(text(path))["services"].items()
    ]


# Services that a file adds to are whole in compose.yaml alone; what the other files add are those with an image.
WHOLE = [(where, service) for where, service in services() if where.startswith("compose.yaml:") or "user" in service]


def default(value: str) -> str:
    return VARIABLE.sub(lambda found: found[2] or "", value)


def stages() -> dict[str, str]:
    """Return each stage of the Dockerfile with what is built on."""
    return {
        name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", text(COMPOSE / "Dockerfile"), re.MULTILINE)
    }


def test_there_are_the_four_files() -> None:
    names = ["compose.gpu.yaml", "compose.observe.yaml", "compose.tls.yaml", "compose.yaml"]
    assert [path.name for path in FILES] == names


@pytest.mark.parametrize("path", [*FILES, OF_THE_CLONE], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_valid_by_the_compose_specification(path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_service_that_the_specification_does_not_know_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(text(COMPOSE / "compose.yaml").replace("read_only: true", "readonly: true"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(wrong)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1


def test_in_the_clone_the_same_stack_comes_up_under_the_same_name() -> None:
    """Paths of an included file, and its .env, are those of its own folder: so nothing may be said twice."""
    clone = yaml.safe_load(text(OF_THE_CLONE))
    assert clone == {
        "name": yaml.safe_load(text(COMPOSE / "compose.yaml"))["name"],
        "include": ["compose/compose.yaml"],
    }


def test_each_variable_is_explained_once_and_each_explained_one_is_used() -> None:
    used = {name for path in FILES for name, _ in VARIABLE.findall(text(path))}
    lines = text(COMPOSE / ".env.example").splitlines()
    told = [line.partition("=")[0].lstrip("#") for line in lines if re.match(r"#?[A-Z_]+=", line)]
    assert sorted(told) == sorted(used)
    for previous, line in itertools.pairwise(lines):
        if re.match(r"#?[A-Z_]+=", line):
            assert previous.startswith("#"), f"nothing explains {line}"


def test_what_the_example_says_of_defaults_is_so() -> None:
    told = dict(re.findall(r"^#([A-Z_]+)=(.*)$", text(COMPOSE / ".env.example"), re.MULTILINE))
    for path in FILES:
        for name, value in VARIABLE.findall(text(path)):
            assert value == told[name], f"{name} in {path.name}"


def test_the_example_tells_of_every_transport_and_names_some_that_go_with_each_device() -> None:
    example = text(COMPOSE / ".env.example")
    told = example.partition("#TRANSPORTS=")[0]
    assert {"auto", *NAMES} <= set(re.findall(r"\w+", told.rpartition("#THREADS=")[2]))
    for variable, device in (("", "cpu"), ("GPU_", "cuda")):
        names = re.search(rf"^#{variable}TRANSPORTS=(.*)$", example, re.MULTILINE)
        assert names is not None
        assert set(parse_names(names[1], device)) <= set(NAMES)


def test_nothing_has_to_be_set() -> None:
    for path in FILES:
        assert not re.search(r"\$\{[A-Z_]+(:?\?|\})", text(path)), path


@pytest.mark.parametrize(("where", "service"), WHOLE, ids=[where for where, _ in WHOLE])
def test_every_service_is_hardened(where: str, service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["user"].partition(":")[0]) > 0
    assert "privileged" not in service
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))


@pytest.mark.parametrize(("where", "service"), WHOLE, ids=[where for where, _ in WHOLE])
def test_every_service_that_stays_is_restarted_and_watched(where: str, service: dict[str, Any]) -> None:
    name = where.partition(":")[2]
    if name in ONE_SHOT:
        assert service["restart"] == "no"
        return
    assert service["restart"] == "unless-stopped"
    if name != "otel-collector":  # an image without a shell or a client
        assert service["healthcheck"]["test"]
    for condition in service.get("depends_on", {}).values():
        assert condition["condition"] in ("service_healthy", "service_completed_successfully")


def test_pods_wait_for_redis_to_be_healthy_and_for_the_model() -> None:
    main = yaml.safe_load(text(COMPOSE / "compose.yaml"))["services"]
    for name in ("router", "prefill", "decode"):
        assert {each: told["condition"] for each, told in main[name]["depends_on"].items()} == {
            "secrets": "service_completed_successfully",
            "model": "service_completed_successfully",
            "redis": "service_healthy",
        }


def test_pods_and_redis_are_in_a_network_of_their_own_and_publish_nothing() -> None:
    main = yaml.safe_load(text(COMPOSE / "compose.yaml"))
    assert main["networks"]["inside"] == {"internal": True}
    for name in ("prefill", "decode", "redis"):
        assert main["services"][name]["networks"] == ["inside"]
        assert "ports" not in main["services"][name]
        assert "container_name" not in main["services"][name]


def test_where_cores_are_short_the_router_goes_before_the_rest() -> None:
    main = yaml.safe_load(text(COMPOSE / "compose.yaml"))
    shares = {name: service.get("cpu_shares", 1024) for name, service in main["services"].items()}
    assert shares.pop("router") > max(shares.values())


def test_ports_are_published_on_loopback_unless_told_otherwise() -> None:
    ports = [default(port) for _, service in services() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_secret_is_written_anywhere() -> None:
    """What is secret has no default, and no service but the one that writes the files is told it."""
    for where, service in services():
        for name, value in service.get("environment", {}).items():
            if value.startswith("/etc/pagewire/certs/"):
                continue  # where a key is, not what it is
            if re.search(r"PASSWORD|SECRET|TOKEN|_KEY$|REDIS_URL", name) and not name.startswith("GF_SECURITY_DISABLE"):
                assert where == "compose.yaml:secrets"
                assert default(value) == ""
    assert not re.search(r"(?i)(password|secret|token)\w*=", text(COMPOSE / "Dockerfile"))


def test_images_of_others_are_pinned_by_digest() -> None:
    images = {default(service["image"]) for _, service in services() if "image" in service}
    ours = {image for image in images if image.startswith("pagewire-")}
    assert ours == {"pagewire-router:0.1.0", "pagewire-pod-cpu:0.1.0", "pagewire-pod-cuda:0.1.0"}
    assert all(DIGEST.search(image) for image in images - ours)
    for where, service in services():
        if "build" in service and where.startswith("compose.yaml:"):  # the other files add to these
            assert service["pull_policy"] == "never", f"{where} would be fetched from whoever has that name"
    base = re.search(r"^ARG BASE_IMAGE=(\S+)$", text(COMPOSE / "Dockerfile"), re.MULTILINE)
    assert base is not None
    assert DIGEST.search(base[1])
    told = {each for path in FILES for name, each in VARIABLE.findall(text(path)) if name == "BASE_IMAGE"}
    assert told == {base[1]}


def test_with_tls_every_process_shows_a_certificate_and_believes_one_authority() -> None:
    """By settings that go together, as a pod and a router take them; Redis as Redis takes them."""
    with_tls = yaml.safe_load(text(COMPOSE / "compose.tls.yaml"))["services"]
    certs = "/etc/pagewire/certs"
    for name, own in (("router", "router"), ("prefill", "pod"), ("decode", "pod")):
        told = with_tls[name]["environment"]
        assert told == {
            "PAGEWIRE_TLS_CERT": f"{certs}/{own}.pem",
            "PAGEWIRE_TLS_KEY": f"{certs}/{own}.key",
            "PAGEWIRE_TLS_CA": f"{certs}/ca.pem",
            "PAGEWIRE_TLS_NAME": "pagewire",
            "PAGEWIRE_REDIS_CA": f"{certs}/ca.pem",
            "PAGEWIRE_REDIS_CERT": f"{certs}/{own}.pem",
            "PAGEWIRE_REDIS_KEY": f"{certs}/{own}.key",
        }
    for name in ("router", "prefill", "decode", "redis"):
        assert f"${{CERTS:-./certs}}:{certs}:ro" in with_tls[name]["volumes"]
    # What Redis is told besides is what it is told in the clear.
    clear = yaml.safe_load(text(COMPOSE / "compose.yaml"))["services"]["redis"]["command"]
    assert ["--aclfile", "/run/redis-acl/users.acl", *with_tls["redis"]["command"]] == clear


def test_environment_is_of_settings_that_exist() -> None:
    """A router or a pod refuses a PAGEWIRE_ variable that it does not know."""
    known = {each.variable for config in (RouterConfig, PodConfig) for each in settings(config)}
    for where, service in services():
        told = {name for name in service.get("environment", {}) if name.startswith("PAGEWIRE_")}
        assert told <= known, where
    said = set(re.findall(r"\b(PAGEWIRE_[A-Z_]+)=", text(COMPOSE / "Dockerfile")))
    assert said <= known | {"PAGEWIRE_MODELS_DIR"}


def test_the_image_has_every_target_and_none_runs_as_root() -> None:
    dockerfile = text(COMPOSE / "Dockerfile")
    assert {"router", "pod-cpu", "pod-cuda"} <= stages().keys()
    assert set(stages().values()) <= {*stages(), "${BASE_IMAGE}"}
    for target in ("router", "pod-cpu", "pod-cuda"):
        own = dockerfile[dockerfile.index(f" AS {target}\n") :]
        own = own[: own.index("\nFROM ")] if "\nFROM " in own else own
        assert re.search(r"^USER 10001:10001$", own, re.MULTILINE), target
        assert own.count("AS pod-") + own.count("AS router") == 1
    assert dockerfile.count("HEALTHCHECK") == 2  # the router's, and one for both pods


def test_every_image_can_be_built_behind_mirrors() -> None:
    """Each index that the Dockerfile takes is an argument of each build that uses it, and every apt asks the mirror."""
    for where, service in services():
        if "build" in service:
            torch = {"pagewire-pod-cpu": {"TORCH_INDEX"}, "pagewire-pod-cuda": {"TORCH_CUDA_INDEX"}}
            needed = torch.get(service["image"].partition(":")[0], set())
            assert service["build"]["args"].keys() == {
                "BASE_IMAGE", "DEBIAN_MIRROR", "PIP_INDEX_URL", "REVISION", *needed,
            }, where  # fmt: skip
    dockerfile = text(COMPOSE / "Dockerfile")
    first = dockerfile.index("apt-get update")
    assert dockerfile.index("ARG DEBIAN_MIRROR=\n") < dockerfile.index("xargs sed -i") < first


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("debian.sources", "URIs: http://archive.example/debian-security"),
        ("sources.list", "deb https://archive.example/debian bookworm main"),
    ],
)
def test_the_mirror_stands_in_for_debians_archive(tmp_path: Path, name: str, line: str) -> None:
    """The step itself, on a folder instead of /etc/apt."""
    step = re.search(r"^RUN (if \[ -n .*?\bfi) ", text(COMPOSE / "Dockerfile"), re.MULTILINE | re.DOTALL)
    assert step is not None
    script = step[1].replace("\\\n", "").replace("/etc/apt", str(tmp_path))
    file = tmp_path / "sources.list.d" / name
    file.parent.mkdir()
    file.write_text(line)
    for mirror, said in (
        ("", line),
        ("http://mirror:3142/x", re.sub("https?://archive.example", "http://mirror:3142/x", line)),
    ):
        subprocess.run(
            ["sh", "-euc", script], env={"PATH": "/usr/bin:/bin", "DEBIAN_MIRROR": mirror}, check=True, timeout=60
        )
        assert file.read_text() == said


def test_packages_are_installed_by_hash_and_torch_by_version() -> None:
    dockerfile = text(COMPOSE / "Dockerfile").replace("\\\n", "")
    for line in re.findall(r"^.*pip .*\binstall\b.*$", dockerfile, re.MULTILINE):
        assert "--no-deps" in line
        assert "--require-hashes" in line or "torch==${TORCH_VERSION}" in line or "/dist/*.whl" in line, line
    makefile = re.search(r"^TORCH_VERSION := (\S+)$", text(ROOT / "Makefile"), re.MULTILINE)
    assert makefile is not None
    assert set(re.findall(r"^ARG TORCH_VERSION=(\S+)$", dockerfile, re.MULTILINE)) == {makefile[1]}


@pytest.mark.parametrize("name", ["build", "router", "pod", "cuda"])
def test_locks_hold_hashes_and_the_versions_of_constraints(name: str) -> None:
    lock = text(COMPOSE / f"{name}.lock")
    entries = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)
    locked = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, re.MULTILINE))
    pinned = {
        each.lower().replace("_", "-"): version
        for each, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", text(ROOT / "constraints.txt"), re.MULTILINE)
    }
    assert {each: version for each, version in locked.items() if pinned.get(each, version) != version} == {}
    assert "torch" not in locked


@pytest.mark.parametrize(
    ("lock", "extra"),
    [
        ("router", "router"),
        ("router", "serving"),
        ("router", "trace"),
        ("pod", "trace"),
        ("pod", "engine"),
        ("cuda", "cuda"),
    ],
)
def test_locks_hold_what_the_project_asks_for(lock: str, extra: str) -> None:
    """`make lock` was forgotten otherwise."""
    project = text(ROOT / "pyproject.toml")
    asked = re.search(rf"^{extra} = \[(.*)\]$", project, re.MULTILINE)
    assert asked is not None
    names = {each for each in re.findall(r'"([A-Za-z0-9_-]+)', asked[1]) if each not in ("pagewire", "torch")}
    locked = set(re.findall(r"^([a-z0-9._-]+)==", text(COMPOSE / f"{lock}.lock"), re.MULTILINE))
    assert {each.lower().replace("_", "-") for each in names} <= locked


def test_labels_say_the_version_of_the_project() -> None:
    version = re.search(r'^version = "(.+)"$', text(ROOT / "pyproject.toml"), re.MULTILINE)
    assert version is not None
    assert f"ARG VERSION={version[1]}\n" in text(COMPOSE / "Dockerfile")
    assert f"#TAG={version[1]}\n" in text(COMPOSE / ".env.example")


def test_every_image_that_is_built_is_told_its_revision_and_says_it_in_its_last_layer() -> None:
    told = [service["build"]["args"].get("REVISION") for _, service in services() if "build" in service]
    assert told
    assert set(told) == {"${REVISION:-}"}
    for target in ("router", "pod-cpu", "pod-cuda"):
        own = text(COMPOSE / "Dockerfile").partition(f" AS {target}\n")[2].partition("\n\n")[0]
        ends = ["ARG REVISION=", "LABEL org.opencontainers.image.revision=${REVISION}"]
        assert own.splitlines()[-3:-1] == ends, target


def test_the_build_sees_only_what_is_shipped() -> None:
    lines = [line for line in text(ROOT / ".dockerignore").splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    folders = {path.name for path in (ROOT / "src" / "pagewire").iterdir() if path.is_symlink()}
    copied = set(re.findall(r"^COPY (\w+) /source/\1$", text(COMPOSE / "Dockerfile"), re.MULTILINE))
    assert copied == {*folders, "src"}
    assert {each for each in let_in if "." not in each and not each.startswith("compose/")} == {
        *folders,
        "src",
        "LICENSE",
    }


def test_prometheus_and_grafana_are_given_files_that_are_there() -> None:
    for where, service in services():
        for volume in service.get("volumes", []):
            source = default(str(volume)).partition(":")[0]
            if source.startswith("./"):
                assert (COMPOSE / source).exists(), f"{where} mounts {source}"
    for path in (
        *COMPOSE.glob("prometheus/*.yml"),
        *COMPOSE.glob("grafana/provisioning/*/*.yaml"),
        *COMPOSE.glob("otel/*.yaml"),
    ):
        assert yaml.safe_load(text(path)), path
