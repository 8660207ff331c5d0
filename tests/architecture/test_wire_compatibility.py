"""The current contract against that of the last release: nothing that a released process says or expects changed.

`buf breaking` compares the .proto files by its categories FILE, WIRE and WIRE_JSON; what no .proto file says is
compared by version. Each check is also seen to fail where something did change.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from source_tree import ROOT

from pagewire.core.block_hash import HASH_VERSION
from pagewire.core.messages import OLDEST_WIRE_VERSION, WIRE_VERSION
from pagewire.kvtransfer import ticket, wire

RELEASED = ROOT / "protos" / "released"
BUF = Path(sys.executable).with_name("buf")
CONFIG = "version: v2\nbreaking:\n  use: [FILE, WIRE, WIRE_JSON]\n"
# Front and engine of one pod are of one installation: engine.proto may change as it likes.
FILES = ("common.proto", "inference.proto", "link.proto")


def module(folder: Path, source: Path) -> Path:
    """Lay out a module of the contract's files as buf wants it."""
    target = folder / "pagewire" / "protos"
    target.mkdir(parents=True)
    for name in FILES:
        shutil.copy(source / name, target / name)
    (folder / "buf.yaml").write_text(CONFIG)
    return folder


def broken(now: Path, before: Path) -> str:
    """Return what buf finds broken, "" for nothing."""
    told = subprocess.run(
        [BUF, "breaking", now, "--against", before], capture_output=True, text=True, cwd=now, check=False
    )
    assert told.returncode in (0, 100), told.stderr
    assert (told.returncode == 0) == (told.stdout == "")
    return told.stdout


@pytest.fixture
def released(tmp_path: Path) -> Path:
    return module(tmp_path / "released", RELEASED / "pagewire" / "protos")


def test_nothing_that_was_released_is_broken(tmp_path: Path, released: Path) -> None:
    assert broken(module(tmp_path / "now", ROOT / "protos"), released) == ""


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("link.proto", "uint32 wire_version = 2", "uint64 wire_version = 2", "changed type"),
        ("link.proto", "  string incarnation = 4;\n", "", "was deleted"),
        ("link.proto", "string incarnation = 4", "string incarnation = 44", "was deleted"),
        ("link.proto", "bytes proof = 9", "bytes evidence = 9", "changed name"),
        ("link.proto", "repeated string transports = 8", "string transports = 8", "cardinality"),
        ("inference.proto", "  rpc Tokenize(TokenizeRequest) returns (TokenizeResponse);\n", "", "was deleted"),
        ("link.proto", "package pagewire.link.v1", "package pagewire.link.v2", "package"),
    ],
)
def test_what_breaks_is_found(tmp_path: Path, released: Path, file: str, old: str, new: str, said: str) -> None:
    now = module(tmp_path / "now", ROOT / "protos")
    path = now / "pagewire" / "protos" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    if new.startswith("package"):
        path.write_text(path.read_text().replace("pagewire.link.v1.", "pagewire.link.v2."))
    assert said in broken(now, released)


def test_what_is_added_is_not_broken(tmp_path: Path, released: Path) -> None:
    now = module(tmp_path / "now", ROOT / "protos")
    path = now / "pagewire" / "protos" / "link.proto"
    path.write_text(re.sub(r"(bytes proof = 9;)", r"\1\n  string motto = 99;", path.read_text()))
    assert "motto" in path.read_text()
    assert broken(now, released) == ""


def test_the_last_release_is_within_what_we_speak() -> None:
    said = tomllib.loads((RELEASED / "released.toml").read_text(encoding="utf-8"))
    assert OLDEST_WIRE_VERSION <= said["link_version"] <= WIRE_VERSION
    # These are not negotiated: another one means that pods, or caches, of two releases have nothing in common, which a
    # release may choose and its notes have to say.
    assert (said["bulk_version"], said["ticket_version"], said["hash_version"]) == (
        wire.WIRE_VERSION,
        ticket.VERSION,
        HASH_VERSION,
    )
