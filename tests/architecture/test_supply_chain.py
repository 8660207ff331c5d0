"""What is installed is what was locked: every package of an image by its version and its hashes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import sbom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from source_tree import ROOT

LOCKS = sorted(path.name for path in (ROOT / "compose").glob("*.lock"))
ENTRY = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==(\S+)(?: ;.*?)?((?: --hash=sha256:[0-9a-f]{64})+)$")


def entries(name: str) -> list[str]:
    """Return a lock file's entries, each in one line."""
    text = (ROOT / "compose" / name).read_text(encoding="utf-8")
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [line.rstrip() for line in lines if line.strip() and not line.startswith("#")]


def test_there_is_a_lock_for_every_image() -> None:
    assert {"router.lock", "pod.lock", "cuda.lock", "build.lock"} <= {*LOCKS}


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_its_hashes(name: str) -> None:
    found = entries(name)
    assert found
    assert [line[:100] for line in found if not ENTRY.match(line)] == []


@pytest.mark.parametrize("name", ["Dockerfile"])
def test_images_install_by_hash_alone(name: str) -> None:
    text = (ROOT / "compose" / name).read_text(encoding="utf-8")
    text = re.sub(r"\s*\\\n\s*", " ", text)
    installs = [line for line in text.splitlines() if re.search(r"\bpip install\b", line)]
    assert installs
    assert [line for line in installs if ".lock" in line and "--require-hashes" not in line] == []


@pytest.fixture(scope="module")
def bills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sbom")
    sbom.main(folder)
    return folder


@pytest.mark.parametrize("image", [*sbom.IMAGES])
def test_a_bill_of_materials_has_every_locked_package_and_is_cyclonedx(image: str, bills: Path) -> None:
    text = (bills / f"{image}.cdx.json").read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    told = json.loads(text)
    found = {each["purl"]: {one["content"] for one in each.get("hashes", ())} for each in told["components"]}
    locked = [line for lock in sbom.IMAGES[image] for line in entries(f"{lock}.lock")]
    wanted = {}
    for line in locked:
        named = ENTRY.match(line)
        assert named is not None
        wanted[f"pkg:pypi/{named[1].lower()}@{named[2]}"] = set(re.findall(r"sha256:([0-9a-f]{64})", line))
    torch = {purl for purl in found if purl.startswith("pkg:pypi/torch@")}
    assert len(torch) == (image != "router")
    assert {purl: hashes for purl, hashes in found.items() if purl not in torch} == wanted
    ours = told["metadata"]["component"]["bom-ref"]
    (needs,) = (each["dependsOn"] for each in told["dependencies"] if each["ref"] == ours)
    assert {*needs} == {*found}
