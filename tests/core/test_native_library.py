"""Native libraries: built once, kept whole, built anew when damaged, and done without where they cannot be."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pagewire.core import native_library
from pagewire.kernels import native_ops
from pagewire.kvtransfer import summed_copy

SOURCE = "int answer(void) { return 42; }\n"
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
ASK = """
import sys
from pathlib import Path
from pagewire.core import native_library
library = native_library.load(Path(sys.argv[1]))
print("none" if library is None else library.answer())
"""
NAME = ASK + "print(native_library.build_of(library))"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.c"
    path.write_text(SOURCE)
    return path


def start(source: Path, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", ASK, str(source)], stdout=subprocess.PIPE, text=True, env={**os.environ, **environ}
    )


def ask(source: Path, **environ: str) -> str:
    process = start(source, **environ)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return said.strip()


def kept(cache: Path) -> list[Path]:
    return list((cache / "pagewire" / "native").iterdir())


@NEEDS_COMPILER
def test_it_is_built_once_and_then_needs_no_compiler(source: Path, tmp_path: Path) -> None:
    assert ask(source, XDG_CACHE_HOME=str(tmp_path)) == "42"
    assert len(kept(tmp_path)) == 1
    assert ask(source, XDG_CACHE_HOME=str(tmp_path), PATH="") == "42"


@NEEDS_COMPILER
def test_a_build_has_its_name_at_once_and_keeps_it(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", NAME, str(source)]
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    fresh, kept = (subprocess.run(command, capture_output=True, text=True, check=True, env=environ) for _ in range(2))
    assert fresh.stdout == kept.stdout
    assert len(fresh.stdout.split()[1]) == 16


@NEEDS_COMPILER
def test_what_is_kept_waits_for_no_builder(source: Path, tmp_path: Path) -> None:
    """As one that was stopped while it had the lock."""
    assert ask(source, XDG_CACHE_HOME=str(tmp_path)) == "42"
    folder = os.open(tmp_path / "pagewire" / "native", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert ask(source, XDG_CACHE_HOME=str(tmp_path)) == "42"
    os.close(folder)


@NEEDS_COMPILER
def test_many_build_it_at_once(source: Path, tmp_path: Path) -> None:
    builders = [start(source, XDG_CACHE_HOME=str(tmp_path)) for _ in range(4)]
    assert [builder.communicate(timeout=60)[0].strip() for builder in builders] == ["42"] * 4
    assert len(kept(tmp_path)) == 1


@NEEDS_COMPILER
def test_of_many_that_need_it_at_once_one_builds_it(source: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\necho built >> {count}\nexec {shutil.which("cc")} "$@"\n')
    compiler.chmod(0o755)
    path = f"{compiler.parent}:{os.environ['PATH']}"
    builders = [start(source, XDG_CACHE_HOME=str(tmp_path), PATH=path) for _ in range(4)]
    assert [builder.communicate(timeout=60)[0].strip() for builder in builders] == ["42"] * 4
    assert count.read_text() == "built\n"


@NEEDS_COMPILER
def test_a_damaged_one_is_built_anew(source: Path, tmp_path: Path) -> None:
    ask(source, XDG_CACHE_HOME=str(tmp_path))
    (library,) = kept(tmp_path)
    library.write_bytes(b"not a library")
    assert ask(source, XDG_CACHE_HOME=str(tmp_path)) == "42"
    assert library.stat().st_size > len(b"not a library")


@NEEDS_COMPILER
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_one_that_is_cut_short_is_built_anew(source: Path, tmp_path: Path, share: float) -> None:
    """The loader would map what is not there, and the process would end."""
    ask(source, XDG_CACHE_HOME=str(tmp_path))
    (library,) = kept(tmp_path)
    size = library.stat().st_size
    os.truncate(library, int(share * size))
    assert ask(source, XDG_CACHE_HOME=str(tmp_path)) == "42"
    assert library.stat().st_size == size
    with library.open("r+b") as file:
        file.seek(int(share * size))
        file.write(bytes([file.read(1)[0] ^ 1]))
    assert ask(source, XDG_CACHE_HOME=str(tmp_path)) == "42"


@NEEDS_COMPILER
@pytest.mark.parametrize("ours", [native_ops.SOURCE, Path(summed_copy.__file__).with_suffix(".c")])
def test_no_compiler_finds_fault_with_ours(ours: Path, tmp_path: Path) -> None:
    """Who builds it has a compiler of its own, and does without its warnings."""
    compiler, *dialect = native_library.LANGUAGES[ours.suffix]
    flags = [*native_library.FLAGS, "-O1", "-Wall", "-Wextra", "-Werror", *dialect]
    subprocess.run([compiler, *flags, "-c", "-o", str(tmp_path / "ours.o"), str(ours)], check=True)


@NEEDS_COMPILER
def test_another_source_is_another_library(source: Path, tmp_path: Path) -> None:
    ask(source, XDG_CACHE_HOME=str(tmp_path))
    source.write_text(SOURCE.replace("42", "43"))
    assert ask(source, XDG_CACHE_HOME=str(tmp_path)) == "43"


def test_without_a_compiler_there_is_none(source: Path, tmp_path: Path) -> None:
    assert ask(source, XDG_CACHE_HOME=str(tmp_path), PATH="") == "none"


def test_a_compiler_that_makes_nothing_leaves_nothing(source: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\nfor last; do :; done\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o755)
    assert ask(source, XDG_CACHE_HOME=str(tmp_path), PATH=f"{compiler.parent}:/usr/bin:/bin") == "none"
    assert kept(tmp_path) == []


@NEEDS_COMPILER
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_nothing_is_loaded_from_where_others_may_write(source: Path, tmp_path: Path, mode: int) -> None:
    assert ask(source, XDG_CACHE_HOME=str(tmp_path)) == "42"
    (tmp_path / "pagewire" / "native").chmod(mode)
    assert ask(source, XDG_CACHE_HOME=str(tmp_path)) == "none"


def test_where_nothing_can_be_kept_there_is_none(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ask(source, XDG_CACHE_HOME=str(tmp_path / "file")) == "none"


def test_without_a_home_there_is_none(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert native_library.load(source) is None
