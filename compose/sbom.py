"""Writes what each image is made of as CycloneDX 1.6: every package of its locks, by version, purl and hash.

    python compose/sbom.py FOLDER        (make sbom)

PyTorch is named without a hash: each index has a build of its own under one version. Knows lock files. Invariant: a
document has every package of its locks once, and nothing else but that and ourselves.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

FOLDER = Path(__file__).resolve().parent
IMAGES = {"router": ("router",), "pod": ("pod",), "pod-cuda": ("pod", "cuda")}
_TORCH = re.compile(r"^TORCH_VERSION := (\S+)$", re.MULTILINE)
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def packages(lock: str) -> Iterator[Component]:
    """Yield what a lock file holds."""
    text = (FOLDER / f"{lock}.lock").read_text(encoding="utf-8")
    for entry in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        named = _NAMED.match(entry)
        if named is not None:
            yield _package(named[1], named[2], _HASH.findall(entry))


def document(image: str) -> Bom:
    """Return the bill of materials of one image."""
    bom = Bom()
    version = metadata.version("pagewire")
    bom.metadata.component = ours = Component(
        name=f"pagewire-{image}", version=version, type=ComponentType.CONTAINER, bom_ref=f"pagewire-{image}@{version}"
    )
    found = [component for lock in IMAGES[image] for component in packages(lock)]
    if image != "router":
        told = _TORCH.search((FOLDER.parent / "Makefile").read_text(encoding="utf-8"))
        assert told is not None
        found.append(_package("torch", told[1], []))
    bom.components.update(found)
    bom.register_dependency(ours, found)
    return bom


def main(folder: Path) -> None:
    """Write a document for each image."""
    folder.mkdir(parents=True, exist_ok=True)
    for image in IMAGES:
        path = folder / f"{image}.cdx.json"
        path.write_text(JsonV1Dot6(document(image)).output_as_string(indent=1), encoding="utf-8")
        print(path)


def _package(name: str, version: str, digests: list[str]) -> Component:
    purl = PackageURL(type="pypi", name=name, version=version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in digests]
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl), hashes=hashes
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
